//! A copy-on-write child of a process: its memory as it was at one moment, while the process runs on.

use std::time::{Duration, Instant};

use super::claims::Claims;
use super::client::Guard;
use super::guard::message::{Asked, Said};
use super::micros;
use super::registers::Registers;
use super::watchdog::GRACE;
use crate::ids::Pid;

/// Maximum time to wait for an exact report of the process before the child is removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The child, which is stopped. It is gone, without a trace in the process, when this is dropped.
#[derive(Debug)]
pub struct Fork<'a> {
    /// Its id.
    pub child: Pid,
    /// The time for which the process was stopped; while it is held, the most that this can become.
    pub stop: Duration,
    /// A moment at which it was stopped, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The registers of the process's threads.
    pub threads: Vec<Registers>,
    /// The process's anonymous memory then, resident and swapped out, in bytes, if the kernel's counters are exact.
    pub anonymous: Option<[u64; 2]>,
    /// The process is stopped until this time at the latest if it was to be held.
    pub held_until: Instant,
    /// While it is held.
    held: Option<Claims>,
    of: Pid,
    /// `None` once the child is gone.
    guard: Option<&'a mut Guard>,
}

/// Why there is no child.
#[derive(Clone, Debug)]
pub struct ForkError {
    /// The reason.
    pub reason: String,
    /// The time for which the process was stopped nevertheless.
    pub stop: Duration,
}

/// The cost of removing a child.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// The time for which threads of the process were stopped for that.
    pub stop: Duration,
    /// Why the child is still in the list of processes, and how long.
    pub remains: Option<String>,
}

impl<'a> Fork<'a> {
    /// Stops a process until it is forked, and releases it, or holds it until [`Fork::release`]. This and the removal stop it for
    /// `max` at most: after that, all threads run but the one that makes the child, for which the kernel takes as long as the page
    /// tables are large.
    ///
    /// # Errors
    /// The reason why it cannot be forked.
    pub fn of(
        guard: &'a mut Guard,
        pid: Pid,
        max: Duration,
        hold: bool,
    ) -> Result<Fork<'a>, ForkError> {
        let failed = |reason| ForkError {
            reason,
            stop: Duration::ZERO,
        };
        let mut claims = Claims::default();
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

    /// Releases the process if it is held. Returns whether it was stopped until then.
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
            // The child is gone with the process of the guard that held both.
            _ => false,
        }
    }

    /// Removes the child.
    pub fn end(mut self) -> Removed {
        self.remove()
    }

    fn remove(&mut self) -> Removed {
        self.release();
        let mut claims = Claims::default();
        // Otherwise the guard tries again until the report is done.
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
