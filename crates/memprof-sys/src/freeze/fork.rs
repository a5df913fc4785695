//! A copy-on-write child of a process: the process's memory at one moment, while the process runs.

use std::time::{Duration, Instant};

use super::client::Guard;
use super::guard::message::{Asked, Said};
use super::micros;
use super::registers::Registers;
use super::stop_locks::StopLocks;
use super::watchdog::GRACE;
use crate::ids::Pid;

/// Maximum time to wait for an exact report of the process to finish before the child is removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The stopped child. Dropping this removes it without a trace in the process.
#[derive(Debug)]
pub struct Fork<'a> {
    /// The child's process id.
    pub child: Pid,
    /// The time for which the process was stopped; while the process is held, an upper limit of that time.
    pub stop: Duration,
    /// A time at which the process was stopped, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The registers of the process's threads.
    pub threads: Vec<Registers>,
    /// The process's anonymous memory at that time, resident and swapped out, in bytes, if the kernel's counters are exact.
    pub anonymous: Option<[u64; 2]>,
    /// If the process is held: the latest time of its release.
    pub held_until: Instant,
    /// `Some` while the process is held.
    held: Option<StopLocks>,
    of: Pid,
    /// `None` once the child is gone.
    guard: Option<&'a mut Guard>,
}

/// The error that a process could not be forked.
#[derive(Clone, Debug)]
pub struct ForkError {
    /// The reason.
    pub reason: String,
    /// The time for which the process was stopped for the attempt.
    pub stop: Duration,
}

/// The cost of removing a child.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// The time for which threads of the process were stopped to remove the child.
    pub stop: Duration,
    /// If the child is still a zombie: why, and for how long.
    pub remains: Option<String>,
}

impl<'a> Fork<'a> {
    /// Stops a process, forks it, and then releases it or holds it until [`Fork::release`].
    ///
    /// Forking and removing the child stop the process for at most `max`. After that, all threads run except the one that makes the
    /// child: for that thread, the kernel takes a time proportional to the size of the page tables.
    ///
    /// # Errors
    /// The reason why the process cannot be forked.
    pub fn start(
        guard: &'a mut Guard,
        pid: Pid,
        max: Duration,
        hold: bool,
    ) -> Result<Fork<'a>, ForkError> {
        let failed = |reason| ForkError {
            reason,
            stop: Duration::ZERO,
        };
        let mut claims = StopLocks::default();
        let claimed = claims.add(&[pid], max);
        claimed.map_err(|e| failed(e.to_string()))?;
        let asked = Asked::Fork {
            pid: pid.0,
            max_us: micros(max),
            hold,
        };
        match guard.ask(&asked, max).map_err(failed)? {
            Said::Forked {
                child,
                stop,
                left,
                at,
                threads,
                anonymous,
            } => Ok(Fork {
                child: Pid(child.cast_unsigned()),
                stop: if hold { max + GRACE } else { seconds(stop) },
                at,
                threads,
                anonymous,
                held_until: Instant::now() + seconds(left),
                held: hold.then_some(claims),
                of: pid,
                guard: Some(guard),
            }),
            Said::Failed { reason, stop } => Err(ForkError {
                reason,
                stop: seconds(stop),
            }),
            other => Err(failed(other.unexpected())),
        }
    }

    /// Releases the process if it is held. Returns whether it was stopped until this call.
    pub fn release(&mut self) -> bool {
        let Some(_claims) = self.held.take() else {
            return true;
        };
        let Some(guard) = self.guard.take() else {
            return false;
        };
        match guard.ask(&Asked::Release, PATIENCE) {
            Ok(Said::LetGo { stop, in_time }) => {
                self.stop = seconds(stop);
                self.guard = Some(guard);
                in_time
            }
            // The process of the guard that held both has ended, and the child with it.
            _ => false,
        }
    }

    /// Removes the child.
    pub fn end(mut self) -> Removed {
        self.remove()
    }

    fn remove(&mut self) -> Removed {
        self.release();
        let mut claims = StopLocks::default();
        // Without the claim, the guard tries again until the report is done.
        let _ = claims.add(&[self.of], PATIENCE);
        let said = self
            .guard
            .take()
            .map(|guard| guard.ask(&Asked::End, PATIENCE));
        match said {
            Some(Ok(Said::Ended { stop, remains })) => Removed {
                stop: seconds(stop),
                remains,
            },
            Some(Ok(other)) => Removed::unknown(other.unexpected()),
            Some(Err(why)) => Removed::unknown(why),
            None => Removed::default(),
        }
    }
}

impl Removed {
    fn unknown(why: String) -> Removed {
        Removed {
            stop: Duration::ZERO,
            remains: Some(format!(
                "its copy-on-write child may be in the list of processes still (a zombie): {why}"
            )),
        }
    }
}

fn seconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time).unwrap_or_default()
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.remove();
        }
    }
}
