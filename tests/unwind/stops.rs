//! Real programs, stopped at random: memprof's walk compared with gdb's unwinder, on the same registers and memory.
//!
//! `programs/busy.sh` has the programs. Needs gdb. With `MEMPROF_STOPS=200` each installed one is stopped so often, and
//! memprof says how many of the bytes that it brings in have a whole stack; `MEMPROF_STOPS_OF='nginx perl'` chooses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memprof::event::Pid;
use memprof::unwind::walk::{Ended, Mapped, Process, Registers, walk};
use memprof::unwind::{Arch, OTHER_STACK};

use crate::chains::source;
use crate::common::process::{cont, eventually, state, stop, threads, wait_until};
use crate::common::random::Random;
use crate::common::skip::skip;
use crate::found::{attached, cpu_time};
use crate::images::{Code, Tables, code_at, mapped, modules};
use crate::real::installed;

/// Frames that are compared; the script has the same limit.
const DEPTH: usize = 1000;
/// What every machine for tests has, and how often each is stopped without `MEMPROF_STOPS`.
const USUAL: [&str; 3] = ["perl", "python", "git"];
const USUAL_STOPS: usize = 20;
/// Most time for the preparations of `busy.sh`: compilers, databases.
const PREPARED: Duration = Duration::from_secs(300);
/// A program that ends is started again, at most so often.
const STARTS: usize = 40;

