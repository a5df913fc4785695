//! The results of a run of memprof: stacks by name, and how their walks ended.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, state, threads, wait_until};
use memprof_sys::ids::Pid;

/// The results of a run of memprof.
pub struct Found {
    /// Stacks, outermost function first, with their bytes.
    pub stacks: Vec<(Vec<String>, u64)>,
    /// The summary that it printed at its end.
    pub summary: String,
}

#[track_caller]
pub fn profile(options: &[&str], command: &[&str]) -> Found {
    profile_under(&[], options, command)
}

/// Like [`profile`]; memprof is started by another program, which is given its command line.
#[track_caller]
pub fn profile_under(starter: &[&str], options: &[&str], command: &[&str]) -> Found {
    let out = tempfile::NamedTempFile::with_suffix(".folded").unwrap();
    let path = out.path().to_str().unwrap();
    let words = [starter, &[BINARY]].concat();
    let ended = Command::new(words[0])
        .args(&words[1..])
        .args([
            "--no-server",
            "--stacks",
            "all",
            "--no-inline",
            "-o",
            path,
            "--at",
            "end",
        ])
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let summary = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{command:?}: {summary}");
    Found::read(out.path(), summary)
}

/// Follows a running process, waits a second, and runs `work`; returns what memprof found.
#[track_caller]
pub fn attached(pid: Pid, work: impl FnOnce()) -> Found {
    attached_with(&[], pid, work)
}

/// Like [`attached`], with further options.
#[track_caller]
pub fn attached_with(options: &[&str], pid: Pid, work: impl FnOnce()) -> Found {
    attached_by(Command::new(BINARY).args(options), pid, |_| work())
}

/// Like [`attached`], by a command that executes memprof, whose process id `work` gets.
#[track_caller]
pub fn attached_by(memprof: &mut Command, pid: Pid, work: impl FnOnce(Pid)) -> Found {
    let out = tempfile::NamedTempFile::with_suffix(".folded").unwrap();
    let said = tempfile::NamedTempFile::new().unwrap();
    memprof.args(["--no-server", "--stacks", "all", "--no-inline", "-o"]);
    memprof.arg(out.path()).args(["--pid", &pid.to_string()]);
    memprof.stdin(Stdio::null()).stdout(said.reopen().unwrap());
    let m = Memprof::spawn_unserved(memprof);
    m.said("following ");
    std::thread::sleep(Duration::from_secs(1));
    work(Pid(m.child.id()));
    m.interrupt();
    let summary = std::fs::read_to_string(said.path()).unwrap();
    Found::read(out.path(), summary)
}

/// Runs a command until it has used a second of CPU time, and ends it; returns what memprof found.
#[track_caller]
pub fn first_second(command: &[&str]) -> Found {
    let out = tempfile::NamedTempFile::with_suffix(".folded").unwrap();
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut args = vec!["--no-server", "--stacks", "all", "--no-inline", "-o"];
    args.extend([out.path().to_str().unwrap(), "--"]);
    args.extend(command);
    // Some programs do nothing until the end of their input, others end then.
    let mut m = Memprof::spawn(&args, Stdio::null(), said.reopen().unwrap().into());
    let following = m.said("following ");
    let pid = following.rsplit_once("(pid ").unwrap().1;
    let pid = Pid(pid.trim_end_matches(')').parse().unwrap());
    let mut ended = false;
    wait_until(|| {
        ended = m.child.try_wait().unwrap().is_some();
        ended || cpu_time(pid) >= Duration::from_secs(1)
    });
    if !ended {
        m.signal(libc::SIGTERM);
        m.wait();
    }
    // The output of the command precedes the summary.
    let summary = std::fs::read_to_string(said.path()).unwrap() + &m.all_said();
    Found::read(out.path(), summary)
}

/// CPU time used by all threads of a process; zero if there is no such process.
pub fn cpu_time(pid: Pid) -> Duration {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Duration::ZERO;
    };
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields = rest.split(' ').skip(11).take(2);
    let ticks: u64 = fields.map(|n| n.parse::<u64>().unwrap()).sum();
    // USER_HZ is 100 everywhere.
    Duration::from_millis(ticks * 10)
}

/// Waits until memprof has no more to do: it has built the unwind tables of the code that it found.
pub fn wait_until_idle(memprof: Pid) {
    let limit = Instant::now() + 3 * LIMIT;
    let mut is_busy = true;
    while is_busy && Instant::now() < limit {
        let before = cpu_time(memprof);
        std::thread::sleep(Duration::from_secs(2));
        // On a busy machine, a thread that waits for a processor uses none.
        let waits = threads(memprof).into_iter().any(|tid| state(tid) == 'R');
        is_busy = waits || cpu_time(memprof) > before + Duration::from_millis(150);
    }
}

