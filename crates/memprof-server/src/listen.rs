//! Addresses on which the server listens, and binding its sockets.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;

use nix::sys::socket::{Backlog, listen};

use super::unix_socket::{self, UnixSocket};

/// Length of the kernel's accept queue; `net.core.somaxconn` may lower it.
pub(super) const BACKLOG: i32 = 4096;

/// Prefix of a Unix socket's path.
const UNIX: &str = "unix:";

/// An address to listen on: `ADDR:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// Whether the address is a file, which the server creates and removes.
    pub fn has_file(&self) -> bool {
        matches!(self, Listen::Unix(_))
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen::Tcp(address)
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let expected =
                "expected ADDR:PORT, such as `127.0.0.1:17832` or `[::1]:0`, or `unix:PATH`";
            return text.parse().map(Listen::Tcp).map_err(|_| expected.into());
        };
        match path.as_bytes() {
            [] => Err("expected a path after `unix:`".into()),
            [b'@', ..] => Err(
                "an abstract socket has no owner, so that everybody may connect: give the path of a file \
                 (`unix:./@NAME` if its name begins with @)"
                    .into(),
            ),
            _ => Ok(Listen::Unix(path.into())),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A failure to listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {reason}; {advice}")]
pub struct BindError {
    /// The address.
    pub address: Listen,
    /// The system's reason.
    pub reason: io::Error,
    /// The remedy.
    pub advice: String,
}

fn advice(reason: &io::Error, program: &str) -> String {
    let advice = match reason.kind() {
        io::ErrorKind::AddrInUse => {
            return format!(
                "another program, perhaps another {program}, uses the port: \
                 choose another with --listen ADDR:PORT (port 0 takes any free one)"
            );
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have the address: choose another with --listen ADDR:PORT"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need privileges: choose another with --listen ADDR:PORT"
        }
        _ => "choose another address with --listen ADDR:PORT",
    };
    advice.to_owned()
}

/// A listening socket. For a Unix socket, dropping it removes the file.
#[derive(Debug)]
pub struct Listener(pub(super) Socket);

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl Listener {
    /// The address, with the port that the kernel chose; `None` if the kernel does not report it.
    pub fn address(&self) -> Option<Listen> {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().ok().map(Listen::Tcp),
            Socket::Unix(socket) => Some(Listen::Unix(socket.path().to_owned())),
        }
    }
}

/// Listens on an address; connections queue until they are served. `program` is the name for the message of an error.
///
/// # Errors
/// The address cannot be bound; the message says what to do.
///
/// # Examples
///
/// ```
/// use memprof_server::{Listen, bind};
///
/// // Port 0 selects a free port.
/// let listener = bind(&"127.0.0.1:0".parse()?, "memprof")?;
/// let taken = bind(&listener.address().unwrap(), "memprof").unwrap_err();
/// assert!(taken.to_string().contains("--listen"));
/// assert!(matches!("unix:/run/memprof.sock".parse()?, Listen::Unix(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bind(address: &Listen, program: &str) -> Result<Listener, BindError> {
    let bound = match address {
        Listen::Tcp(address) => bind_tcp(*address)
            .map(Socket::Tcp)
            .map_err(|reason| (advice(&reason, program), reason)),
        Listen::Unix(path) => UnixSocket::bind(path)
            .map(Socket::Unix)
            .map_err(|reason| (unix_socket::advice(&reason, program), reason)),
    };
    bound.map(Listener).map_err(|(advice, reason)| BindError {
        address: address.clone(),
        reason,
        advice,
    })
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn addresses_are_ports_or_paths() {
        for (text, wanted) in [
            ("127.0.0.1:1", Listen::Tcp(([127, 0, 0, 1], 1).into())),
            ("unix:/run/m.sock", Listen::Unix("/run/m.sock".into())),
            ("unix:m.sock", Listen::Unix("m.sock".into())),
            ("unix:./@m", Listen::Unix("./@m".into())),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen, wanted);
            assert_eq!(listen.to_string(), text);
        }
        for bad in [
            "",
            "here",
            "127.0.0.1",
            "/run/m.sock",
            "unix:",
            "unix:@m",
            "unix",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_taken_port_says_what_to_do() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = bind(&any.into(), "memprof").unwrap();
        let taken = first.address().unwrap();
        let message = bind(&taken, "memprof").unwrap_err().to_string();
        for part in [&taken.to_string(), "in use", "another memprof", "--listen"] {
            assert!(message.contains(part), "{message}");
        }
        drop(first);
        bind(&taken, "memprof").unwrap();
    }
}
