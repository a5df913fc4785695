//! Stops processes for a bounded time while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted, as a debugger does. No other process notices: the parent sees
//! no stop, a stopped process stays stopped, and if memprof dies, the kernel resumes the threads. Only
//! memprof's own command already has a tracer, memprof itself. SIGSTOP stops it; at its start it requested a
//! SIGCONT from the kernel for memprof's death (see `session::command`).
//!
//! A process of its own, the `guard`, stops and releases the processes. It releases them when the time is up, whatever
//! memprof does, also if memprof is stopped. When it ends, the kernel releases threads that did not stop in time; and the kernel ends
//! it if it does not run itself (`watchdog`).
//!
//! `fork` has a stopped process make a copy-on-write child, so that its memory can be read while it runs on: the guard has
//! `inject` make a system call in one of the stopped threads. `loader` has a single thread load a library.

#[cfg(target_arch = "x86_64")]
mod apart;
mod claims;
mod client;
mod counters;
mod estimate;
mod fork;
mod freezer;
pub mod guard;
#[cfg_attr(not(target_arch = "x86_64"), path = "freeze/inject/unsupported.rs")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod loader;
mod registers;
pub mod threads;
mod tracees;
mod watchdog;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use crate::clock::now_ns;
use crate::ids::Pid;
#[cfg(target_arch = "x86_64")]
pub use apart::Apart;
use claims::Claims;
pub use client::{Guard, guards_run};
pub use counters::anonymous;
pub use estimate::{Costs, Estimate};
pub use fork::{Fork, ForkError, Removed};
use guard::message::{Asked, Said};
#[cfg(target_arch = "x86_64")]
pub use inject::{Functions, LoadError, Loading};
#[cfg(target_arch = "x86_64")]
pub use loader::{Held, HoldError, Loader, State};
pub use registers::Registers;
pub use threads::stands_still;
pub use threads::{has_ended, is_killed, is_traced_here, not_traceable, threads};

/// In microseconds.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Default maximum time for which processes are stopped.
pub const MAX_FREEZE: Duration = Duration::from_millis(50);

/// Polling interval for processes that memprof stops for something else.
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
pub struct Frozen<'g> {
    guard: &'g mut Guard,
    max: Duration,
    deadline: Instant,
    /// Before the stop.
    begun: Instant,
    /// Whether the guard has nothing more to say about them.
    is_over: bool,
    /// Dropped last: the processes run by then.
    claims: Claims,
}

/// Statistics of a freeze.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FreezeStats {
    /// Time from the first stop request to the last release.
    pub duration: Duration,
    /// Threads that were requested to stop.
    pub threads: usize,
    /// Time for stopping and releasing.
    pub overhead: Duration,
}

/// The error if processes could not be stopped; they run.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
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

impl Frozen<'_> {
    /// Stops every thread of these processes, for `max` at most. A process that was stopped before stays stopped
    /// afterwards.
    ///
    /// # Errors
    /// Not every thread stopped in time, or one may not be traced (by another debugger); all run.
    pub fn stop<'g>(
        guard: &'g mut Guard,
        pids: &[Pid],
        max: Duration,
    ) -> Result<Frozen<'g>, FreezeError> {
        Frozen::stop_for(guard, pids, max, false)
    }

    /// As [`Frozen::stop`]; the registers of their threads are read, too.
    ///
    /// # Errors
    /// As there.
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
        let mut claims = Claims::default();
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

    /// Stops further processes, within the same time.
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

    /// Asks for a stop.
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

    /// The kernel has let go of the processes in place of the guard.
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

    /// Whether all of the processes have been stopped up to now: the guard says so before it lets them run.
    pub fn is_frozen(&self) -> bool {
        !self.is_over && !self.guard.has_said()
    }

    /// Releases the processes unless that has happened; returns the statistics, and the registers if they were asked for.
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
