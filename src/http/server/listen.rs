//! Addresses on which the server listens, and binding its sockets.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::socket::{Backlog, listen};

use super::unix_socket::{self, UnixSocket};

/// Default address and port.
pub(crate) const DEFAULT_LISTEN: Listen = Listen::Tcp(SocketAddr::V4(SocketAddrV4::new(
    Ipv4Addr::LOCALHOST,
    17832,
)));

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
    pub(crate) fn has_file(&self) -> bool {
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
    pub advice: &'static str,
}

fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
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

/// Listens on an address; connections queue until they are served.
///
/// # Errors
/// The address cannot be bound; the message says what to do.
///
/// # Examples
///
/// ```
/// use memprof::http::server::{Listen, bind};
///
/// // Port 0 selects a free port.
/// let listener = bind(&"127.0.0.1:0".parse()?)?;
/// let taken = bind(&listener.address().unwrap()).unwrap_err();
/// assert!(taken.to_string().contains("--listen"));
/// assert!(matches!("unix:/run/memprof.sock".parse()?, Listen::Unix(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn bind(address: &Listen) -> Result<Listener, BindError> {
    let bound = match address {
        Listen::Tcp(address) => bind_tcp(*address)
            .map(Socket::Tcp)
            .map_err(|reason| (advice(&reason), reason)),
        Listen::Unix(path) => UnixSocket::bind(path)
            .map(Socket::Unix)
            .map_err(|reason| (unix_socket::advice(&reason), reason)),
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

/// The lines to print about a served address and the token file that it needs.
pub(crate) fn greeting(address: &Listen, token_file: Option<&Path>) -> Vec<String> {
    match address {
        Listen::Tcp(address) => greeting_tcp(*address, token_file),
        Listen::Unix(path) => {
            let mut lines = vec![format!(
                "serving {address}: `curl --unix-socket {} http://localhost/v2/summary`",
                path.display()
            )];
            lines.extend(token_file.map(|file| {
                let file = file.display();
                format!("it answers those who have the token in {file}")
            }));
            lines
        }
    }
}

fn greeting_tcp(address: SocketAddr, token_file: Option<&Path>) -> Vec<String> {
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
        let first = bind(&any.into()).unwrap();
        let taken = first.address().unwrap();
        let message = bind(&taken).unwrap_err().to_string();
        for part in [&taken.to_string(), "in use", "--listen"] {
            assert!(message.contains(part), "{message}");
        }
        drop(first);
        bind(&taken).unwrap();
    }
}
