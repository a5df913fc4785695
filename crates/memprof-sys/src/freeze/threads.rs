//! The threads of a process, read from `/proc`.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::guard;
use crate::ids::Pid;
pub use crate::proc_dir::threads;
use crate::procfs::{Field, Stat, StatusFile, comm};
use crate::residency::{PROTECTED, has_capabilities};
use crate::text::printable;

/// The kernel's thread count, which includes ended threads that are not yet reaped; 0 for a process that is gone.
pub(super) fn count(pid: Pid) -> usize {
    // This does not read `stat`, because the kernel then sums up the CPU time of every thread.
    let status = StatusFile::for_process(pid).unwrap_or_default();
    status.number("Threads").unwrap_or(0)
}

/// Waits before the next poll of a thread that was asked to stop, or resumed to stop again, at `begun`. Most threads stop at once,
/// and a sleep takes much longer than that.
pub(super) fn pause(begun: Instant) {
    const SOON: Duration = Duration::from_micros(200);
    const PAUSE: Duration = Duration::from_micros(100);
    match begun.elapsed() < SOON {
        true => thread::yield_now(),
        false => thread::sleep(PAUSE),
    }
}

/// `stat` of a thread. For `/proc/TID/stat`, the kernel sums up the CPU time of all threads, of which there may be thousands.
fn stat(tid: i32) -> io::Result<Stat> {
    Stat::read(format_args!("{tid}/task/{tid}"))
}

/// The state letter of a thread.
pub(super) fn state(tid: i32) -> Option<char> {
    stat(tid).ok()?.state()
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

/// Whether a thread exits because of a signal, the end of its process or another thread's `execve`; false if it exits by itself.
pub fn is_killed(tid: i32) -> bool {
    // `PF_SIGNALED` of the kernel's flags: the thread has taken the signal.
    const SIGNALED: u64 = 0x400;
    let pending = || StatusFile::for_thread(tid).ok()?.mask("SigPnd");
    let flags = || stat(tid).ok()?.number::<u64>(Field::Flags);
    // The order matters: a signal that is no longer pending is in the flags.
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
    let name = tracer(tid).and_then(comm);
    name.is_some_and(|name| name.as_bytes() == guard::NAME.to_bytes())
}

/// The reason why a thread cannot be traced, after the kernel has refused, and what to do.
pub fn not_traceable(tid: i32, error: &io::Error) -> String {
    const PTRACE: u64 = 1 << 19;
    let refused = format!("its threads cannot be traced: {error}");
    match tracer(tid) {
        Some(by @ 1..) => {
            let name = comm(by).unwrap_or_default();
            let name = printable(&name);
            format!(
                "{refused}; process {by} ({name}), a debugger or another memprof, traces thread {tid}: end that first"
            )
        }
        _ if has_capabilities(PTRACE) => format!("{refused}; {PROTECTED}"),
        _ => format!("{refused}; run memprof as root or with CAP_SYS_PTRACE"),
    }
}

/// The thread that traces another one; 0 for none, `None` if the thread is gone.
fn tracer(tid: i32) -> Option<i32> {
    StatusFile::for_thread(tid).ok()?.number("TracerPid")
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