/// Whether a stack matches a pattern. The node of cut-off stacks has to be there only if the pattern begins with it.
fn fits(frames: &[String], pattern: &[&str]) -> bool {
    let is_cut = |frame: &str| frame.starts_with("[cut_off");
    match (frames, pattern) {
        ([first, rest @ ..], [wanted, ..]) if is_cut(first) && !is_cut(wanted) => {
            matches(rest, pattern)
        }
        _ => matches(frames, pattern),
    }
}

/// Whether frames match a pattern: `*` matches one to five frames of a library, `main` matches all frames from the
/// first instruction to `main`.
fn matches(frames: &[String], pattern: &[&str]) -> bool {
    match (frames, pattern) {
        ([], []) => true,
        ([_, ..], ["*", rest @ ..]) => {
            (1..=frames.len().min(5)).any(|n| matches(&frames[n..], rest))
        }
        ([frame, frames @ ..], [wanted, pattern @ ..]) => {
            part_of(frame, wanted) && matches(frames, pattern)
        }
        _ => false,
    }
}

/// The label of cut-off stacks as one word, because patterns are split at spaces.
fn one_word(frame: &str) -> String {
    match frame.starts_with("[cut off: ") {
        true => frame.replace(' ', "_"),
        false => frame.to_owned(),
    }
}

/// GCC gives rarely executed parts of a function a separate name.
fn part_of(frame: &str, function: &str) -> bool {
    frame.strip_suffix(".cold").unwrap_or(frame) == function
}

impl Found {
    fn read(folded: &Path, summary: String) -> Found {
        let text = std::fs::read_to_string(folded).unwrap();
        let stacks = text.lines().map(|line| {
            let (frames, bytes) = line.rsplit_once(' ').unwrap();
            let frames = frames.split(';').map(one_word).collect();
            (frames, bytes.parse().unwrap())
        });
        Found {
            stacks: stacks.collect(),
            summary,
        }
    }

    /// Percentage of stacks, and of their bytes, whose walk reached the outermost frame.
    pub fn complete(&self) -> (f64, f64) {
        let (mut all, mut complete) = ((0, 0), (0, 0));
        for line in self.summary.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [kib, "KiB", stacks, "stacks", outcome, ..] = words.as_slice() {
                let (kib, stacks): (u64, u64) = (kib.parse().unwrap(), stacks.parse().unwrap());
                all = (all.0 + stacks, all.1 + kib);
                if outcome.starts_with("complete") {
                    complete = (complete.0 + stacks, complete.1 + kib);
                }
            }
        }
        let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
        (share(complete.0, all.0), share(complete.1, all.1))
    }

    /// Whether any stack contains a function with this name.
    pub fn names(&self, part: &str) -> bool {
        let mut frames = self.stacks.iter().flat_map(|(frames, _)| frames);
        frames.any(|f| f.contains(part))
    }

    /// The bytes of stacks with this function, all of which must match this pattern.
    #[track_caller]
    pub fn chain(&self, pattern: &str, function: &str, bytes: u64) {
        let pattern: Vec<&str> = pattern.split_whitespace().collect();
        let has = |frames: &[String]| frames.iter().any(|f| f == function);
        let mut sum = 0;
        for (frames, bytes) in self.stacks.iter().filter(|(frames, _)| has(frames)) {
            assert!(
                fits(frames, &pattern),
                "of {function} wanted {pattern:?}, found {frames:?}\n{}",
                self.summary
            );
            sum += bytes;
        }
        assert_eq!(sum, bytes, "{function}\n{}", self.text());
    }

    /// The bytes of stacks that match a pattern.
    pub fn bytes(&self, pattern: &str) -> u64 {
        let pattern: Vec<&str> = pattern.split_whitespace().collect();
        let stacks = self.stacks.iter();
        stacks
            .filter(|(f, _)| fits(f, &pattern))
            .map(|(_, bytes)| bytes)
            .sum()
    }

    pub fn text(&self) -> String {
        let lines = self
            .stacks
            .iter()
            .map(|(f, n)| format!("{} {n}\n", f.join(";")));
        lines.collect::<String>() + &self.summary
    }

    /// KiB of stacks whose walk ended in this way.
    pub fn ended(&self, label: &str) -> u64 {
        let lines = self.summary.lines().filter(|l| l.ends_with(label));
        lines
            .map(|l| l.split_whitespace().next().unwrap().parse::<u64>().unwrap())
            .sum()
    }
}
