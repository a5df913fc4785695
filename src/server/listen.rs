//! Binds the server's listening sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::Path;

use nix::sys::socket::{Backlog, listen};

/// Default address and port.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 17832));

/// Length of the kernel's accept queue; `net.core.somaxconn` may lower it.
const BACKLOG: i32 = 4096;

/// A failure to listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}; {}", self.advice())]
pub struct BindError {
    /// The address and port.
    pub address: SocketAddr,
    /// The system's reason.
    pub reason: io::Error,
}

impl BindError {
    fn advice(&self) -> &'static str {
        match self.reason.kind() {
            io::ErrorKind::AddrInUse => {
                "another program, perhaps another memprof, uses the port: \
                 choose another with --listen ADDR:PORT (port 0 takes any free one)"
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine does not have the address: choose another with --listen ADDR:PORT"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need privileges: choose another with --listen ADDR:PORT"
            }
            _ => "choose another address with --listen ADDR:PORT",
        }
    }
}

/// Listens on an address; connections queue until they are served.
///
/// # Errors
/// The address cannot be bound; the message says what to do.
///
/// # Examples
///
/// ```
/// use std::net::{Ipv4Addr, SocketAddr};
///
/// // Port 0 selects a free port.
/// let listener = memprof::server::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
/// let taken = memprof::server::bind(listener.local_addr()?).unwrap_err();
/// assert!(taken.to_string().contains("--listen"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    let failed = |reason| BindError { address, reason };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let backlog = Backlog::new(BACKLOG).map_err(|e| failed(e.into()))?;
    listen(&listener, backlog).map_err(|e| failed(e.into()))?;
    Ok(listener)
}

/// What users are told about an address that is served, and about the file with the token that it needs.
pub(crate) fn greeting(address: SocketAddr, token_file: Option<&Path>) -> Vec<String> {
    let mut lines = vec![format!("serving http://{address}/")];
    if let Some(file) = token_file {
        lines.push(format!(
            "it answers those who have the token in {}; http://{address}/#token=TOKEN opens the page",
            file.display()
        ));
    }
    if !address.ip().is_loopback() {
        let (ip, port) = (address.ip(), address.port());
        let what = "the target's function names, file paths and figures";
        lines.push(match token_file {
            Some(_) => format!(
                "warning: {ip} is not a loopback address, and nothing is encrypted: who can listen on the way reads {what}, \
                 and the token"
            ),
            None => format!(
                "warning: {ip} is not a loopback address: anyone who can reach it can read {what}, without a password; \
                 `--token-file FILE` asks for one, `--listen 127.0.0.1:{port}` serves this machine alone"
            ),
        });
    }
    lines
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
