//! The holder: the thread that stops and releases the processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;

use super::threads;
use super::tracees::{Tracees, Trouble};
use super::{Answer, NotHeld, Stood};
use crate::event::Pid;

/// Time reserved for releasing one thread: released threads compete with the holder for the CPU. The reserve
/// shortens the time for stopping and scanning.
const RELEASE: Duration = Duration::from_micros(8);
/// Nice value of the holder: the highest priority.
const NICE: libc::c_int = -20;
/// Polling interval for a process that was sent SIGSTOP.
const PAUSE: Duration = Duration::from_micros(100);
/// Maximum number of rounds that look for newly created threads.
const MAX_ROUNDS: usize = 16;

/// The holder's main loop: stops processes on request, and releases them on request or when the time is up.
pub(super) fn run(
    max: Duration,
    orders: &Receiver<Vec<Pid>>,
    answers: &SyncSender<Answer>,
    let_go: &AtomicBool,
) {
    hurry();
    let mut holding = Holding::new(max);
    let mut failed = None;
    // Ends on a release request (the channel is closed) or when the time is up.
    while let Ok(pids) = orders.recv_timeout(holding.left()) {
        if let Err(why) = holding.stop(&pids) {
            failed = Some(why);
            break;
        }
        let _ = answers.send(Answer::Still(holding.until()));
    }
    let_go.store(true, Ordering::SeqCst);
    let of = holding.threads();
    let stood = holding.release();
    let _ = answers.send(match failed {
        None => Answer::LetGo(stood),
        Some(why) => Answer::Failed(NotHeld { stood, of, ..why }),
    });
}

/// Raises the holder's priority, so that released threads do not preempt it before it has released the rest.
fn hurry() {
    // SAFETY: a plain system call on the calling thread. If it is not permitted, holds take longer.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// The processes that the holder stops.
#[derive(Debug)]
struct Holding {
    max: Duration,
    /// Time of the first stop request.
    since: Option<Instant>,
    stopping: Duration,
    tracees: Tracees,
    traced: Vec<Pid>,
    /// Processes that were sent SIGSTOP.
    signalled: Vec<Pid>,
    signalled_threads: usize,
}

impl Holding {
    fn new(max: Duration) -> Holding {
        Holding {
            max,
            since: None,
            stopping: Duration::ZERO,
            tracees: Tracees::default(),
            traced: Vec::new(),
            signalled: Vec::new(),
            signalled_threads: 0,
        }
    }

    fn threads(&self) -> usize {
        self.tracees.len() + self.signalled_threads
    }

    /// The time at which the release of `threads` threads must begin.
    fn until_with(&self, threads: usize) -> Instant {
        let reserve = RELEASE.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX));
        self.since.unwrap_or_else(Instant::now) + self.max.saturating_sub(reserve)
    }

    fn until(&self) -> Instant {
        self.until_with(self.tracees.stopped())
    }

    fn left(&self) -> Duration {
        match self.since {
            Some(_) => self.until().saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    fn stop(&mut self, pids: &[Pid]) -> Result<(), NotHeld> {
        // Work that can be done while the processes run.
        let mut signalled = Vec::new();
        for pid in pids {
            match threads::is_traced_here(*pid) {
                true if threads::stands_still(*pid) => {}
                true => signalled.push(*pid),
                false => {
                    let seized = self.tracees.seize(*pid);
                    seized.map_err(|trouble| self.trouble(*pid, &trouble))?;
                    self.traced.push(*pid);
                }
            }
        }
        let begun = Instant::now();
        self.since.get_or_insert(begun);
        let stopped = self.stop_all(&signalled);
        self.stopping += begun.elapsed();
        stopped
    }

    fn stop_all(&mut self, signalled: &[Pid]) -> Result<(), NotHeld> {
        let first = self.traced.first().copied().unwrap_or(Pid(0));
        for pid in signalled {
            kill(nix_pid(*pid), Signal::SIGSTOP).map_err(|e| {
                NotHeld::because(format!("cannot send SIGSTOP to process {pid}: {e}"))
            })?;
            self.signalled.push(*pid);
        }
        for _ in 0..MAX_ROUNDS {
            let (since, max) = (self.since, self.max);
            let late = |told: usize| {
                let reserve = RELEASE.saturating_mul(u32::try_from(told).unwrap_or(u32::MAX));
                since.is_some_and(|since| since.elapsed() + reserve >= max)
            };
            let stopped = self.tracees.stop(&late);
            stopped.map_err(|trouble| self.trouble(first, &trouble))?;
            // Threads that were created meanwhile.
            if !self.tracees.may_be_more(&self.traced) {
                break;
            }
            let mut fresh = 0;
            for pid in self.traced.clone() {
                let seized = self.tracees.seize(pid);
                fresh += seized.map_err(|trouble| self.trouble(pid, &trouble))?;
            }
            if fresh == 0 {
                break;
            }
        }
        for pid in signalled {
            self.await_signalled(*pid)?;
        }
        Ok(())
    }

    /// Waits until SIGSTOP has stopped every thread of a process.
    fn await_signalled(&mut self, pid: Pid) -> Result<(), NotHeld> {
        let mut stopped = std::collections::HashSet::new();
        loop {
            let before = stopped.len();
            for tid in threads::threads(pid) {
                while stopped.insert(tid) && !threads::is_stopped(tid) {
                    stopped.remove(&tid);
                    if Instant::now() >= self.until_with(stopped.len()) {
                        return Err(self.trouble(pid, &Trouble::Late(Some(tid))));
                    }
                    thread::sleep(PAUSE);
                }
            }
            // Stopped threads create no threads.
            if stopped.len() == before {
                self.signalled_threads += before;
                return Ok(());
            }
        }
    }

    fn trouble(&self, pid: Pid, trouble: &Trouble) -> NotHeld {
        let stood = self.tracees.stopped() + self.signalled_threads;
        match trouble {
            Trouble::Refused(what, e) => {
                NotHeld::because(format!("cannot stop process {pid}: {what}: {e}"))
            }
            Trouble::Late(waited) => {
                let waited = match waited {
                    Some(tid) if threads::state(*tid) == Some('D') => {
                        format!("; thread {tid} hangs in the kernel")
                    }
                    _ => String::new(),
                };
                let ms = self.since.map_or(0.0, |s| s.elapsed().as_secs_f64() * 1e3);
                NotHeld {
                    late: true,
                    ..NotHeld::because(format!(
                        "{stood} of {} threads had stopped after {ms:.1} ms{waited}",
                        self.threads().max(stood)
                    ))
                }
            }
        }
    }

    fn release(mut self) -> Stood {
        let begun = Instant::now();
        let threads = self.tracees.told() + self.signalled_threads;
        self.tracees.release();
        for pid in &self.signalled {
            let _ = kill(nix_pid(*pid), Signal::SIGCONT);
        }
        Stood {
            lasted: self.since.map(|s| s.elapsed()).unwrap_or_default(),
            threads,
            stopping: self.stopping + begun.elapsed(),
        }
    }
}

pub(super) fn nix_pid(pid: Pid) -> NixPid {
    NixPid::from_raw(pid.0.cast_signed())
}
