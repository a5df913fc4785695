//! Sleeps in place of a thread whose library constructors sleep.
//!
//! The kernel stores the state for restarting one interrupted wait (`restart_block`), and overwrites it when the thread begins
//! another sleep, even one that is not interrupted. So that the thread's own wait still ends on time, memprof sleeps in the
//! thread's place, and the thread skips the call. If memprof is killed meanwhile, the thread sleeps itself.

use std::time::Duration;

use super::ptrace::Waiting;
use super::seccomp::{Entry, Filters};
use super::{ARGS, Injector, Stopped};
use crate::freeze::registers::{self, NO_CALL, word};

/// The kernel's result for a wait that is restarted from the stored state (`ERESTART_RESTARTBLOCK`).
const GOES_ON: i64 = -516;

/// Whether sleeps must be taken over and can be: seccomp filters also see the skipped call.
pub(super) fn are_taken_over(thread: &Stopped, filters: &Filters) -> bool {
    let skipped = Entry {
        number: NO_CALL.cast_signed(),
        ..Entry::from_registers(&thread.regs)
    };
    thread.regs[word::RAX].cast_signed() == GOES_ON && filters.check(thread.tid, &skipped).is_ok()
}

/// Sleeps in place of a thread that is stopped at the entry of a system call, if the call is a sleep that ends in time.
pub(super) fn take_over(injector: &Injector, tid: i32, regs: &[u64], waiting: &mut Waiting<'_>) {
    if !asked(injector, regs).is_some_and(|time| waiting.pause(time)) {
        return;
    }
    let mut skipped = regs.to_vec();
    skipped[word::ORIG_RAX] = NO_CALL;
    skipped[word::RAX] = 0;
    // If this fails, the thread sleeps once more.
    let _ = registers::write(tid, &skipped);
}

/// The time for which a thread is about to sleep; `None` if the call is not a sleep or has an absolute time.
fn asked(injector: &Injector, regs: &[u64]) -> Option<Duration> {
    let [first, flags, third, ..] = ARGS.map(|place| regs[place]);
    let at = match regs[word::ORIG_RAX].cast_signed() {
        libc::SYS_nanosleep => first,
        libc::SYS_clock_nanosleep if flags == 0 => third,
        _ => return None,
    };
    let bytes = injector.read(at, 16).ok()?;
    let (seconds, ns) = bytes.split_at(8);
    let seconds = u64::from_le_bytes(seconds.try_into().ok()?);
    let ns = u64::from_le_bytes(ns.try_into().ok()?);
    let is_valid = i64::try_from(seconds).is_ok() && ns < 1_000_000_000;
    is_valid.then(|| Duration::new(seconds, ns as u32))
}
