//! Where the server listens.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};

use nix::sys::socket::{Backlog, listen};

/// Address and port where none is given.
pub const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 17832));

/// How many connections the kernel keeps waiting; `net.core.somaxconn` may lower it.
const BACKLOG: i32 = 4096;

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    /// The address and port.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                "another program, perhaps another memprof, has the port: \
                 choose another with --listen ADDR:PORT (port 0 takes any free one)"
            }
            io::ErrorKind::AddrNotAvailable => {
                "the address is not one of this machine's: choose another with --listen ADDR:PORT"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need privileges: choose another with --listen ADDR:PORT"
            }
            _ => "choose another address with --listen ADDR:PORT",
        };
        write!(
            f,
            "cannot listen on {}: {}; {advice}",
            self.address, self.source
        )
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Listens on an address; connections wait until they are served.
///
/// # Errors
/// When the address cannot be had; the message says what to do.
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    let failed = |source| BindError { address, source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let backlog = Backlog::new(BACKLOG).map_err(|e| failed(e.into()))?;
    listen(&listener, backlog).map_err(|e| failed(e.into()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_says_what_to_do() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = bind(any).unwrap();
        let taken = first.local_addr().unwrap();
        let message = bind(taken).unwrap_err().to_string();
        for part in [&taken.to_string(), "in use", "--listen"] {
            assert!(message.contains(part), "{message}");
        }
        drop(first);
        bind(taken).unwrap();
    }
}
