//! Stops processes for a bounded time while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted with ptrace, as a debugger does. No other process notices: the parent sees no stop, a
//! stopped process stays stopped, and if memprof dies, the kernel resumes the threads. Only the command that memprof starts already
//! has a tracer, memprof itself. The command is stopped with SIGSTOP; at its start it requested a SIGCONT for memprof's
//! death (see `session::command`).
//!
//! A separate process, the `guard`, stops and releases the processes. It releases them when the time is up, whatever memprof does,
//! even if memprof is stopped. When the guard exits, the kernel releases threads that did not stop in time. If the guard itself
//! does not run, the kernel kills it (`watchdog`).
//!
//! `fork` makes a stopped process create a copy-on-write child, so that the child's memory can be read while the process runs: the
//! guard uses `inject` to make a system call in one of the stopped threads. `loader` makes a single thread load a library, and
//! `stopped_process` changes code while all threads are stopped; `executed_process` does that in a command that has not begun.

mod client;
mod counters;
mod estimate;
#[cfg(target_arch = "x86_64")]
mod executed_process;
mod fork;
mod freezer;
pub mod guard;
#[cfg_attr(not(target_arch = "x86_64"), path = "freeze/inject/unsupported.rs")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod loader;
mod registers;
mod stop_locks;
#[cfg(target_arch = "x86_64")]
mod stopped_process;
pub mod threads;
mod tracees;
mod watchdog;
#[cfg(target_arch = "x86_64")]
mod worker_process;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use crate::clock::now_ns;
use crate::ids::Pid;
pub use client::{Guard, guards_run};
pub use counters::anonymous;
pub use estimate::{Costs, Estimate};
#[cfg(target_arch = "x86_64")]
pub use executed_process::ExecutedProcess;
pub use fork::{Fork, ForkError, Removed};
use guard::message::{Asked, Said};
#[cfg(target_arch = "x86_64")]
pub use inject::{Functions, LoadError, Loading};
#[cfg(target_arch = "x86_64")]
pub use loader::{HoldError, Loader, StoppedThread, ThreadPosition};
pub use registers::Registers;
use stop_locks::StopLocks;
#[cfg(target_arch = "x86_64")]
pub use stopped_process::{StillProcess, StoppedProcess};
pub use threads::stands_still;
pub use threads::{has_ended, is_killed, is_traced_here, not_traceable, threads};
#[cfg(target_arch = "x86_64")]
pub use worker_process::WorkerProcess;

/// Converts a time to microseconds.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Default maximum time for which processes are stopped.
pub const MAX_FREEZE: Duration = Duration::from_millis(50);

/// Polling interval while waiting for a process that memprof stops for another purpose.
const PAUSE: Duration = Duration::from_micros(100);

/// Whether targets are stopped for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freeze {
    /// Targets run.
    #[default]
    No,
    /// Targets are stopped: several processes at once if that is short enough, otherwise one after another.
    Each,
    /// Targets are stopped: all processes at once, or none.
    Group,
}

/// Stopped processes. They resume when this is dropped or when the time is up.
#[derive(Debug)]
pub struct Frozen<'g> {
    guard: &'g mut Guard,
    max: Duration,
    deadline: Instant,
    /// When the stop was requested.
    begun: Instant,
    /// Whether the guard has sent its last message about these processes.
    is_over: bool,
    /// Dropped last, when the processes run again.
    claims: StopLocks,
}

/// Statistics of a freeze.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FreezeStats {
    /// Time from the first stop request to the last release.
    pub duration: Duration,
    /// Threads that were asked to stop.
    pub threads: usize,
    /// Time spent on stopping and releasing.
    pub overhead: Duration,
}

/// The error that processes could not be stopped; all of them run.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{reason}")]
pub struct FreezeError {
    /// The reason.
    pub reason: String,
    /// Statistics of the attempt.
    pub stats: FreezeStats,
    /// The total number of threads to stop.
    pub threads: usize,
    /// Whether the time limit was reached; a longer limit might help.
    pub timed_out: bool,
}

