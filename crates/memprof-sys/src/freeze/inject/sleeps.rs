//! Sleeps in what the loader runs, as constructors do.
//!
//! The kernel keeps what a thread needs to go on with one interrupted wait (`restart_block`), and forgets it when the thread begins another
//! sleep, also one that is not interrupted. So that the thread's own wait goes on to its time, memprof sleeps in its place, and the thread
//! skips the call. If memprof is killed meanwhile, the thread sleeps itself.

use std::time::Duration;

use super::control::Waiting;
use super::seccomp::{Entry, Filters};
use super::{ARGS, Injector, Stopped};
use crate::freeze::registers::{self, NO_CALL, word};

/// What the kernel returns for a wait that goes on by what it keeps (`ERESTART_RESTARTBLOCK`).
const GOES_ON: i64 = -516;

/// Whether sleeps are to be taken over, and can be: seccomp filters see the skipped call, too.
pub(super) fn are_taken_over(thread: &Stopped, filters: &Filters) -> bool {
    let skipped = Entry {
        number: NO_CALL.cast_signed(),
        ..Entry::of(&thread.regs)
    };
    thread.regs[word::RAX].cast_signed() == GOES_ON && filters.check(thread.tid, &skipped).is_ok()
}

/// Sleeps in place of a thread that is stopped at the beginning of a call, if that is a sleep for which memprof waits.
pub(super) fn take_over(injector: &Injector, tid: i32, regs: &[u64], waiting: &mut Waiting<'_>) {
    if !asked(injector, regs).is_some_and(|time| waiting.pause(time)) {
        return;
    }
    let mut skipped = regs.to_vec();
    skipped[word::ORIG_RAX] = NO_CALL;
    skipped[word::RAX] = 0;
    // Otherwise it sleeps once more.
    let _ = registers::write(tid, &skipped);
}

/// For how long a thread is about to sleep; `None` if that is no sleep, or one until a certain time.
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
