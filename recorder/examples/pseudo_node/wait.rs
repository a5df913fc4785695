//! Calls that are interrupted or would block.

use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The state of a descriptor to wait for.
#[derive(Clone, Copy)]
pub enum Readiness {
    Read,
    Write,
}

/// Makes a call again while it is interrupted, and waits while it would block.
pub fn repeat(
    fd: &OwnedFd,
    until: Readiness,
    mut call: impl FnMut() -> nix::Result<usize>,
) -> Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => wait(fd, until)?,
            result => return Ok(result?),
        }
    }
}

/// Waits until the descriptor is ready.
pub fn wait(fd: &OwnedFd, until: Readiness) -> Result<()> {
    let flags = match until {
        Readiness::Read => PollFlags::POLLIN,
        Readiness::Write => PollFlags::POLLOUT,
    };
    match poll(&mut [PollFd::new(fd.as_fd(), flags)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
