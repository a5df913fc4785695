//! The workload `states`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::common::process::{LIMIT, eventually, signal, state, threads};
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;

/// Every state that it can be in.
#[cfg(target_arch = "x86_64")]
pub const STATES: [&str; 13] = [
    "plain", "vfork", "disk", "faults", "traced", "handler", "altstack", "rseq", "threads",
    "leader", "exec", "strict", "stopped",
];

/// A process in one of the states.
pub struct Subject {
    pub state: &'static str,
    pub workload: Workload,
    beats: File,
    _directory: TempDir,
}

/// What it says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Beats {
    /// How often it found its memory to be right.
    pub beats: u64,
    /// How often something was wrong.
    pub wrong: u64,
    /// The longest time between two beats.
    pub longest: Duration,
}

impl Subject {
    /// Starts it. The error says why that state cannot be had here.
    pub fn start(state: &'static str) -> Result<Subject, String> {
        let directory = tempfile::tempdir().unwrap();
        let beats = directory.path().join("beats");
        let mounted = directory.path().join("mounted");
        std::fs::create_dir(&mounted).unwrap();
        let mut command = Command::new(program("states"));
        let of_program = if state == "stopped" { "plain" } else { state };
        command.arg(of_program).args([&beats, &mounted]);
        let mut workload = Workload::start_as(&mut command);
        let line = workload.lines.line();
        if !line.starts_with("ready ") {
            return Err(line);
        }
        let subject = Subject {
            state,
            workload,
            beats: File::open(beats).unwrap(),
            _directory: directory,
        };
        subject.beats_on();
        if state == "stopped" {
            crate::common::process::stop(subject.pid());
        }
        Ok(subject)
    }

    pub fn pid(&self) -> Pid {
        self.workload.pid()
    }

    pub fn beats(&self) -> Beats {
        let mut bytes = [0; 24];
        self.beats.read_exact_at(&mut bytes, 0).unwrap();
        let (words, _) = bytes.as_chunks::<8>();
        let [beats, wrong, longest] = [0, 1, 2].map(|n| u64::from_ne_bytes(words[n]));
        Beats {
            beats,
            wrong,
            longest: Duration::from_micros(longest),
        }
    }

    /// It goes on with its work.
    #[track_caller]
    pub fn beats_on(&self) -> Beats {
        let before = self.beats().beats;
        let what = format!("{} ({}) goes on", self.state, self.pid());
        eventually(LIMIT, &what, || self.beats().beats > before + 2);
        let beats = self.beats();
        assert_eq!(beats.wrong, 0, "{}: {beats:?}", self.state);
        beats
    }

    /// It goes on, unless that is not its state.
    #[track_caller]
    #[cfg(target_arch = "x86_64")]
    pub fn beats_on_unless_stopped(&self) {
        if self.state != "stopped" {
            self.beats_on();
        }
    }

    /// It goes on as if nothing had been.
    #[track_caller]
    pub fn is_unharmed(&self) -> Beats {
        let pid = self.pid();
        if self.state == "stopped" {
            let what = "it is stopped as it was before";
            eventually(LIMIT, what, || {
                threads(pid).into_iter().all(|tid| state(tid) == 'T')
            });
            signal(pid, libc::SIGCONT);
        }
        let beats = self.beats_on();
        let what = format!("{} ({pid}) is let go", self.state);
        eventually(LIMIT, &what, || self.is_free());
        eventually(LIMIT, "it has no child of memprof's", || {
            zombies(pid).is_empty()
        });
        if self.state == "stopped" {
            crate::common::process::stop(pid);
        }
        beats
    }

    /// Whether no thread of it is stopped by a tracer, nor traced but by its own.
    fn is_free(&self) -> bool {
        let all = threads_now(self.pid());
        let traced = |tid: &Pid| {
            let status = std::fs::read_to_string(format!("/proc/{tid}/status"));
            let status = status.unwrap_or_default();
            status.contains("TracerPid:") && !status.contains("TracerPid:\t0\n")
        };
        match self.state {
            "traced" => true,
            _ => !all.iter().any(|tid| state(*tid) == 't' || traced(tid)),
        }
    }
}

/// The threads of a process, which may execute another program meanwhile.
fn threads_now(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names = tasks.into_iter().flatten().flatten();
    let names = names.filter_map(|task| task.file_name().to_str()?.parse().ok());
    names.map(Pid).collect()
}

/// The children of a process that have ended without a signal for it, as memprof's do.
pub fn zombies(pid: Pid) -> Vec<Pid> {
    let lists = threads_now(pid).into_iter().map(|tid| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default()
    });
    let lists: String = lists.collect();
    let children = lists
        .split_whitespace()
        .map(|pid| Pid(pid.parse().unwrap()));
    children.filter(|child| is_silent_zombie(*child)).collect()
}

fn is_silent_zombie(pid: Pid) -> bool {
    /// The signal that a process sends when it ends: the 38th field of `/proc/PID/stat`, the 36th behind the name.
    const EXIT_SIGNAL: usize = 35;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let fields: Vec<&str> = rest.split(' ').collect();
    fields[0] == "Z" && fields[EXIT_SIGNAL] == "0"
}
