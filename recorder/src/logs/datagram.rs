//! Lines that come as datagrams, by UDP or by a Unix socket.

use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use jiff::tz::TimeZone;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, RxqOvfl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};

use super::wait::{Stopped, Wake};
use super::{Clock, MAX_LINE, Output, count, syslog, times};

/// Receive buffer in bytes, for bursts. Without a capability the kernel's limit applies, net.core.rmem_max.
const BUFFER: usize = 4 << 20;

/// Datagrams to read before the thread looks whether it shall end.
const BATCH: usize = 256;

/// A socket for datagrams.
pub enum Socket {
    Udp(UdpSocket),
    /// The file is removed when the socket is dropped.
    Unix(UnixDatagram, PathBuf),
}

impl Socket {
    pub fn udp(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            setsockopt(&socket, RcvBuf, &BUFFER)?;
        }
        setsockopt(&socket, RxqOvfl, &1)?;
        Ok(Self::Udp(socket))
    }

    /// Makes a socket with these permissions. One that a process has left behind is replaced, one in use is not.
    pub fn unix(path: &Path, mode: u32) -> io::Result<Self> {
        let there = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        let probe = UnixDatagram::unbound()?;
        if there
            && probe
                .connect(path)
                .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
        {
            fs::remove_file(path)?;
        }
        let socket = UnixDatagram::bind(path)?;
        let socket = Self::Unix(socket, path.to_owned());
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        if let Self::Unix(socket, _) = &socket {
            socket.set_nonblocking(true)?;
        }
        Ok(socket)
    }

    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Udp(socket) => socket.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Udp(socket) => socket.as_fd(),
            Self::Unix(socket, _) => socket.as_fd(),
        }
    }

    /// Passes lines on until it shall end. Senders at a Unix socket wait while its queue is full, so nothing here may block.
    pub fn follow(self, mut output: Output, stopped: &Stopped) {
        let zone = TimeZone::system();
        let mut buffer = vec![0; MAX_LINE];
        while stopped.wait(Some(self.fd()), None) != Wake::Stop {
            for _ in 0..BATCH {
                match self.receive(&mut buffer, &output) {
                    Ok(size) => {
                        let clock = Clock {
                            now: times::now(),
                            zone: zone.clone(),
                        };
                        let datagram = syslog::read(&buffer[..size], &clock);
                        output.put(datagram.entry, datagram.well_formed);
                    }
                    // Nothing more, or an error of an earlier datagram, which is reported once.
                    Err(_) => break,
                }
            }
        }
    }

    /// Receives a datagram; returns its size in the buffer.
    fn receive(&self, buffer: &mut [u8], output: &Output) -> Result<usize, Errno> {
        let mut control = cmsg_space!(u32);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.fd().as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<()>(fd, &mut parts, Some(&mut control), flags)?;
        if message.flags.contains(MsgFlags::MSG_TRUNC) {
            count(&output.shared.cut);
        }
        for control in message.cmsgs().into_iter().flatten() {
            // The kernel's count since the socket was opened.
            if let ControlMessageOwned::RxqOvfl(lost) = control {
                let overruns = &output.shared.overruns;
                overruns.store(lost.into(), Ordering::Relaxed);
            }
        }
        Ok(message.bytes)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may have been removed already.
            let _ = fs::remove_file(path);
        }
    }
}
