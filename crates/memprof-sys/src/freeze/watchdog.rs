//! A timer of the kernel that kills the process which holds others, if that one makes no progress: because it is stopped, frozen
//! with its control group, waits in the kernel, or has no processor. The kernel then lets go of what it traced.
//!
//! SIGKILL is the only signal that a process takes which does not run. It ends one in a frozen control group (version 2), too; in
//! one of version 1 only when that is thawed.

use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// How much later than agreed the kernel lets go of a held process.
///
/// A machine on which every processor has ten tasks waiting has been seen not to run this process for a quarter of a second.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// The timer.
#[derive(Debug)]
pub(crate) struct Watchdog(Timer);

impl Watchdog {
    /// Makes one for this process, which is not set.
    ///
    /// # Errors
    /// The kernel has none.
    pub(crate) fn new() -> Result<Watchdog, String> {
        let kill = SigevNotify::SigevSignal {
            signal: Signal::SIGKILL,
            si_value: 0,
        };
        Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(kill))
            .map(Watchdog)
            .map_err(|e| {
                format!("memprof's guard cannot have a timer (timer_create: {e}), without which it stops no process")
            })
    }

    /// Kills this process after so much time and [`GRACE`], unless it is set again.
    pub(crate) fn set(&mut self, time: Duration) {
        self.expire(time + GRACE);
    }

    /// The process lives on.
    pub(crate) fn clear(&mut self) {
        self.expire(Duration::ZERO);
    }

    fn expire(&mut self, time: Duration) {
        let once = Expiration::OneShot(TimeSpec::from(time));
        // Fails for times that are none.
        let _ = self.0.set(once, TimerSetTimeFlags::empty());
    }
}
