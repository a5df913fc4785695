//! Closing descriptors that take long to close, without waiting for it.

use std::ffi::c_uint;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::unistd::{ForkResult, fork, pipe, read};

/// Has a new process hold these descriptors, so that this process can close its own at once. The new process ends when the
/// returned descriptor is closed: the kernel frees its memory first, and then closes the descriptors. It is a child that this
/// process does not wait for.
///
/// Returns `None` if no process could be created. Closing then takes as long as before.
pub fn close_later(descriptors: Vec<RawFd>) -> Option<OwnedFd> {
    let (end, hold) = pipe().ok()?;
    let mut keep = descriptors;
    keep.push(end.as_raw_fd());
    keep.sort_unstable();
    // SAFETY: the child only makes system calls, which are safe after a fork of a process with threads.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => Some(hold),
        Ok(ForkResult::Child) => {
            // Nobody must wait for the ends of other files, such as sockets and pipes.
            let mut next: c_uint = 0;
            for fd in keep.iter().filter_map(|fd| c_uint::try_from(*fd).ok()) {
                close_range(next, fd);
                next = fd + 1;
            }
            close_range(next, c_uint::MAX);
            while read(&end, &mut [0]) == Err(nix::Error::EINTR) {}
            // SAFETY: `_exit` runs no code of this program.
            unsafe { libc::_exit(0) }
        }
        Err(_) => None,
    }
}

/// Closes the descriptors from `first` up to `end`, which is not closed.
fn close_range(first: c_uint, end: c_uint) {
    if first < end {
        // SAFETY: the process uses none of these descriptors any more.
        unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;

    use super::*;

    /// Whether the other end of a pipe is closed within this time.
    fn is_closed(end: &OwnedFd, within: Duration) -> bool {
        let timeout = PollTimeout::try_from(within).unwrap();
        let mut polled = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, timeout).unwrap() > 0
    }

    #[test]
    fn the_process_keeps_these_descriptors_alone() {
        let minute = Duration::from_secs(60);
        let (kept, keeps) = pipe().unwrap();
        let (other, closes) = pipe().unwrap();
        let hold = close_later(vec![keeps.as_raw_fd()]).unwrap();
        drop((keeps, closes));
        assert!(is_closed(&other, minute));
        assert!(!is_closed(&kept, Duration::from_millis(50)));
        drop(hold);
        assert!(is_closed(&kept, minute));
    }
}
