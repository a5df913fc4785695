//! memprof as a service of [`memprof_server`]: its routes, the page, and the lines that name served addresses.

mod formats;
mod service;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

pub use memprof_server::{BindError, Listen, Listener, ServerOptions, Token, serve};

/// The program's name in messages.
const PROGRAM: &str = "memprof";

/// Default address and port.
pub(crate) const DEFAULT_LISTEN: Listen = Listen::Tcp(SocketAddr::V4(SocketAddrV4::new(
    Ipv4Addr::LOCALHOST,
    17832,
)));

/// Listens on an address; connections queue until they are served.
///
/// # Errors
/// The address cannot be bound; the message says what to do.
pub fn bind(address: &Listen) -> Result<Listener, BindError> {
    memprof_server::bind(address, PROGRAM)
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
