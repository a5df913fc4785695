//! The threads of a process, read from `/proc`.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::guard;
use crate::ids::Pid;
use crate::proc_dir;
pub use crate::proc_dir::threads;
use crate::proc_text;
use crate::residency::{PROTECTED, has_capabilities};
use crate::text::printable;

/// The kernel's thread count, including ended threads that are not yet reaped; 0 for a process that is
/// gone.
pub(super) fn count(pid: Pid) -> usize {
    // Not `stat`, for which the kernel sums up the CPU time of every thread.
    let status = proc_dir::text(pid, "status").unwrap_or_default();
    let count = status.lines().find_map(|l| l.strip_prefix("Threads:"));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// Lets others run until the next look at a thread that was asked to stop, or resumed to stop again, at `begun`. Most stop at once, and
/// a sleep takes much longer than that.
pub(super) fn pause(begun: Instant) {
    const SOON: Duration = Duration::from_micros(200);
    const PAUSE: Duration = Duration::from_micros(100);
    match begun.elapsed() < SOON {
        true => thread::yield_now(),
        false => thread::sleep(PAUSE),
    }
}

/// The state letter of a thread.
pub(super) fn state(tid: i32) -> Option<char> {
    let stat = proc_text::read(&format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether no thread of the process runs.
pub fn stands_still(pid: Pid) -> bool {
    threads(pid).into_iter().all(is_stopped)
}

pub(super) fn is_stopped(tid: i32) -> bool {
    state(tid).is_none_or(|s| matches!(s, 'T' | 't' | 'Z' | 'X'))
}

/// Whether a thread has ended.
pub fn has_ended(tid: i32) -> bool {
    state(tid).is_none_or(|s| matches!(s, 'Z' | 'X'))
}

/// Whether a signal ends a thread, or the end of its process, or another thread's `exec`; `false` if it exits by itself.
pub fn is_killed(tid: i32) -> bool {
    // The thread has taken the signal in: `PF_SIGNALED` of the kernel's flags.
    const SIGNALED: u64 = 0x400;
    let read = |name| proc_text::read(&format!("/proc/{tid}/{name}")).unwrap_or_default();
    let pending = || {
        let status = read("status");
        let mask = status.lines().find_map(|l| l.strip_prefix("SigPnd:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
    };
    let flags = || {
        let stat = read("stat");
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.split(' ').nth(6)?.parse::<u64>().ok()
    };
    // In this order: what is not pending any more is in the flags.
    pending().is_some_and(|mask| mask >> (libc::SIGKILL - 1) & 1 != 0)
        || flags().is_some_and(|flags| flags & SIGNALED != 0)
}

/// Whether a thread of this process traces the first thread of another one.
pub fn is_traced_here(pid: Pid) -> bool {
    is_traced_by(pid, &"self")
}

/// Whether a thread of the process `by` traces the first thread of another one.
pub(super) fn is_traced_by(pid: Pid, by: &dyn Display) -> bool {
    tracer(pid.0.cast_signed())
        .is_some_and(|tracer| Path::new(&format!("/proc/{by}/task/{tracer}")).exists())
}

/// Whether a guard, of any memprof, traces a thread.
pub(super) fn is_traced_by_guard(tid: i32) -> bool {
    let name = |tracer| proc_text::read(&format!("/proc/{tracer}/comm")).ok();
    let name = tracer(tid).and_then(name);
    name.is_some_and(|name| name.as_bytes().trim_ascii_end() == guard::NAME.to_bytes())
}

/// Why a thread cannot be traced, after the kernel has refused, and what to do.
pub fn not_traceable(tid: i32, error: &io::Error) -> String {
    const PTRACE: u64 = 1 << 19;
    let refused = format!("its threads cannot be traced: {error}");
    match tracer(tid) {
        Some(by @ 1..) => {
            let name = proc_text::read(&format!("/proc/{by}/comm")).unwrap_or_default();
            let name = printable(name.trim_end());
            format!(
                "{refused}; process {by} ({name}), a debugger or another memprof, traces thread {tid}: end that first"
            )
        }
        _ if has_capabilities(PTRACE) => format!("{refused}; {PROTECTED}"),
        _ => format!("{refused}; run memprof as root or with CAP_SYS_PTRACE"),
    }
}

/// The thread that traces another one; 0 for none.
fn tracer(tid: i32) -> Option<i32> {
    let status = proc_text::read(&format!("/proc/{tid}/status")).ok()?;
    let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_counts_the_threads_that_are_listed() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        let own = Pid(std::process::id());
        // Other tests start and end threads meanwhile.
        let agree = || (0..1000).any(|_| count(own) == threads(own).len());
        assert!(agree() && count(own) >= 2);
        drop(end);
        let _ = thread.join();
        assert_eq!(count(Pid(u32::MAX >> 1)), 0);
    }
}
