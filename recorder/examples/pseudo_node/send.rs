//! Sending bytes by every interface that the kernel has for it.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use fastrand::Rng;
use nix::fcntl::{SpliceFFlags, splice};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::sendfile::sendfile64;
use nix::sys::socket::{MsgFlags, send, sendmsg};
use nix::sys::uio::writev;
use nix::unistd::{pipe, write};

use crate::arguments::Io;
use crate::forms::SendForm;
use crate::ring::Ring;
use crate::wait::{Readiness, repeat};

/// Calls after which a descriptor is duplicated, if it is.
pub const CALLS_PER_DUP: u64 = 16;
/// Bytes that a pipe takes without anybody reading it.
const PIPE: usize = 64 << 10;

/// The sending half of a connection.
pub struct Writer {
    fd: Arc<OwnedFd>,
    form: SendForm,
    parts: usize,
    dup: bool,
    /// Total bytes after which the connection ends.
    cut: Option<u64>,
    rng: Rng,
    ring: Option<Ring>,
    calls: u64,
    bytes: u64,
}

impl Writer {
    pub fn new(fd: Arc<OwnedFd>, io: &Io, cut: Option<u64>, rng: Rng) -> Self {
        Self {
            fd,
            form: io.send,
            parts: io.parts.max(1),
            dup: io.dup,
            cut,
            rng,
            ring: None,
            calls: 0,
            bytes: 0,
        }
    }

    /// Bytes sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// If the connection has ended, or is cut here.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let room = self.cut.map_or(u64::MAX, |cut| cut - self.bytes);
        let mut rest = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        while !rest.is_empty() {
            let sent = self.write(rest)?;
            self.bytes += sent as u64;
            rest = &rest[sent..];
        }
        if room <= bytes.len() as u64 {
            return Err(Error::new(ErrorKind::ConnectionAborted, "cut as asked"));
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.calls += 1;
        if self.dup && self.calls.is_multiple_of(CALLS_PER_DUP) {
            self.fd = Arc::new(self.fd.try_clone()?);
        }
        let form = match self.form {
            SendForm::Any => any(&mut self.rng),
            form => form,
        };
        let fd = &*self.fd;
        let none = MsgFlags::MSG_NOSIGNAL;
        match form {
            SendForm::Send => repeat(fd, Readiness::Write, || send(fd.as_raw_fd(), bytes, none)),
            SendForm::Writev => {
                let parts = split(bytes, self.parts, &mut self.rng);
                repeat(fd, Readiness::Write, || writev(fd, &parts))
            }
            SendForm::Sendmsg => {
                let parts = split(bytes, self.parts, &mut self.rng);
                repeat(fd, Readiness::Write, || {
                    sendmsg::<()>(fd.as_raw_fd(), &parts, &[], none, None)
                })
            }
            SendForm::Sendfile => sendfile(fd, bytes),
            SendForm::Splice => splice_from(fd, bytes),
            SendForm::Uring => {
                let ring = Ring::of(&mut self.ring)?;
                let plain = self.rng.bool();
                repeat(fd, Readiness::Write, || ring.send(fd, bytes, plain))
            }
            SendForm::Write | SendForm::Any => repeat(fd, Readiness::Write, || write(fd, bytes)),
        }
    }
}

fn any(rng: &mut Rng) -> SendForm {
    let all = [
        SendForm::Write,
        SendForm::Send,
        SendForm::Writev,
        SendForm::Sendmsg,
        SendForm::Sendfile,
        SendForm::Splice,
        SendForm::Uring,
    ];
    all[rng.usize(0..all.len())]
}

/// Cuts bytes into parts of random sizes, some of which may be empty.
fn split<'a>(bytes: &'a [u8], parts: usize, rng: &mut Rng) -> Vec<IoSlice<'a>> {
    let mut rest = bytes;
    let mut slices = Vec::with_capacity(parts);
    for left in (0..parts).rev() {
        let size = if left == 0 {
            rest.len()
        } else {
            rng.usize(0..=rest.len())
        };
        let (part, after) = rest.split_at(size);
        slices.push(IoSlice::new(part));
        rest = after;
    }
    slices
}

/// The file is new each time: the kernel sends its pages, which must not change before the peer has acknowledged them.
fn sendfile(fd: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    let file = memfd_create("pseudo_node", MFdFlags::MFD_CLOEXEC)?;
    write_pipe(&file, bytes)?;
    let mut offset = 0;
    repeat(fd, Readiness::Write, || {
        sendfile64(fd, &file, Some(&mut offset), bytes.len())
    })
}

fn splice_from(fd: &OwnedFd, bytes: &[u8]) -> Result<usize> {
    let bytes = &bytes[..bytes.len().min(PIPE)];
    let (output, input) = pipe()?;
    write_pipe(&input, bytes)?;
    let mut left = bytes.len();
    while left > 0 {
        left -= repeat(fd, Readiness::Write, || {
            splice(&output, None, fd, None, left, SpliceFFlags::empty())
        })?;
    }
    Ok(bytes.len())
}

fn write_pipe(fd: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[write(fd, rest)?..];
    }
    Ok(())
}