impl Frozen<'_> {
    /// Stops every thread of these processes, for at most `max`. A process that was already stopped stays stopped afterwards.
    ///
    /// # Errors
    /// Not every thread stopped in time, or a thread cannot be traced because it has another tracer. All threads run.
    pub fn stop<'g>(
        guard: &'g mut Guard,
        pids: &[Pid],
        max: Duration,
    ) -> Result<Frozen<'g>, FreezeError> {
        Frozen::stop_for(guard, pids, max, false)
    }

    /// Like [`Frozen::stop`], and also reads the registers of the threads.
    ///
    /// # Errors
    /// As for [`Frozen::stop`].
    pub fn stop_with_registers<'g>(
        guard: &'g mut Guard,
        pids: &[Pid],
        max: Duration,
    ) -> Result<Frozen<'g>, FreezeError> {
        Frozen::stop_for(guard, pids, max, true)
    }

    fn stop_for<'g>(
        guard: &'g mut Guard,
        pids: &[Pid],
        max: Duration,
        registers: bool,
    ) -> Result<Frozen<'g>, FreezeError> {
        let mut claims = StopLocks::default();
        claims.add(pids, max)?;
        let mut frozen = Frozen {
            guard,
            max,
            deadline: Instant::now(),
            begun: Instant::now(),
            is_over: false,
            claims,
        };
        frozen.ask(&Asked::Stop {
            pids: pids.iter().map(|pid| pid.0).collect(),
            max_us: micros(max),
            registers,
        })?;
        Ok(frozen)
    }

    /// Stops more processes, within the same time limit.
    ///
    /// # Errors
    /// As for [`Frozen::stop`].
    pub fn stop_more(&mut self, pids: &[Pid]) -> Result<(), FreezeError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.claims.add(pids, left)?;
        self.ask(&Asked::More {
            pids: pids.iter().map(|pid| pid.0).collect(),
        })
    }

    /// Requests a stop from the guard.
    fn ask(&mut self, what: &Asked) -> Result<(), FreezeError> {
        let said = self.guard.ask(what, self.max);
        let error = match said {
            Ok(Said::Stopped { until }) => {
                let left = Duration::from_nanos(until.saturating_sub(now_ns()));
                self.deadline = Instant::now() + left;
                return Ok(());
            }
            Ok(Said::TimeUp) => {
                let (stats, _) = self.end();
                return Err(FreezeError {
                    timed_out: true,
                    stats,
                    ..FreezeError::new("the time limit was reached".to_owned())
                });
            }
            Ok(Said::NotStopped(error)) => error,
            Ok(other) => self.lost(other.unexpected()),
            Err(why) => self.lost(why),
        };
        self.is_over = true;
        Err(error)
    }

    /// The error after the guard failed: the kernel has released the processes instead.
    fn lost(&self, why: String) -> FreezeError {
        FreezeError {
            stats: self.most(),
            ..FreezeError::new(why)
        }
    }

    /// Upper limits, for a freeze whose statistics are lost.
    fn most(&self) -> FreezeStats {
        FreezeStats {
            duration: self.begun.elapsed().min(self.max + watchdog::GRACE),
            ..FreezeStats::default()
        }
    }

    /// The latest time of the release.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether all of the processes have been stopped until now. The guard sends a message before it releases them.
    pub fn is_frozen(&self) -> bool {
        !self.is_over && !self.guard.has_said()
    }

    /// Releases the processes if they are still stopped. Returns the statistics, and the registers if they were requested.
    pub fn release(mut self) -> (FreezeStats, Vec<Registers>) {
        self.end()
    }

    fn end(&mut self) -> (FreezeStats, Vec<Registers>) {
        if std::mem::replace(&mut self.is_over, true) {
            return Default::default();
        }
        let mut said = self.guard.ask(&Asked::Release, Duration::ZERO);
        if matches!(said, Ok(Said::TimeUp)) {
            said = self.guard.answer(Duration::ZERO);
        }
        match said {
            Ok(Said::Released { stats, registers }) => (stats, registers),
            _ => (self.most(), Vec::new()),
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.end();
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
