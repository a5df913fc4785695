//! Threads stopped as a debugger stops them.
//!
//! Seizing (`PTRACE_SEIZE`) stops nobody. It is done before the target stands still; only interrupting and
//! waiting is not. What signals come meanwhile stop their thread until they are passed on. Signals are bare
//! numbers here: a real-time one has no name.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use super::threads::{self, has_ended, threads};
use crate::event::Pid;

/// How often a thread that has not stopped yet is looked at.
const PAUSE: Duration = Duration::from_micros(50);
/// Threads that are seized before signals are passed on.
const BATCH: usize = 256;

/// Threads of processes, traced by the thread of memprof that made this. The kernel lets go of those that are
/// left when that thread ends.
#[derive(Debug, Default)]
pub(super) struct Tracees {
    threads: Vec<Tracee>,
    /// Every thread that was looked at.
    known: HashSet<i32>,
}

#[derive(Debug)]
struct Tracee {
    tid: i32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Traced, and running.
    Seized,
    /// Told to stop.
    Interrupted,
    /// Stopped; the signal that was on its way to it, or 0.
    Stopped(i32),
    Ended,
}

/// Why threads were not stopped.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The kernel refused: why.
    Refused(&'static str, io::Error),
    /// The time was up; the thread that was waited for.
    Late(Option<i32>),
}

impl Tracees {
    /// Traces the threads of a process that it did not know. They run on. Returns how many there were.
    pub(super) fn seize(&mut self, pid: Pid) -> Result<usize, Trouble> {
        let mut fresh = 0;
        for tid in threads(pid) {
            if !self.known.insert(tid) {
                continue;
            }
            fresh += 1;
            match request(libc::PTRACE_SEIZE, tid, 0) {
                Ok(()) => self.threads.push(Tracee {
                    tid,
                    state: State::Seized,
                }),
                // Gone meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                // One that has ended and waits to be collected runs no more.
                Err(_) if has_ended(tid) => {}
                Err(e) => return Err(Trouble::Refused("its threads may not be traced", e)),
            }
            if self.threads.len().is_multiple_of(BATCH) {
                pass_signals_on();
            }
        }
        pass_signals_on();
        Ok(fresh)
    }

    /// Stops the threads that run. `late` is asked, with how many were told to, whether the time is up.
    pub(super) fn stop(&mut self, late: &impl Fn(usize) -> bool) -> Result<(), Trouble> {
        let mut interrupted = self.told();
        for thread in &mut self.threads {
            if thread.state != State::Seized {
                continue;
            }
            thread.state = match request(libc::PTRACE_INTERRUPT, thread.tid, 0) {
                Ok(()) => State::Interrupted,
                Err(_) => State::Ended,
            };
            interrupted += 1;
            if late(interrupted) {
                return Err(Trouble::Late(None));
            }
        }
        for thread in &mut self.threads {
            while thread.state == State::Interrupted {
                thread.look();
                if thread.state == State::Interrupted {
                    if late(interrupted) {
                        return Err(Trouble::Late(Some(thread.tid)));
                    }
                    std::thread::sleep(PAUSE);
                }
            }
            if late(interrupted) {
                return Err(Trouble::Late(None));
            }
        }
        Ok(())
    }

    /// Whether the kernel counts more threads of these processes than have stopped.
    pub(super) fn may_be_more(&self, pids: &[Pid]) -> bool {
        pids.iter().map(|pid| threads::count(*pid)).sum::<usize>() > self.stopped()
    }

    pub(super) fn stopped(&self) -> usize {
        let stopped = |t: &&Tracee| matches!(t.state, State::Stopped(_));
        self.threads.iter().filter(stopped).count()
    }

    /// Threads that were told to stop, whether they did yet or not.
    pub(super) fn told(&self) -> usize {
        let told = |t: &&Tracee| matches!(t.state, State::Interrupted | State::Stopped(_));
        self.threads.iter().filter(told).count()
    }

    /// Threads that were seized.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Lets go of those that have stopped. The others are let go of when this thread of memprof ends.
    pub(super) fn release(&mut self) {
        for thread in &mut self.threads {
            // A signal that it stopped for is lost if it is let go of without having been looked at.
            if matches!(thread.state, State::Seized | State::Interrupted) {
                thread.look();
            }
            if let State::Stopped(signal) = thread.state {
                let _ = request(libc::PTRACE_DETACH, thread.tid, signal);
                thread.state = State::Ended;
            }
        }
    }
}

impl Tracee {
    /// Finds out whether it has stopped.
    fn look(&mut self) {
        match wait(self.tid) {
            Waited::Nothing => {}
            Waited::Stopped { signal, .. } => self.state = State::Stopped(signal),
            Waited::Trapped { .. } => self.state = State::Stopped(0),
            Waited::Ended => self.state = State::Ended,
        }
    }
}

/// What a wait for a thread found.
enum Waited {
    Nothing,
    /// It stopped because this signal is on its way to it.
    Stopped {
        tid: i32,
        signal: i32,
    },
    /// It was interrupted, or is in a stop of its process.
    Trapped {
        tid: i32,
        in_stop: bool,
    },
    Ended,
}

/// Threads that a signal stopped since they were seized go on with it.
fn pass_signals_on() {
    loop {
        match wait(-1) {
            Waited::Nothing => return,
            Waited::Stopped { tid, signal } => drop(request(libc::PTRACE_CONT, tid, signal)),
            // It stays in the stop, and hears of SIGCONT.
            Waited::Trapped { tid, in_stop: true } => drop(request(libc::PTRACE_LISTEN, tid, 0)),
            Waited::Trapped { tid, .. } => drop(request(libc::PTRACE_CONT, tid, 0)),
            Waited::Ended => {}
        }
    }
}

/// News of a thread that this thread of memprof traces, -1 for any.
fn wait(tid: i32) -> Waited {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    let found = loop {
        // SAFETY: `status` is a valid place for it.
        match unsafe { libc::waitpid(tid, &raw mut status, flags) } {
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            found => break found,
        }
    };
    match found {
        0 => Waited::Nothing,
        // None is left, or this one is gone.
        -1 if tid == -1 => Waited::Nothing,
        -1 => Waited::Ended,
        tid if libc::WIFSTOPPED(status) => {
            let signal = libc::WSTOPSIG(status);
            if status >> 16 == 0 {
                return Waited::Stopped { tid, signal };
            }
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
            let in_stop = stops.contains(&signal);
            Waited::Trapped { tid, in_stop }
        }
        _ => Waited::Ended,
    }
}

/// A request that takes no address.
fn request(what: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    // SAFETY: none of the requests made here reads or writes memory of memprof's.
    match unsafe { libc::ptrace(what, tid, 0, libc::c_long::from(data)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
