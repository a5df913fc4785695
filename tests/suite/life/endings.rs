//! A command outlives the memprof that started it, however and whenever memprof ends.
//!
//! `MEMPROF_TEST_ROUNDS` endings (default 24), at moments derived from `MEMPROF_TEST_SEED` (default: the time). For a
//! hundred: `MEMPROF_TEST_ROUNDS=100 cargo test --test suite -- life::endings --nocapture`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::effort;
use crate::common::memprof::BINARY;
use crate::common::process::{LIMIT, signal, threads};
use crate::common::random::Random;
use crate::common::workload::program;
use memprof_sys::ids::Pid;

/// Concurrent endings.
const AT_ONCE: usize = 3;
/// If memprof waits for its command, it gets a second signal after this time.
const AGAIN: Duration = Duration::from_millis(300);
/// The latest kill during the command's start, after memprof follows it.
const JUST_STARTED: Duration = Duration::from_millis(20);
/// The latest moment of an ending, after the command's start.
const LATEST: Duration = Duration::from_millis(700);

/// Python's own way of loading a library; it answers as `survivor` does.
const PYTHON: &str = "
import os, signal
for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT): signal.signal(s, signal.SIG_IGN)
def say(what): os.write(1, b'survivor %d %s\\n' % (os.getpid(), what.encode()))
def line():
    while os.read(0, 1) not in (b'', b'\\n'): pass
say('main')
line()
import ctypes
ctypes.CDLL('libz.so.1'); ctypes.CDLL('libm.so.6')
tracer = [l.split()[1] for l in open('/proc/self/status') if l.startswith('TracerPid')][0]
say('done ' + tracer)
line()
";

/// How memprof is ended, and when after the command's main function began to run.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// By `--duration` with this time.
    Duration(Duration),
    /// By a signal, and a second one if it waits for its command.
    Signal(i32, Duration),
    /// By SIGKILL, this long after memprof was started.
    Start(Duration),
    /// By SIGKILL, this long after memprof said that it follows the command, which is about to run.
    Following(Duration),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |signal| match signal {
            libc::SIGKILL => "SIGKILL",
            libc::SIGTERM => "SIGTERM",
            libc::SIGHUP => "SIGHUP",
            libc::SIGQUIT => "SIGQUIT",
            _ => "SIGINT",
        };
        match self {
            Ending::Duration(d) => write!(f, "--duration {:.3}", d.as_secs_f64()),
            Ending::Signal(signal, after) => {
                write!(f, "{} {after:.0?} after main", name(*signal))
            }
            Ending::Start(after) => write!(f, "SIGKILL {after:.3?} after memprof's start"),
            Ending::Following(after) => write!(f, "SIGKILL {after:.0?} after it follows"),
        }
    }
}

/// Every way in turn. A start takes `start` from memprof's first instruction to the command's main function, and
/// longer if there are several at once: the kills are spread over twice that time.
fn endings(count: u64, seed: u64, start: Duration) -> Vec<Ending> {
    const SIGNALS: [i32; 5] = [
        libc::SIGKILL,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGINT,
    ];
    let mut dice = Random(seed | 1);
    let starts = count.div_ceil(3);
    let mut ending = |i: u64| {
        let after = LATEST.mul_f64(dice.fraction());
        match i % 3 {
            0 if i % 2 == 1 => Ending::Following(JUST_STARTED.mul_f64(dice.fraction())),
            0 => Ending::Start(
                start.mul_f64(2.0 * ((i / 3) as f64 + dice.fraction()) / starts as f64),
            ),
            _ => match (i / 3 * 2 + i % 3 - 1) % 6 {
                5 => Ending::Duration(after + Duration::from_millis(10)),
                way => Ending::Signal(SIGNALS[way as usize], after),
            },
        }
    };
    (0..count).map(&mut ending).collect()
}

/// A memprof and its command, and their ends.
struct Pair {
    reaper: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
}

