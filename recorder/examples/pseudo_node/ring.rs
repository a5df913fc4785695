//! Sending and receiving by io_uring, one request at a time.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use nix::errno::Errno;

/// A ring for one direction of a connection.
pub struct Ring(IoUring);

impl Ring {
    /// The ring, which is made when it is first needed.
    pub fn of(ring: &mut Option<Self>) -> Result<&mut Self> {
        if ring.is_none() {
            let new = IoUring::new(2);
            *ring = Some(Self(new.map_err(|e| {
                Error::new(e.kind(), format!("cannot make an io_uring: {e}"))
            })?));
        }
        ring.as_mut().ok_or_else(|| Error::other("no ring"))
    }

    /// Sends bytes, as a socket or as a file.
    pub fn send(&mut self, fd: &OwnedFd, bytes: &[u8], as_socket: bool) -> nix::Result<usize> {
        let (fd, length) = (types::Fd(fd.as_raw_fd()), length(bytes));
        let entry = if as_socket {
            opcode::Send::new(fd, bytes.as_ptr(), length)
                .flags(nix::libc::MSG_NOSIGNAL)
                .build()
        } else {
            opcode::Write::new(fd, bytes.as_ptr(), length).build()
        };
        // SAFETY: the bytes are borrowed until the kernel has completed the request.
        unsafe { self.run(&entry) }
    }

    /// Receives bytes, as from a socket or as from a file.
    pub fn receive(
        &mut self,
        fd: &OwnedFd,
        room: &mut [u8],
        as_socket: bool,
    ) -> nix::Result<usize> {
        let (fd, length) = (types::Fd(fd.as_raw_fd()), length(room));
        let entry = if as_socket {
            opcode::Recv::new(fd, room.as_mut_ptr(), length).build()
        } else {
            opcode::Read::new(fd, room.as_mut_ptr(), length).build()
        };
        // SAFETY: the room is borrowed until the kernel has completed the request.
        unsafe { self.run(&entry) }
    }

    /// Runs one request to its end.
    ///
    /// # Safety
    /// The memory and the descriptor of the request are valid during the call.
    unsafe fn run(&mut self, entry: &Entry) -> nix::Result<usize> {
        // SAFETY: as the caller guarantees; this function returns only after the completion.
        unsafe { self.0.submission().push(entry) }.map_err(|_| Errno::EBUSY)?;
        loop {
            let submitted = self.0.submit_and_wait(1);
            if let Some(done) = self.0.completion().next() {
                let result = done.result();
                return usize::try_from(result).map_err(|_| Errno::from_raw(-result));
            }
            if let Err(e) = submitted.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
                && e != Errno::EINTR
            {
                // The kernel may still use the memory.
                eprintln!("pseudo_node: io_uring: {e}");
                std::process::abort();
            }
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
