//! Receiving bytes by every interface that the kernel has for it.

use std::io::{Error, IoSliceMut, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use fastrand::Rng;
use nix::fcntl::{SpliceFFlags, splice};
use nix::sys::socket::{MsgFlags, recv, recvmsg};
use nix::sys::uio::readv;
use nix::unistd::{pipe, read};

use crate::arguments::Io;
use crate::forms::ReceiveForm;
use crate::ring::Ring;
use crate::send::CALLS_PER_DUP;
use crate::wait::{Readiness, repeat};

/// The receiving half of a connection.
pub struct Reader {
    fd: Arc<OwnedFd>,
    form: ReceiveForm,
    parts: usize,
    dup: bool,
    rng: Rng,
    ring: Option<Ring>,
    calls: u64,
    bytes: u64,
    room: Vec<u8>,
}

impl Reader {
    pub fn new(fd: Arc<OwnedFd>, io: &Io, rng: Rng) -> Self {
        Self {
            fd,
            form: io.receive,
            parts: io.parts.max(1),
            dup: io.dup,
            rng,
            ring: None,
            calls: 0,
            bytes: 0,
            room: vec![0; io.read_size.max(1)],
        }
    }

    /// Bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for bytes and returns them; nothing at the end of the stream.
    pub fn read(&mut self) -> Result<&[u8]> {
        self.calls += 1;
        if self.dup && self.calls.is_multiple_of(CALLS_PER_DUP) {
            self.fd = Arc::new(self.fd.try_clone()?);
        }
        let form = match self.form {
            ReceiveForm::Any => any(&mut self.rng),
            form => form,
        };
        let (fd, room) = (&*self.fd, &mut self.room[..]);
        let none = MsgFlags::empty();
        let count = match form {
            ReceiveForm::Recv => repeat(fd, Readiness::Read, || recv(fd.as_raw_fd(), room, none)),
            ReceiveForm::Readv => {
                let mut parts = split(room, self.parts, &mut self.rng);
                repeat(fd, Readiness::Read, || readv(fd, &mut parts))
            }
            ReceiveForm::Recvmsg => {
                let mut parts = split(room, self.parts, &mut self.rng);
                repeat(fd, Readiness::Read, || {
                    recvmsg::<()>(fd.as_raw_fd(), &mut parts, None, none).map(|m| m.bytes)
                })
            }
            ReceiveForm::Peek => peek(fd, room),
            ReceiveForm::Splice => splice_into(fd, room),
            ReceiveForm::Uring => {
                let ring = Ring::of(&mut self.ring)?;
                let plain = self.rng.bool();
                repeat(fd, Readiness::Read, || ring.receive(fd, room, plain))
            }
            ReceiveForm::Read | ReceiveForm::Any => repeat(fd, Readiness::Read, || read(fd, room)),
        }?;
        self.bytes += count as u64;
        Ok(&self.room[..count])
    }
}

fn any(rng: &mut Rng) -> ReceiveForm {
    let all = [
        ReceiveForm::Read,
        ReceiveForm::Recv,
        ReceiveForm::Readv,
        ReceiveForm::Recvmsg,
        ReceiveForm::Peek,
        ReceiveForm::Splice,
        ReceiveForm::Uring,
    ];
    all[rng.usize(0..all.len())]
}

/// Cuts room for bytes into parts of random sizes, none of which is empty unless there is too little.
fn split<'a>(room: &'a mut [u8], parts: usize, rng: &mut Rng) -> Vec<IoSliceMut<'a>> {
    let mut rest = room;
    let mut slices = Vec::with_capacity(parts);
    for left in (0..parts).rev() {
        let most = rest.len().min(rest.len() / 8 + 1);
        let size = if left == 0 {
            rest.len()
        } else {
            rng.usize(0..=most)
        };
        let (part, after) = rest.split_at_mut(size);
        slices.push(IoSliceMut::new(part));
        rest = after;
    }
    slices
}

/// Looks at the bytes once or twice, then reads them.
fn peek(fd: &OwnedFd, room: &mut [u8]) -> Result<usize> {
    let look = |room: &mut [u8]| {
        repeat(fd, Readiness::Read, || {
            recv(fd.as_raw_fd(), room, MsgFlags::MSG_PEEK)
        })
    };
    let few = room.len().min(2);
    look(&mut room[..few])?;
    let seen = look(room)?;
    let before = room[..seen].to_vec();
    let count = repeat(fd, Readiness::Read, || read(fd, &mut room[..seen]))?;
    if room[..count] != before[..count] {
        return Err(Error::other("MSG_PEEK saw other bytes"));
    }
    Ok(count)
}

fn splice_into(fd: &OwnedFd, room: &mut [u8]) -> Result<usize> {
    let (output, input) = pipe()?;
    let size = room.len().min(64 << 10);
    let count = repeat(fd, Readiness::Read, || {
        splice(fd, None, &input, None, size, SpliceFFlags::empty())
    })?;
    let mut done = 0;
    while done < count {
        done += read(&output, &mut room[done..count])?;
    }
    Ok(count)
}
