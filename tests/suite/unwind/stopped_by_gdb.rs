//! Threads of a process, stopped at random by gdb, with its view of their stacks.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::common::process::{LIMIT, state, threads};
use crate::common::random::Random;
use crate::unwind::chains::source;
use memprof_code::unwind::walk::Registers;
use memprof_sys::ids::Pid;

/// A stopped thread as gdb sees it.
pub struct Stop {
    pub registers: Registers,
    /// Addresses and gdb's names.
    pub frames: Vec<(u64, String)>,
}

pub struct Gdb {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Gdb {
    pub fn attach(pid: Pid) -> Gdb {
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

    /// `None` at the end, or if it says nothing for long: gdb may lose a process whose threads come and go.
    fn line(&mut self) -> Option<String> {
        if !self.has_output(LIMIT) {
            return None;
        }
        let mut line = Vec::new();
        let read = self.output.read_until(b'\n', &mut line).unwrap();
        (read > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Whether it says something, or ends, within a time.
    fn has_output(&self, limit: Duration) -> bool {
        let limit = PollTimeout::try_from(limit).unwrap();
        let mut fds = [PollFd::new(
            self.output.get_ref().as_fd(),
            PollFlags::POLLIN,
        )];
        !self.output.buffer().is_empty() || poll(&mut fds, limit) != Ok(0)
    }

    /// Lets the process run for a moment and stops a thread of it; `None` if the process has ended.
    pub fn stop(&mut self, pid: Pid, random: &mut Random) -> Option<Stop> {
        let _ = writeln!(self.input);
        let limit = Instant::now() + Duration::from_secs(2);
        while state(pid) == 't' && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        // The thread may have ended instead.
        loop {
            if !interrupt(pid, random) {
                return None;
            }
            if self.has_output(Duration::from_secs(5)) {
                break;
            }
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

/// Signals a thread, if possible one that runs; false if the process has ended.
fn interrupt(pid: Pid, random: &mut Random) -> bool {
    while !matches!(state(pid), 'Z' | 'X') {
        let mut all = threads(pid);
        if all.iter().any(|t| state(*t) == 'R') {
            all.retain(|t| state(*t) == 'R');
        }
        // SAFETY: it has no memory-safety preconditions; this test started the process.
        let sent = unsafe {
            let thread = all.get(random.index(all.len())).map_or(0, |t| t.0);
            libc::syscall(libc::SYS_tgkill, pid.0, thread, libc::SIGSTOP)
        };
        if sent == 0 {
            return true;
        }
    }
    false
}
