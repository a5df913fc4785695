//! Opening and accepting connections.

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::sockopt::{ReuseAddr, SocketError, TcpNoDelay};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, accept, bind, connect, getpeername,
    getsockname, getsockopt, setsockopt, socket,
};

use crate::wait::{Readiness, wait};

/// How long a refused connection is tried again: the other node may start later.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a connection is opened.
#[derive(Clone)]
pub struct Dial {
    pub address: SocketAddr,
    pub local_port: Option<u16>,
    pub nonblocking: bool,
    pub refused_first: bool,
}

impl Dial {
    /// Opens a connection.
    pub fn open(&self) -> Result<OwnedFd> {
        let began = Instant::now();
        loop {
            match self.try_open() {
                Err(e) if is_temporary(&e) && began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    fn try_open(&self) -> Result<OwnedFd> {
        let family = match self.address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = if self.nonblocking {
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK
        } else {
            SockFlag::SOCK_CLOEXEC
        };
        let fd = socket(family, SockType::Stream, flags, None)?;
        if let Some(port) = self.local_port {
            setsockopt(&fd, ReuseAddr, &true)?;
            let local = SocketAddr::new(self.address.ip(), port);
            bind(fd.as_raw_fd(), &SockaddrStorage::from(local))?;
        }
        if self.refused_first {
            self.be_refused(&fd)?;
        }
        connect_to(&fd, self.address)?;
        Ok(fd)
    }

    /// Connects to a port that is bound but does not listen.
    fn be_refused(&self, fd: &OwnedFd) -> Result<()> {
        let any = SocketAddr::new(self.address.ip(), 0);
        let family = SockaddrStorage::from(any);
        let deaf = match self.address.ip() {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        let deaf = socket(deaf, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        bind(deaf.as_raw_fd(), &family)?;
        match connect_to(fd, address_of(&getsockname(deaf.as_raw_fd())?)?) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(e) => Err(e),
            Ok(()) => Err(Error::other(
                "a port without listener accepted a connection",
            )),
        }
    }
}

fn connect_to(fd: &OwnedFd, address: SocketAddr) -> Result<()> {
    let address = SockaddrStorage::from(address);
    let mut result = connect(fd.as_raw_fd(), &address);
    if result == Err(Errno::ECONNABORTED) {
        // The kernel's first answer after a non-blocking attempt that failed.
        result = connect(fd.as_raw_fd(), &address);
    }
    match result {
        Err(Errno::EINPROGRESS) => {
            wait(fd, Readiness::Write)?;
            match getsockopt(fd, SocketError)? {
                0 => Ok(()),
                error => Err(Error::from_raw_os_error(error)),
            }
        }
        result => Ok(result?),
    }
}

/// True if another attempt may succeed: nobody listens yet, or the port is still taken by the connection before.
fn is_temporary(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable
    )
}

/// Accepts a connection: by turns with and without an address, `accept4` and `accept`. Returns nothing after 100 ms.
pub fn accept_one(listener: &TcpListener, index: u64) -> Result<Option<OwnedFd>> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::from(100u8)) {
        Ok(0) | Err(Errno::EINTR) => return Ok(None),
        result => result?,
    };
    if index.is_multiple_of(2) {
        return Ok(Some(listener.accept()?.0.into()));
    }
    let fd = accept(listener.as_raw_fd())?;
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Prepares a connected socket.
pub fn prepare(fd: &OwnedFd, nonblocking: bool) -> Result<()> {
    setsockopt(fd, TcpNoDelay, &true)?;
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    let mut wanted = flags;
    wanted.set(OFlag::O_NONBLOCK, nonblocking);
    fcntl(fd, FcntlArg::F_SETFL(wanted))?;
    Ok(())
}

/// The own address of a connection, and the other node's.
pub fn addresses(fd: &OwnedFd) -> Result<(SocketAddr, SocketAddr)> {
    let fd = fd.as_raw_fd();
    Ok((
        address_of(&getsockname(fd)?)?,
        address_of(&getpeername(fd)?)?,
    ))
}

/// IPv4 addresses that IPv6 sockets have are written as such.
fn address_of(address: &SockaddrStorage) -> Result<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|a| SocketAddr::from(*a));
    let v6 = || address.as_sockaddr_in6().map(|a| SocketAddr::from(*a));
    let address = v4
        .or_else(v6)
        .ok_or_else(|| Error::other("not an IP address"))?;
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
