//! Stops processes for a bounded time while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted, as a debugger does. No other process notices: the parent sees
//! no stop, a stopped process stays stopped, and if memprof dies, the kernel resumes the threads. Only
//! memprof's own command already has a tracer, memprof itself. SIGSTOP stops it; at its start it requested a
//! SIGCONT from the kernel for memprof's death (see `session::command`).
//!
//! A separate thread of memprof, the freezer, stops and releases the processes. It releases them when the time
//! is up, whatever the rest of memprof does. When it ends, the kernel releases threads that did not stop in time.
//!
//! `fork` has a stopped process make a copy-on-write child, so that its memory can be read while it runs on. `guard`
//! does this in a process of its own, by a system call that `inject` makes in one of the stopped threads. `loader` has a
//! single thread load a library.

mod claims;
mod counters;
mod estimate;
mod fork;
mod freezer;
pub mod guard;
#[cfg_attr(not(target_arch = "x86_64"), path = "freeze/inject_other.rs")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod loader;
mod registers;
mod threads;
mod tracees;
mod tracer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

pub(crate) use crate::clock::now_ns;
use crate::event::Pid;
use claims::Claims;
pub(crate) use counters::anonymous;
pub use estimate::{Costs, Estimate};
pub use fork::{Fork, Guard};
#[cfg(target_arch = "x86_64")]
pub(crate) use freezer::raise_priority;
#[cfg(target_arch = "x86_64")]
pub(crate) use inject::{Functions, LoadError, Loading};
#[cfg(target_arch = "x86_64")]
pub(crate) use loader::{Held, HoldError, Loader, State};
pub use registers::Registers;
pub use threads::stands_still;
pub(crate) use threads::{has_ended, is_killed, is_traced_here, threads};
use tracer::Tracer;

/// Default maximum time for which processes are stopped.
pub const MAX_FREEZE: Duration = Duration::from_millis(50);

/// Polling interval for the end of the freezer's thread.
const PAUSE: Duration = Duration::from_micros(100);

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
    requests: Option<SyncSender<Request>>,
    answers: Receiver<Answer>,
    /// Set when the processes are released.
    released: Arc<AtomicBool>,
    deadline: Instant,
    _freezer: Tracer<()>,
    /// Dropped last: the processes run by then.
    claims: Claims,
}

/// Statistics of a freeze.
#[derive(Clone, Debug, Default)]
pub struct FreezeStats {
    /// Time from the first stop request to the last release.
    pub duration: Duration,
    /// Threads that were requested to stop.
    pub threads: usize,
    /// Time for stopping and releasing.
    pub overhead: Duration,
}

/// The error if processes could not be stopped; they run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct FreezeError {
    /// The reason.
    pub reason: String,
    /// Statistics of the attempt.
    pub stats: FreezeStats,
    /// The total number of threads to stop.
    pub threads: usize,
    /// Whether the time ran out; a longer limit might help.
    pub timed_out: bool,
}

/// A message to the freezer.
#[derive(Debug)]
enum Request {
    /// Stop these processes, too.
    Stop(Vec<Pid>),
    /// Read the stopped threads' registers.
    Registers,
}

/// A message from the freezer.
#[derive(Debug)]
enum Answer {
    /// The processes are stopped until this time at the latest.
    Frozen(Instant),
    Registers(Vec<Registers>),
    Failed(FreezeError),
    Released(FreezeStats),
}

impl Frozen {
    /// Stops every thread of these processes, for `max` at most. A process that was stopped before stays stopped
    /// afterwards.
    ///
    /// # Errors
    /// Not every thread stopped in time, or one may not be traced (by another debugger); all run.
    pub fn stop(pids: &[Pid], max: Duration) -> Result<Frozen, FreezeError> {
        let mut claims = Claims::default();
        claims.add(pids, max)?;
        let (requests, inbox) = sync_channel(1);
        let (answer, answers) = sync_channel(2);
        let released = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&released);
        let freezer = Tracer::start("memprof-freeze", move || {
            freezer::run(max, &inbox, &answer, &flag);
        })
        .map_err(|e| {
            FreezeError::new(format!(
                "cannot start the thread that freezes processes: {e}"
            ))
        })?;
        let mut frozen = Frozen {
            requests: Some(requests),
            answers,
            released,
            deadline: Instant::now(),
            _freezer: freezer,
            claims,
        };
        frozen.stop_more(pids.to_vec())?;
        Ok(frozen)
    }

    /// Stops further processes, within the same time.
    ///
    /// # Errors
    /// As for [`Frozen::stop`].
    pub fn stop_more(&mut self, pids: Vec<Pid>) -> Result<(), FreezeError> {
        // At the first call, these are claimed already.
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.claims.add(&pids, left)?;
        if let Answer::Frozen(deadline) = self.ask(Request::Stop(pids))? {
            self.deadline = deadline;
        }
        Ok(())
    }

    /// The registers of the stopped threads; not of those that SIGSTOP stopped (memprof's own command).
    ///
    /// # Errors
    /// The time is up; the processes run.
    pub fn registers(&mut self) -> Result<Vec<Registers>, FreezeError> {
        match self.ask(Request::Registers)? {
            Answer::Registers(registers) => Ok(registers),
            _ => Ok(Vec::new()),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Answer, FreezeError> {
        let gone = || FreezeError::new("the thread that freezes processes ended early".to_owned());
        let requests = self.requests.as_ref().ok_or_else(gone)?;
        let sent = requests.send(request);
        match self.answers.recv() {
            Ok(Answer::Failed(error)) => Err(error),
            Ok(Answer::Released(stats)) => Err(FreezeError {
                timed_out: true,
                stats,
                ..FreezeError::new("the time limit was reached".to_owned())
            }),
            Ok(answer) => Ok(answer),
            Err(_) => {
                drop(sent);
                Err(gone())
            }
        }
    }

    /// The latest time of the release.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether all of the processes have been stopped up to now.
    pub fn is_frozen(&self) -> bool {
        !self.released.load(Ordering::SeqCst)
    }

    /// Releases the processes unless that has happened; returns the statistics.
    pub fn release(mut self) -> FreezeStats {
        self.requests = None;
        loop {
            match self.answers.recv() {
                Ok(Answer::Released(stats)) => return stats,
                Ok(_) => {}
                Err(_) => return FreezeStats::default(),
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // This ends the freezer.
        self.requests = None;
    }
}

impl FreezeError {
    fn new(reason: String) -> FreezeError {
        FreezeError {
            reason,
            stats: FreezeStats::default(),
            threads: 0,
            timed_out: false,
        }
    }
}

#[cfg(test)]
mod tests;
