//! Has a process reap a child that it knows nothing of.
//!
//! One of its threads is stopped for that, the others run. A thread that is blocked in the kernel stops only when that ends: it is kept in
//! view until then, so that it is stopped for a moment only.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Watchdog;
use crate::event::Pid;
use crate::freeze::inject::{Call, CallError, Injector};
use crate::freeze::threads::{has_ended, state, threads};
use crate::freeze::tracees::Tracees;

/// The least time for which a thread may be stopped for this: it takes less than a millisecond.
pub(super) const LEAST: Duration = Duration::from_millis(10);
/// How long the guard tries while memprof waits for it, and how long afterwards.
pub(super) const SOON: Duration = Duration::from_secs(2);
pub(super) const LATER: Duration = Duration::from_secs(60);

/// Time between two looks at threads that are to stop.
const LOOK: Duration = Duration::from_micros(200);
/// How long one thread is waited for before another one is asked, too.
const EACH: Duration = Duration::from_millis(10);

/// What became of it.
pub(super) struct Reaped {
    /// Time for which threads were stopped.
    pub(super) stop: Duration,
    pub(super) is_gone: bool,
}

/// The call by which a process reaps its child.
pub(super) fn call(child: i64) -> Call {
    let flags = libc::__WALL | libc::WNOHANG;
    Call {
        number: libc::SYS_wait4,
        args: [child.cast_unsigned(), 0, flags as u64, 0, 0, 0],
    }
}

/// Tries for `patience` to have a process reap its child, and stops its threads for `max` in all.
pub(super) fn reap(
    pid: Pid,
    child: i64,
    injector: Option<Injector>,
    max: Duration,
    patience: Duration,
) -> Reaped {
    let begun = Instant::now();
    let mut reaper = Reaper {
        pid,
        child,
        injector,
        tracees: Tracees::default(),
        stop: Duration::ZERO,
    };
    let mut is_gone = false;
    if let Ok(mut watchdog) = Watchdog::new() {
        while !is_gone && begun.elapsed() < patience && reaper.stop < max {
            // The kernel's process that reaps all others has it then.
            is_gone = has_ended(pid.0.cast_signed()) || reaper.round(&mut watchdog, max);
        }
    }
    // What is still to stop is let go when this process ends.
    Reaped {
        stop: reaper.stop,
        is_gone,
    }
}

struct Reaper {
    pid: Pid,
    child: i64,
    /// `None` for a process that executes another program since.
    injector: Option<Injector>,
    tracees: Tracees,
    stop: Duration,
}

impl Reaper {
    /// Asks one more thread to stop, and has those that do reap the child. Returns whether one has.
    fn round(&mut self, watchdog: &mut Watchdog, max: Duration) -> bool {
        if self.injector.is_none() && !self.tracees.is_waiting() {
            watchdog.clear();
            self.injector = Injector::prepare(self.pid).ok();
        }
        watchdog.set(EACH);
        if !self.ask_another() {
            sleep(EACH);
            self.tracees.forget_released();
        }
        let end = Instant::now() + EACH;
        let mut looked = Instant::now();
        while self.tracees.is_waiting() && Instant::now() < end {
            watchdog.set(LOOK);
            if !self.tracees.poll() {
                looked = Instant::now();
                sleep(LOOK);
                continue;
            }
            let left = max.saturating_sub(self.stop);
            let done = self.wait4(looked + left, watchdog);
            self.tracees.release();
            self.stop += looked.elapsed();
            looked = Instant::now();
            match done {
                Ok(true) => return true,
                Err(CallError::Changed) => {
                    self.injector = None;
                    break;
                }
                _ => {}
            }
        }
        false
    }

    /// Asks a thread to stop that was not asked before, the blocked ones last. Returns whether there is one.
    fn ask_another(&mut self) -> bool {
        let mut new = threads(self.pid);
        new.retain(|tid| !self.tracees.knows(*tid));
        let blocked = |tid: &&i32| state(**tid) == Some('D');
        let next = new.iter().find(|tid| !blocked(tid)).or(new.first());
        let Some(next) = next else {
            return false;
        };
        // One that cannot be traced is passed over.
        let _ = self.tracees.seize_some(vec![*next]);
        self.tracees.interrupt();
        true
    }

    /// Has a stopped thread reap the child. Returns whether the child is gone.
    fn wait4(&mut self, end: Instant, watchdog: &mut Watchdog) -> Result<bool, CallError> {
        let Some(injector) = &self.injector else {
            return Err(CallError::Changed);
        };
        let call = call(self.child);
        let returned = self.tracees.call(injector, &call, None, end, watchdog)?;
        // The process may have reaped it itself.
        Ok([self.child, i64::from(-libc::ECHILD)].contains(&returned.value))
    }
}

/// Goes on to reap what a holder has left, while memprof waits no longer.
pub(super) fn later(pid: Pid, child: i64) -> io::Result<()> {
    reap(pid, child, None, LEAST, LATER);
    Ok(())
}
