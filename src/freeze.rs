//! Stops processes for a bounded time while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted, as a debugger does. No other process notices: the parent sees
//! no stop, a stopped process stays stopped, and if memprof dies, the kernel resumes the threads. Only
//! memprof's own command already has a tracer, memprof itself. SIGSTOP stops it; at its start it requested a
//! SIGCONT from the kernel for memprof's death (see `session::command`).
//!
//! A separate thread of memprof, the holder, stops and releases the processes. It releases them when the time
//! is up, whatever the rest of memprof does. When it ends, the kernel releases threads that did not stop in time.

mod estimate;
mod threads;
mod tracees;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;

use crate::event::Pid;
pub use estimate::{Costs, Need};
pub use threads::stands_still;
use tracees::{Tracees, Trouble};

/// Default maximum time for which processes are stopped.
pub const MAX_FREEZE: Duration = Duration::from_millis(50);

/// Time reserved for releasing one thread: released threads compete with the holder for the CPU. The reserve
/// shortens the time for stopping and scanning.
const RELEASE: Duration = Duration::from_micros(8);
/// Nice value of the holder: the highest priority.
const NICE: libc::c_int = -20;
/// Polling interval for a process that was sent SIGSTOP.
const PAUSE: Duration = Duration::from_micros(100);
/// Maximum number of rounds that look for newly created threads.
const MAX_ROUNDS: usize = 16;

/// Whether a target is stopped for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freeze {
    /// It runs.
    #[default]
    No,
    /// It is stopped: several processes at once if that is short enough, else one after another.
    Each,
    /// It is stopped: all processes at once or none.
    Group,
}

/// Stopped processes. They resume when this is dropped, or when the time is up.
#[derive(Debug)]
pub struct Frozen {
    orders: Option<SyncSender<Vec<Pid>>>,
    answers: Receiver<Answer>,
    /// Set when the processes are released.
    let_go: Arc<AtomicBool>,
    until: Instant,
    holder: Option<thread::JoinHandle<()>>,
    /// The `/proc` directory of the holder thread, which exists while it lives.
    shown: PathBuf,
}

/// Statistics of a hold.
#[derive(Clone, Debug, Default)]
pub struct Stood {
    /// Time from the first stop request to the last release.
    pub lasted: Duration,
    /// Threads that were requested to stop.
    pub threads: usize,
    /// Time for stopping and releasing.
    pub stopping: Duration,
}

/// The error if processes could not be stopped; they run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotHeld {
    /// The reason.
    pub why: String,
    /// Statistics of the attempt.
    pub stood: Stood,
    /// The total number of threads to stop.
    pub of: usize,
    /// Whether the time ran out; a longer limit might help.
    pub late: bool,
}

/// A message from the holder.
#[derive(Debug)]
enum Answer {
    /// The processes are stopped until this time at the latest.
    Still(Instant),
    Failed(NotHeld),
    LetGo(Stood),
}

impl Frozen {
    /// Stops every thread of these processes, for `max` at most. A process that was stopped before stays stopped
    /// afterwards.
    ///
    /// # Errors
    /// Not every thread stopped in time, or one may not be traced (by another debugger); all run.
    pub fn stop(pids: &[Pid], max: Duration) -> Result<Frozen, NotHeld> {
        let (orders, inbox) = sync_channel(1);
        let (answer, answers) = sync_channel(2);
        let let_go = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&let_go);
        let (tell, told) = sync_channel(1);
        let holder = thread::Builder::new()
            .name("memprof-freeze".into())
            .spawn(move || {
                let _ = tell.send(nix::unistd::gettid());
                hurry();
                hold(Holding::new(max), &inbox, &answer, &seen);
            })
            .map_err(|e| {
                NotHeld::because(format!(
                    "cannot start the thread that freezes processes: {e}"
                ))
            })?;
        let own = told.recv().unwrap_or(NixPid::from_raw(0));
        let mut frozen = Frozen {
            orders: Some(orders),
            answers,
            let_go,
            until: Instant::now(),
            holder: Some(holder),
            shown: PathBuf::from(format!("/proc/self/task/{own}")),
        };
        frozen.stop_more(pids.to_vec())?;
        Ok(frozen)
    }

    /// Stops further processes, within the same time.
    ///
    /// # Errors
    /// As for [`Frozen::stop`].
    pub fn stop_more(&mut self, pids: Vec<Pid>) -> Result<(), NotHeld> {
        let gone = || NotHeld::because("the thread that freezes processes ended early".to_owned());
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        let sent = orders.send(pids);
        match self.answers.recv() {
            Ok(Answer::Still(until)) => {
                self.until = until;
                Ok(())
            }
            Ok(Answer::Failed(why)) => Err(why),
            Ok(Answer::LetGo(stood)) => Err(NotHeld {
                late: true,
                stood,
                ..NotHeld::because("the time limit was reached".to_owned())
            }),
            Err(_) => {
                drop(sent);
                Err(gone())
            }
        }
    }

    /// The latest time of the release.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether all of the processes have been stopped up to now.
    pub fn is_held(&self) -> bool {
        !self.let_go.load(Ordering::SeqCst)
    }

    /// Releases the processes unless that has happened; returns the statistics.
    pub fn release(mut self) -> Stood {
        self.orders = None;
        loop {
            match self.answers.recv() {
                Ok(Answer::LetGo(stood)) => return stood,
                Ok(_) => {}
                Err(_) => return Stood::default(),
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(holder) = self.holder.take() {
            let _ = holder.join();
        }
        // The kernel releases the holder's remaining tracees only after its thread can be joined.
        while self.shown.exists() {
            thread::sleep(PAUSE);
        }
    }
}

impl NotHeld {
    fn because(why: String) -> NotHeld {
        NotHeld {
            why,
            stood: Stood::default(),
            of: 0,
            late: false,
        }
    }
}

/// Raises the holder's priority, so that released threads do not preempt it before it has released the rest.
fn hurry() {
    // SAFETY: a plain system call on the calling thread. If it is not permitted, holds take longer.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// The holder's main loop: stops processes on request, and releases them on request or when the time is up.
fn hold(
    mut holding: Holding,
    orders: &Receiver<Vec<Pid>>,
    answers: &SyncSender<Answer>,
    let_go: &AtomicBool,
) {
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
            Trouble::Refused(what, e) => NotHeld::because(format!(
                "cannot stop process {pid}: {what}: {e}; detach other debuggers, or run memprof as root \
                     or with CAP_SYS_PTRACE"
            )),
            Trouble::Late(waited) => {
                let waited = match waited {
                    Some(tid) if threads::state(*tid) == Some('D') => {
                        format!("; thread {tid} is blocked in the kernel (state D)")
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

fn nix_pid(pid: Pid) -> NixPid {
    NixPid::from_raw(pid.0.cast_signed())
}

#[cfg(test)]
mod tests;