impl Pair {
    fn start(ending: Option<Ending>, python: bool) -> Pair {
        let mut args: Vec<OsString> = vec![BINARY.into(), "--no-server".into()];
        if let Some(Ending::Duration(d)) = ending {
            args.extend(["--duration".into(), d.as_secs_f64().to_string().into()]);
        }
        args.push("--".into());
        match python {
            // Not from PATH, where it may be the wrapper script of a version manager.
            true => args.extend(["/usr/bin/python3", "-c", PYTHON].map(OsString::from)),
            false => args.push(program("survivor").into()),
        }
        let mut reaper = Command::new(program("reaper"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let news = send.clone();
        let stdout = BufReader::new(reaper.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let said = Arc::new(Mutex::new(String::new()));
        let (to, stderr) = (
            Arc::clone(&said),
            BufReader::new(reaper.stderr.take().unwrap()),
        );
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if line.contains("following ") {
                    let _ = news.send("memprof 0 follows".to_owned());
                }
                *to.lock().unwrap() += &(line + "\n");
            }
        });
        Pair {
            stdin: reaper.stdin.take().unwrap(),
            reaper,
            lines,
            stderr: said,
        }
    }

    /// Lets the command continue; it may have ended.
    fn tell(&mut self) {
        let _ = self.stdin.write_all(b"\n");
        let _ = self.stdin.flush();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Kills the remaining children of a failed pair.
        let children = format!("/proc/{0}/task/{0}/children", self.reaper.id());
        for pid in std::fs::read_to_string(children)
            .unwrap_or_default()
            .split_whitespace()
        {
            signal(Pid(pid.parse().unwrap()), libc::SIGKILL);
        }
        let _ = self.reaper.kill();
        let _ = self.reaper.wait();
    }
}

/// How far a command got, and how its processes ended.
#[derive(Debug, Default)]
struct Fate {
    memprof: Option<Pid>,
    /// Time since memprof was started.
    main_after: Option<Duration>,
    command: Option<Pid>,
    memprof_ended: bool,
    done: bool,
    wrong: Vec<String>,
}

impl Fate {
    /// Waits for the end of a pair.
    fn observe(ending: Option<Ending>, python: bool) -> Fate {
        let mut pair = Pair::start(ending, python);
        let (begun, mut fate) = (Instant::now(), Fate::default());
        // Signals to send, the next one first.
        let mut due: Vec<(Instant, i32)> = Vec::new();
        loop {
            let wait = match due.first() {
                Some((at, _)) => at.saturating_duration_since(Instant::now()),
                None => LIMIT.saturating_sub(begun.elapsed()),
            };
            match pair.lines.recv_timeout(wait) {
                Ok(line) if line == "reaper 0 none 0" => break,
                Ok(line) => fate.note(&line, ending, begun, &mut pair, &mut due),
                Err(RecvTimeoutError::Timeout) if !due.is_empty() => {
                    let (_, number) = due.remove(0);
                    if !fate.memprof_ended {
                        signal(fate.memprof.unwrap(), number);
                    }
                }
                Err(e) => {
                    fate.wrong.push(format!("not over after {LIMIT:?} ({e})"));
                    break;
                }
            }
        }
        if fate.command.is_some() && !fate.done {
            fate.wrong
                .push("the command did not come to its end".into());
        }
        if !fate.wrong.is_empty() {
            let stderr = pair.stderr.lock().unwrap();
            let last = stderr.lines().rev().find(|l| l.starts_with("survivor:"));
            fate.wrong.extend(last.map(str::to_owned));
        }
        fate
    }