/// A program at work, with all that it has started.
struct Busy {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Busy {
    /// `None` if it is not installed.
    fn start(name: &str) -> Option<Busy> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = Command::new("sh");
        command
            .arg(source("busy.sh"))
            .arg(name)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .process_group(0);
        for stream in [Command::stdout, Command::stderr] {
            stream(&mut command, File::create(dir.path().join("said")).unwrap());
        }
        let mut busy = Busy {
            child: command.spawn().unwrap(),
            _dir: dir,
        };
        let mut missing = false;
        eventually(PREPARED, "the program is not ready", || {
            missing = busy
                .child
                .try_wait()
                .unwrap()
                .is_some_and(|s| s.code() == Some(3));
            missing || !busy.is_shell()
        });
        (!missing).then_some(busy)
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Whether it is still the shell that prepares the program.
    fn is_shell(&self) -> bool {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid()));
        path.is_ok_and(|p| p.ends_with("dash") || p.ends_with("sh"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: the group of a process that this test started and has not waited for.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

/// A stopped thread as gdb sees it.
struct Stop {
    registers: Registers,
    /// Addresses and gdb's names.
    frames: Vec<(u64, String)>,
}

struct Gdb {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Gdb {
    fn attach(pid: Pid) -> Gdb {
        let mut child = Command::new("gdb")
            .args(["-nx", "-q", "-batch", "-p", &pid.to_string(), "-x"])
            .arg(source("stops.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut gdb = Gdb {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        while gdb.line().is_some_and(|line| line != "READY") {}
        gdb
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let read = self.output.read_until(b'\n', &mut line).unwrap();
        (read > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Lets the process run for a moment and stops a thread of it; `None` if the process has ended.
    fn stop(&mut self, pid: Pid, random: &mut Random) -> Option<Stop> {
        let _ = writeln!(self.input);
        let limit = Instant::now() + Duration::from_secs(2);
        while state(pid) == 't' && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        if !interrupt(pid, random) {
            return None;
        }
        let mut stop = None;
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            match (words.as_slice(), &mut stop) {
                (["STOP", ..], _) => stop = Some(started(&line)),
                (["FRAME", pc, name], Some(Stop { frames, .. })) => {
                    frames.push((hex(pc), (*name).to_owned()));
                }
                (["END"], _) => return stop,
                _ => {}
            }
        }
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).unwrap()
}

fn started(line: &str) -> Stop {
    let words: Vec<u64> = line.split(' ').skip(1).map(hex).collect();
    let registers = Registers {
        ip: words[0],
        sp: words[1],
        fp: words[2],
        lr: 0,
        bx: words[3],
    };
    Stop {
        registers,
        frames: Vec::new(),
    }
}

/// Signals a thread, if possible one that runs; false if there is none.
fn interrupt(pid: Pid, random: &mut Random) -> bool {
    if matches!(state(pid), 'X') {
        return false;
    }
    let mut all = threads(pid);
    all.retain(|t| !matches!(state(*t), 'Z' | 'X'));
    let running: Vec<Pid> = all.iter().copied().filter(|t| state(*t) == 'R').collect();
    let chosen = if running.is_empty() { all } else { running };
    if chosen.is_empty() {
        return false;
    }
    let thread = random.of(&chosen);
    // SAFETY: it has no memory-safety preconditions; this test started the process.
    unsafe { libc::syscall(libc::SYS_tgkill, pid.0, thread.0, libc::SIGSTOP) == 0 }
}

/// A stopped process.
struct Stopped {
    memory: File,
    modules: Vec<Code>,
}

impl Process for Stopped {
    fn read(&self, addr: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, addr).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn module(&self, pc: u64) -> Mapped<'_> {
        mapped(&self.modules, pc)
    }
}

impl Stopped {
    /// Whether a call precedes the return address that follows this one.
    fn is_call(&self, pc: u64) -> bool {
        let mut code = [0; 7];
        let from = pc.wrapping_sub(6);
        if self.memory.read_exact_at(&mut code, from).is_err() {
            return false;
        }
        let indirect = |n: &usize| code[7 - n] == 0xff && code[8 - n] & 0x38 == 0x10;
        code[2] == 0xe8 || (2..=7).any(|n| indirect(&n))
    }

    /// Whether the function's caller may be on another stack.
    fn leaves_stack(&self, pc: u64) -> bool {
        match self.module(pc) {
            Mapped::Table(table, bias) => {
                table.rule_at(pc.wrapping_sub(bias)).flags & OTHER_STACK != 0
            }
            _ => false,
        }
    }

    fn place(&self, pc: u64) -> String {
        let Some(code) = code_at(&self.modules, pc) else {
            return format!("{pc:x}");
        };
        let m = &code.mapping;
        format!("{}+{:x}", m.path, pc - m.start + m.offset)
    }
}

/// What became of the comparison of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Equal,
    /// gdb ends earlier; the rest of ours are calls.
    GdbEnds,
    /// gdb continues where nothing called, or on a stack that was left: it guesses, without unwind information.
    GdbStrays,
    /// memprof ends earlier, for this reason, in this file.
    Ends(String),
    /// Another frame.
    Wrong(String),
}

fn verdict(process: &Stopped, stop: &Stop) -> Verdict {
    let ours = walk(process, Arch::X86_64, stop.registers, DEPTH);
    let common = ours.frames.iter().zip(&stop.frames);
    let common = common
        .take_while(|(ours, theirs)| **ours == theirs.0)
        .count();
    let (mine, theirs) = (&ours.frames[common..], stop.frames.get(common));
    // What gdb has of such a frame is not its caller's, who may be on another stack.
    let is_left = common > 0 && process.leaves_stack(ours.frames[common - 1]);
    let are_calls = mine.iter().all(|pc| process.is_call(*pc));
    match (mine.is_empty(), theirs, ours.ended) {
        (true, None, _) => Verdict::Equal,
        (false, None, _) if are_calls => Verdict::GdbEnds,
        (true, Some(_), Ended::Partial(reason)) => {
            let last = ours.frames.last().copied().unwrap_or_default();
            let place = code_at(&process.modules, last).map_or("no file", |c| &c.mapping.path);
            Verdict::Ends(format!("{reason:?} in {place}"))
        }
        (_, Some((pc, _)), _) if are_calls && (is_left || !process.is_call(*pc)) => {
            Verdict::GdbStrays
        }
        _ => Verdict::Wrong(both(process, stop, &ours.frames, ours.ended)),
    }
}

/// Both stacks, as text.
fn both(process: &Stopped, stop: &Stop, ours: &[u64], ended: Ended) -> String {
    let mut text = format!("{ended:?}\n");
    for n in 0..ours.len().max(stop.frames.len()) {
        let ours = ours.get(n).map(|pc| process.place(*pc));
        let theirs = stop.frames.get(n);
        let theirs = theirs.map(|(pc, name)| format!("{} {name}", process.place(*pc)));
        let same = if ours.as_deref() == theirs.as_deref().and_then(|t| t.split(' ').next()) {
            "  "
        } else {
            "! "
        };
        text += &format!("{same}{ours:?}  gdb: {theirs:?}\n");
    }
    text
}

/// Stops a program so often; `None` if it is not installed.
fn stops(name: &str, count: usize) -> Option<BTreeMap<Verdict, usize>> {
    let (mut verdicts, mut tables) = (BTreeMap::new(), Tables::new());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut done = 0;
    for _ in 0..STARTS {
        let busy = Busy::start(name)?;
        std::thread::sleep(Duration::from_millis(300));
        let pid = busy.pid();
        let mut gdb = Gdb::attach(pid);
        while done < count
            && let Some(stop) = gdb.stop(pid, &mut random)
            && let Ok(memory) = File::open(format!("/proc/{pid}/mem"))
        {
            let process = Stopped {
                memory,
                modules: modules(&pid.to_string(), &mut tables),
            };
            *verdicts.entry(verdict(&process, &stop)).or_default() += 1;
            done += 1;
        }
        if done == count {
            break;
        }
    }
    Some(verdicts)
}

/// Prints what share of the bytes that a program brings in has a whole stack, and the rest of the summary.
fn roots(name: &str) {
    let Some(busy) = Busy::start(name) else {
        return;
    };
    let pid = busy.pid();
    wait_until(|| cpu_time(pid) > Duration::from_millis(100) || state(pid) == 'X');
    // The tables are made while it is stopped: it is measured as a program that has run for long.
    stop(pid);
    let found = attached(pid, || {
        std::thread::sleep(Duration::from_secs(10));
        cont(pid);
        std::thread::sleep(Duration::from_secs(5));
    });
    let (stacks, bytes) = found.complete();
    let summary = &found.summary;
    println!("{name}: {stacks:.2} % of stacks complete, {bytes:.3} % of bytes\n{summary}");
    if let Some(dir) = std::env::var_os("MEMPROF_STOPS_KEEP") {
        let path = std::path::Path::new(&dir).join(format!("{name}.txt"));
        fs::write(path, found.text()).unwrap();
    }
}

/// The names of all programs of `busy.sh`.
fn all() -> Vec<String> {
    let script = fs::read_to_string(source("busy.sh")).unwrap();
    let name = |line: &str| {
        line.strip_suffix(")")
            .filter(|l| !l.contains(' '))
            .map(str::to_owned)
    };
    script.lines().filter_map(name).collect()
}

#[test]
fn as_gdb_at_random_stops() {
    if !installed("gdb") {
        return;
    }
    let variable = |name| std::env::var(name).ok();
    let often = variable("MEMPROF_STOPS").map(|n| n.parse().unwrap());
    let names: Vec<String> = match (variable("MEMPROF_STOPS_OF"), often) {
        (Some(names), _) => names.split(' ').map(str::to_owned).collect(),
        (None, Some(_)) => all(),
        (None, None) => USUAL.map(str::to_owned).into(),
    };
    let mut wrong = Vec::new();
    for name in names {
        let Some(verdicts) = stops(&name, often.unwrap_or(USUAL_STOPS)) else {
            skip(format_args!("{name} is not installed"));
            continue;
        };
        println!(
            "{name}: {:?}",
            verdicts
                .iter()
                .map(|(v, n)| match v {
                    Verdict::Wrong(_) => format!("wrong: {n}"),
                    other => format!("{other:?}: {n}"),
                })
                .collect::<Vec<_>>()
        );
        if often.is_some() {
            roots(&name);
        }
        wrong.extend(verdicts.into_keys().filter_map(|v| match v {
            Verdict::Wrong(text) => Some(format!("{name}: {text}")),
            _ => None,
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
