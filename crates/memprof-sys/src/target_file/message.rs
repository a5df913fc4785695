//! What memprof and its readers send each other: packets of bytes, some with a file descriptor.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Bytes read at once: a packet.
pub(super) const PART: usize = 64 << 10;
/// Longest packet: a part, or a path, and what is said of it.
const PACKET: usize = PART + 64;

/// What is asked of a reader. A descriptor comes with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked<'p> {
    /// Read so many bytes at a position of the file. If it comes as a handle, its number says whether it is the same as in
    /// the question before.
    Read {
        handle: Option<u64>,
        offset: u64,
        length: u64,
    },
    /// Find a path: in the tree whose root is sent, or in memprof's own.
    Find { flags: i32, path: &'p Path },
    /// Read so many bytes of a process's memory.
    Memory { pid: i32, address: u64, length: u64 },
    /// Say on which file system the file is (`statfs`).
    FileSystem,
}

const NONE: u64 = u64::MAX;

impl Asked<'_> {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (words, path): ([u64; 4], &Path) = match self {
            Asked::Read {
                handle,
                offset,
                length,
            } => ([0, handle.unwrap_or(NONE), *offset, *length], Path::new("")),
            Asked::Find { flags, path } => ([1, flags.cast_unsigned().into(), 0, 0], path),
            Asked::FileSystem => ([2, 0, 0, 0], Path::new("")),
            Asked::Memory {
                pid,
                address,
                length,
            } => (
                [3, pid.cast_unsigned().into(), *address, *length],
                Path::new(""),
            ),
        };
        let mut bytes = words.map(u64::to_ne_bytes).concat();
        bytes.extend(path.as_os_str().as_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Asked<'_>> {
        let (words, path) = bytes.split_at_checked(32)?;
        let word = |n: usize| u64::from_ne_bytes(*words[8 * n..].first_chunk().unwrap_or(&[0; 8]));
        Some(match word(0) {
            0 => Asked::Read {
                handle: Some(word(1)).filter(|number| *number != NONE),
                offset: word(2),
                length: word(3),
            },
            1 => Asked::Find {
                flags: word(1) as i32,
                path: Path::new(OsStr::from_bytes(path)),
            },
            2 => Asked::FileSystem,
            3 => Asked::Memory {
                pid: word(1) as i32,
                address: word(2),
                length: word(3),
            },
            _ => return None,
        })
    }
}

/// What a reader answers: bytes or an error number, and a descriptor.
pub(super) type Answer = (io::Result<Vec<u8>>, Option<OwnedFd>);

pub(super) fn answer_to_bytes(answer: &io::Result<Vec<u8>>) -> Vec<u8> {
    let (errno, bytes): (i32, &[u8]) = match answer {
        Ok(bytes) => (0, bytes),
        Err(e) => (e.raw_os_error().unwrap_or(libc::EIO), &[]),
    };
    [&errno.to_ne_bytes(), bytes].concat()
}

pub(super) fn answer_from_bytes(bytes: &[u8]) -> io::Result<Vec<u8>> {
    match bytes.split_first_chunk::<4>() {
        Some((errno, bytes)) => match i32::from_ne_bytes(*errno) {
            0 => Ok(bytes.to_vec()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Sends a packet.
///
/// # Errors
/// The other end is closed.
pub(super) fn send(to: impl AsFd, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptors: Vec<RawFd> = with.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if with.is_some() { &control[..] } else { &[] };
    let parts = [IoSlice::new(bytes)];
    let to = to.as_fd().as_raw_fd();
    sendmsg::<()>(to, &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Waits for a packet.
///
/// # Errors
/// The other end is closed.
pub(super) fn receive(from: impl AsFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; PACKET];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = cmsg_space!(RawFd);
    let (from, flags) = (from.as_fd().as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = recvmsg::<()>(from, &mut parts, Some(&mut space), flags)?;
    let mut descriptor = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for fd in descriptors {
                // SAFETY: the kernel has just made this descriptor for this process, and nobody else knows it.
                descriptor = Some(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    let length = message.bytes;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(length);
    Ok((bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_arrives() {
        for asked in [
            Asked::Read {
                handle: None,
                offset: 1 << 40,
                length: 7,
            },
            Asked::Read {
                handle: Some(3),
                offset: 0,
                length: 0,
            },
            Asked::Find {
                flags: libc::O_NOFOLLOW,
                path: Path::new("/a b"),
            },
            Asked::FileSystem,
            Asked::Memory {
                pid: 7,
                address: 1 << 46,
                length: 4096,
            },
        ] {
            assert_eq!(Asked::from_bytes(&asked.to_bytes()), Some(asked));
        }
        assert_eq!(Asked::from_bytes(b"short"), None);
    }
}
