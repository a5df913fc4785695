//! A kernel timer that kills the process that holds others if it makes no progress: because it is stopped, frozen with its cgroup,
//! blocked in the kernel, or gets no CPU time. The kernel then releases its tracees.
//!
//! SIGKILL is the only signal that acts on a process that does not run. It also ends a process in a frozen cgroup v2; in a frozen
//! cgroup v1, only once the cgroup is thawed.

use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Additional time after which the kernel releases a held process.
///
/// A machine with ten runnable tasks per CPU did not run this process for a quarter of a second.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// The timer.
#[derive(Debug)]
pub(crate) struct Watchdog(Option<Timer>);

impl Watchdog {
    /// Creates a timer for this process, which is not armed.
    ///
    /// # Errors
    /// The kernel refuses a timer.
    pub(crate) fn new() -> Result<Watchdog, String> {
        let kill = SigevNotify::SigevSignal {
            signal: Signal::SIGKILL,
            si_value: 0,
        };
        Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(kill))
            .map(|timer| Watchdog(Some(timer)))
            .map_err(|e| {
                format!("memprof's guard cannot have a timer (timer_create: {e}), without which it stops no process")
            })
    }

    /// No timer, for a process that nothing else waits for.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn none() -> Watchdog {
        Watchdog(None)
    }

    /// Arms the timer: kills this process after `time` and [`GRACE`], unless the timer is set again.
    pub(crate) fn set(&mut self, time: Duration) {
        self.expire(time + GRACE);
    }

    /// Disarms the timer.
    pub(crate) fn clear(&mut self) {
        self.expire(Duration::ZERO);
    }

    fn expire(&mut self, time: Duration) {
        let once = Expiration::OneShot(TimeSpec::from(time));
        if let Some(timer) = &mut self.0 {
            // This fails for invalid times.
            let _ = timer.set(once, TimerSetTimeFlags::empty());
        }
    }
}
