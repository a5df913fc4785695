//! Locates the thread stacks of a process by each thread's stack pointer in
//! `/proc/PID/task/TID/syscall`.
//!
//! The file contains no stack pointer for a running thread, and none without the right to attach to the process (`ptrace_scope`).

use std::fs;
use std::time::{Duration, Instant};

use crate::ids::Pid;
use crate::proc_dir;

/// Maximum number of threads to read.
const MAX_THREADS: usize = 65_536;

/// The threads of a process other than its first one, whose stack is `[stack]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// The number of threads.
    pub count: usize,
    /// The known stack pointers, ascending.
    pub pointers: Vec<u64>,
}

impl Threads {
    /// The number of stack pointers in a range.
    pub fn within(&self, start: u64, end: u64) -> usize {
        let before = |addr| self.pointers.partition_point(|p| *p < addr);
        before(end) - before(start).min(before(end))
    }
}

/// Reads the threads of a process; empty if it does not exist.
pub fn read(pid: Pid) -> Threads {
    read_within(pid, Duration::MAX)
}

/// Reads the threads of a process, for at most `limit`; threads that are not read by then have no stack pointer.
pub fn read_within(pid: Pid, limit: Duration) -> Threads {
    let begun = Instant::now();
    let mut threads = Threads::default();
    let others = proc_dir::threads(pid).into_iter();
    for tid in others.filter(|tid| *tid != pid.0.cast_signed()) {
        threads.count += 1;
        if threads.count <= MAX_THREADS && begun.elapsed() < limit {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
            threads
                .pointers
                .extend(text.ok().as_deref().and_then(parse));
        }
    }
    threads.pointers.sort_unstable();
    threads
}

/// Parses `NUMBER ARGUMENTS… SP PC`, `-1 SP PC` or `running`.
fn parse(text: &str) -> Option<u64> {
    let pointer = text.split_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_last_but_one_word() {
        let call = "202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7f12345678a0 0x7f12340000b1\n";
        assert_eq!(parse(call), Some(0x7f12_3456_78a0));
        assert_eq!(
            parse("-1 0x7ffc00000010 0x401000\n"),
            Some(0x7ffc_0000_0010)
        );
        for other in ["running\n", "", "-1", "-1 7ff 0x1", "0x0"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn ranges_count_their_pointers() {
        let threads = Threads {
            count: 4,
            pointers: vec![10, 20, 20, 30],
        };
        assert_eq!(threads.within(10, 30), 3);
        assert_eq!((threads.within(11, 20), threads.within(30, 10)), (0, 0));
    }

    #[test]
    fn a_waiting_thread_tells_its_stack() {
        let (tell, told) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let local = 0u8;
            tell.send(std::ptr::from_ref(&local) as u64).unwrap();
            let _ = wait.recv();
        });
        let local = told.recv().unwrap();
        // The stack pointer is visible once the thread waits.
        let near = |t: &Threads| t.within(local - (64 << 10), local + (64 << 10));
        let limit = Instant::now() + Duration::from_secs(60);
        while near(&read(Pid(std::process::id()))) == 0 {
            assert!(Instant::now() < limit, "it was never shown");
            std::thread::yield_now();
        }
        let own = Pid(std::process::id());
        let none = read_within(own, Duration::ZERO);
        assert!(none.count > 0 && none.pointers.is_empty());
        drop(end);
        thread.join().unwrap();
        assert_eq!(read(Pid(u32::MAX >> 1)), Threads::default());
    }
}
