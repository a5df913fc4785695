//! Has a process reap a child that it knows nothing of.
//!
//! One of its threads is stopped for that, the others run. A thread that is blocked in the kernel stops only when that ends: it is kept in
//! view until then, so that it is stopped for a moment only.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::Watchdog;
use crate::freeze::inject::{Call, CallError, Injector};
use crate::freeze::threads::{pause, state, threads};
use crate::freeze::tracees::Tracees;
use crate::ids::Pid;
use crate::{proc_dir, proc_text};

/// The least time for which a thread may be stopped for this: it takes less than a millisecond.
pub(super) const LEAST: Duration = Duration::from_millis(10);
/// How long the guard tries while memprof waits for it, and how long afterwards.
pub(super) const SOON: Duration = Duration::from_secs(2);
pub(super) const LATER: Duration = Duration::from_secs(60);

/// How long one thread is waited for before another one is asked, too.
const EACH: Duration = Duration::from_millis(10);
/// Time between two looks for a child that is to be reaped.
const PAUSE: Duration = Duration::from_millis(100);

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
            is_gone = !proc_dir::lives(pid) || reaper.round(&mut watchdog, max);
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

/// Goes on to reap the child that a holder has left, which has begun after this time (in ticks), while memprof waits no longer. Nobody may
/// know its id.
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
    let lists = threads(pid).into_iter().map(|tid| {
        proc_text::read(&format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default()
    });
    let lists: String = lists.collect();
    let children = lists.split_whitespace().map(str::parse);
    children.filter_map(Result::ok).collect()
}

/// Whether a process has ended by itself or by SIGKILL, sends no signal for that, and has begun after this time.
fn is_left(child: u32, begun: u64) -> bool {
    let Some(stat) = Stat::read(child) else {
        return false;
    };
    let number = |n| stat.number(n);
    let ended = matches!(number(Stat::EXIT_CODE), Some(0 | 9)) && stat.field(0) == Some("Z");
    ended
        && number(Stat::EXIT_SIGNAL) == Some(0)
        && number(Stat::BEGUN).is_some_and(|at| at >= begun)
}

/// Now, in ticks since the machine has started: no later than the beginning of a process that begins from now on.
pub(super) fn now() -> u64 {
    // The kernel's unit for user space is a hundredth of a second on every machine (USER_HZ).
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_millis() / 10).unwrap_or(0))
}

/// `/proc/PID/stat`, from the state on.
struct Stat(String);

impl Stat {
    const BEGUN: usize = 19;
    const EXIT_SIGNAL: usize = 35;
    const EXIT_CODE: usize = 49;

    fn read(pid: u32) -> Option<Stat> {
        let text = proc_text::read(&format!("/proc/{pid}/stat")).ok()?;
        // The name may have any characters.
        Some(Stat(text.rsplit_once(") ")?.1.to_owned()))
    }

    fn field(&self, n: usize) -> Option<&str> {
        self.0.split_ascii_whitespace().nth(n)
    }

    fn number(&self, n: usize) -> Option<u64> {
        self.field(n)?.parse().ok()
    }
}

/// The id of a process in its own namespace, which is that of its parent.
fn own_id(child: u32) -> Option<i64> {
    let status = proc_text::read(&format!("/proc/{child}/status")).ok()?;
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}
