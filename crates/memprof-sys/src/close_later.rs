//! Closing descriptors that take long to close, without waiting for it.

use std::ffi::c_uint;
use std::os::fd::RawFd;

use nix::unistd::{ForkResult, fork};

/// Has a new process hold these descriptors, so that this process can close its own at once. The new process ends at once, too:
/// the kernel frees its memory first, and then closes the descriptors. It is a child that this process does not wait for.
///
/// If no process can be created, closing takes as long as before.
pub fn close_later(mut keep: Vec<RawFd>) {
    keep.sort_unstable();
    // SAFETY: the child only calls functions that are safe after a fork of a process with threads: system calls.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        // Nobody must wait for the ends of other files, such as sockets and pipes.
        let mut next: c_uint = 0;
        for fd in keep.iter().filter_map(|fd| c_uint::try_from(*fd).ok()) {
            close_range(next, fd.wrapping_sub(1));
            next = fd.wrapping_add(1);
        }
        close_range(next, c_uint::MAX);
        // SAFETY: `_exit` runs no code of this program.
        unsafe { libc::_exit(0) }
    }
}

/// Closes the descriptors from `first` to `last`, if there are any in this range.
fn close_range(first: c_uint, last: c_uint) {
    if first <= last {
        // SAFETY: the process uses none of these descriptors any more.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