    fn note(
        &mut self,
        line: &str,
        ending: Option<Ending>,
        begun: Instant,
        pair: &mut Pair,
        due: &mut Vec<(Instant, i32)>,
    ) {
        let words: Vec<&str> = line.split(' ').collect();
        let pid = Pid(words[1].parse().unwrap());
        match (words[0], words[2]) {
            ("reaper", "started") => {
                self.memprof = Some(pid);
                if let Some(Ending::Start(after)) = ending {
                    due.push((begun + after, libc::SIGKILL));
                }
            }
            ("memprof", _) => {
                if let Some(Ending::Following(after)) = ending {
                    due.push((Instant::now() + after, libc::SIGKILL));
                }
            }
            ("survivor", "main") => {
                self.command = Some(pid);
                self.main_after = Some(begun.elapsed());
                match ending {
                    Some(Ending::Signal(number, after)) => {
                        let at = Instant::now() + after;
                        due.extend([(at, number), (at + AGAIN, number)]);
                    }
                    // Both must end.
                    None => pair.tell(),
                    _ => {}
                }
            }
            ("survivor", "done") => {
                self.done = true;
                if ending.is_some() {
                    self.untouched(pid, words[3]);
                }
                pair.tell();
            }
            ("reaper", how) if Some(pid) == self.memprof => {
                self.memprof_ended = true;
                if matches!(ending, None | Some(Ending::Duration(_))) && how != "exit" {
                    self.wrong.push(format!("memprof: {line}"));
                }
                pair.tell();
            }
            // Processes of memprof's own, which end with it. (Before exec, the command is one, too.)
            ("reaper", _) if self.command != Some(pid) => {}
            ("reaper", "exit") if words[3] == "0" => {}
            _ => self
                .wrong
                .push(format!("the command ended: {} {}", words[2], words[3])),
        }
    }

    /// Checks that no thread has a tracer or a breakpoint.
    fn untouched(&mut self, pid: Pid, tracer: &str) {
        if tracer != "0" {
            self.wrong.push(format!("traced by {tracer}"));
        }
        for thread in threads(pid) {
            match debug_registers(thread) {
                Ok(set) if set.iter().all(|register| *register == 0) => {}
                Ok(set) => self
                    .wrong
                    .push(format!("thread {thread}: debug registers {set:x?}")),
                Err(e) => self
                    .wrong
                    .push(format!("thread {thread} cannot be traced: {e}")),
            }
        }
    }
}

/// The addresses of a thread's breakpoints, and which ones are enabled.
#[cfg(target_arch = "x86_64")]
fn debug_registers(thread: Pid) -> nix::Result<Vec<i64>> {
    use nix::sys::ptrace;
    use nix::sys::wait::{WaitPidFlag, waitpid};
    let thread = nix::unistd::Pid::from_raw(thread.0.cast_signed());
    ptrace::seize(thread, ptrace::Options::empty())?;
    ptrace::interrupt(thread)?;
    waitpid(thread, Some(WaitPidFlag::__WALL))?;
    let register = |n: usize| {
        let at = std::mem::offset_of!(libc::user, u_debugreg) + 8 * n;
        ptrace::read_user(thread, at as ptrace::AddressType)
    };
    let registers = [0, 1, 2, 3, 7].into_iter().map(register).collect();
    ptrace::detach(thread, None)?;
    registers
}

/// On other processors, only the effect of a breakpoint is checked: it would kill the command.
#[cfg(not(target_arch = "x86_64"))]
fn debug_registers(_: Pid) -> nix::Result<Vec<i64>> {
    Ok(Vec::new())
}

#[test]
fn the_command_outlives_memprof() {
    let (count, seed) = (effort::rounds(16), effort::seed());
    // The duration of a start on this machine.
    let undisturbed = Fate::observe(None, false);
    assert!(undisturbed.wrong.is_empty(), "{:?}", undisturbed.wrong);
    let start = undisturbed.main_after.expect("the command did not start");
    println!("{count} endings, seed {seed}; a start takes {start:.3?}");
    let all = endings(count, seed, start);
    let next = AtomicUsize::new(0);
    let fates = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((i, ending)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, all.get(i)?)))
                {
                    let fate = Fate::observe(Some(*ending), i % 5 == 4);
                    fates.lock().unwrap().insert(i, fate);
                }
            });
        }
    });
    let (mut harmed, mut alive) = (0, 0);
    for (i, fate) in fates.into_inner().unwrap() {
        let what = match (&fate.wrong[..], fate.command) {
            ([], Some(_)) => "goes on".to_owned(),
            ([], None) => "was not started yet".to_owned(),
            (wrong, _) => format!("HARMED: {}", wrong.join("; ")),
        };
        println!("{:<48} the command {what}", all[i].to_string());
        harmed += usize::from(!fate.wrong.is_empty());
        alive += usize::from(fate.command.is_some());
    }
    assert!(alive * 2 > all.len(), "only {alive} commands ran");
    assert_eq!(harmed, 0, "of {count} commands, seed {seed}");
}
