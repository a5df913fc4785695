//! Makes a process reap a child that it does not know about.
//!
//! This stops one thread; the others run. A thread that is blocked in the kernel stops only when it unblocks. The guard polls such
//! a thread until then, so that it is stopped only for a moment.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::Watchdog;
use crate::freeze::inject::{Call, CallError, Injector};
use crate::freeze::threads::{pause, state, threads};
use crate::freeze::tracees::Tracees;
use crate::ids::Pid;
use crate::proc_dir;
use crate::procfs::{self, Field, Stat, StatusFile};

/// Minimum time for which threads may be stopped to reap the child, which takes less than a millisecond.
pub(super) const LEAST: Duration = Duration::from_millis(10);
/// Time for which the guard tries while memprof waits for it, and afterwards.
pub(super) const SOON: Duration = Duration::from_secs(2);
pub(super) const LATER: Duration = Duration::from_secs(60);

/// Time to wait for one thread before asking another one as well.
const EACH: Duration = Duration::from_millis(10);
/// Interval at which to look for a child to reap.
const PAUSE: Duration = Duration::from_millis(100);

/// The result of an attempt to reap a child.
pub(super) struct Reaped {
    /// Time for which threads were stopped.
    pub(super) stop: Duration,
    pub(super) is_gone: bool,
}

/// The system call by which a process reaps its child.
pub(super) fn call(child: i64) -> Call {
    let flags = libc::__WALL | libc::WNOHANG;
    Call {
        number: libc::SYS_wait4,
        args: [child.cast_unsigned(), 0, flags as u64, 0, 0, 0],
    }
}

/// Tries for at most `patience` to make a process reap its child, stopping its threads for at most `max` in total.
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
            // If the process has ended, init reaps the child.
            is_gone = !proc_dir::lives(pid) || reaper.round(&mut watchdog, max);
        }
    }
    // When this process exits, the kernel releases threads that were asked to stop and have not stopped yet.
    Reaped {
        stop: reaper.stop,
        is_gone,
    }
}

struct Reaper {
    pid: Pid,
    child: i64,
    /// `None` after the process executed another program.
    injector: Option<Injector>,
    tracees: Tracees,
    stop: Duration,
}

impl Reaper {
    /// Asks one more thread to stop, and makes threads that have stopped reap the child. Returns whether one has reaped it.
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
        let asked = Instant::now();
        let end = asked + EACH;
        let mut looked = asked;
        while self.tracees.is_waiting() && Instant::now() < end {
            watchdog.set(EACH);
            if !self.tracees.poll() {
                looked = Instant::now();
                pause(asked);
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

    /// Asks one more thread to stop, blocked threads last. Returns false if all threads were asked.
    fn ask_another(&mut self) -> bool {
        let mut new = threads(self.pid);
        new.retain(|tid| !self.tracees.knows(*tid));
        let blocked = |tid: &&i32| state(**tid) == Some('D');
        let next = new.iter().find(|tid| !blocked(tid)).or(new.first());
        let Some(next) = next else {
            return false;
        };
        // A thread that cannot be traced is skipped.
        let _ = self.tracees.seize_some(vec![*next]);
        self.tracees.interrupt();
        true
    }

    /// Makes a stopped thread reap the child. Returns whether the child is gone.
    fn wait4(&mut self, end: Instant, watchdog: &mut Watchdog) -> Result<bool, CallError> {
        let Some(injector) = &self.injector else {
            return Err(CallError::Changed);
        };
        let call = call(self.child);
        let returned = self.tracees.call(injector, &call, None, end, watchdog)?;
        // The process may have reaped the child itself.
        Ok([self.child, i64::from(-libc::ECHILD)].contains(&returned.value))
    }
}

/// Continues trying to reap the child that a holder left unreaped, while memprof no longer waits. The child's id may be unknown:
/// the child belongs to `pid` and started no earlier than `begun`, in ticks since boot.
pub(super) fn later(pid: Pid, begun: u64) {
    let start = Instant::now();
    while start.elapsed() < LATER && proc_dir::lives(pid) {
        let left = LATER.saturating_sub(start.elapsed());
        for child in children(pid) {
            if is_left(child, begun)
                && let Some(own_id) = own_id(child)
                && reap(pid, own_id, None, LEAST, left).is_gone
            {
                return;
            }
        }
        sleep(PAUSE);
    }
}

/// The children of a process.
fn children(pid: Pid) -> Vec<u32> {
    let lists = threads(pid)
        .into_iter()
        .map(|tid| procfs::text(&format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default());
    let lists: String = lists.collect();
    let children = lists.split_whitespace().map(str::parse);
    children.filter_map(Result::ok).collect()
}

/// Whether a process exited with status 0 or by SIGKILL, is a zombie, has no exit signal, and started at `begun` or later.
fn is_left(child: u32, begun: u64) -> bool {
    let Ok(stat) = Stat::read(child) else {
        return false;
    };
    let number = |field| stat.number::<u64>(field);
    let ended = matches!(number(Field::ExitCode), Some(0 | 9)) && stat.state() == Some('Z');
    ended
        && number(Field::ExitSignal) == Some(0)
        && number(Field::Started).is_some_and(|at| at >= begun)
}

/// The current time in ticks since boot: no later than the start time of any process that starts from now on.
pub(super) fn now() -> u64 {
    // The kernel's unit for user space is 1/100 s on every machine (USER_HZ).
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_millis() / 10).unwrap_or(0))
}

/// A process's id in its own pid namespace, which is also its parent's.
fn own_id(child: u32) -> Option<i64> {
    let status = StatusFile::for_thread(child).ok()?;
    status
        .field("NSpid")?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}
