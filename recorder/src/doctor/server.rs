//! The HTTP servers: ports, and who may read from them.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::Path;

use memprof_sys::procfs;

use super::{Check, Status};
use crate::config::Config;
use crate::sockets;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let ports = config.nodes.iter().map(|node| node.port);
    let ports = [config.port].into_iter().chain(ports).flatten();
    let mut checks: Vec<_> = ports.map(|port| port_is_free(config, port)).collect();
    checks.extend(config.token_file.as_deref().map(token));
    if config.token_file.is_none() && config.listen.iter().any(|address| !address.is_loopback()) {
        checks.push(Check::not_ok(
            Status::Degraded,
            "token",
            "none, and the server listens beyond this machine",
            "everybody who reaches the port can read all messages and logs",
            "set `token_file`, or listen only at 127.0.0.1 and forward the port, such as by ssh -L",
        ));
    }
    checks
}

fn port_is_free(config: &Config, port: u16) -> Check {
    let name = "HTTP port";
    let open = |address| TcpListener::bind((address, port)).map(drop);
    match config.listen.iter().try_for_each(|address| open(*address)) {
        Ok(()) => Check::ok(name, format!("{port} is free")),
        Err(e) => Check::not_ok(
            Status::Missing,
            name,
            format!("cannot listen at port {port}: {e}{}", holders(port, &e)),
            "the recorder does not start",
            "end the other program, or choose another port; 0 is none",
        ),
    }
}

/// The processes that listen at a port in use.
fn holders(port: u16, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::AddrInUse {
        return String::new();
    }
    let pids = sockets::listeners(port);
    let names: Vec<_> = pids.into_iter().map(process).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" by {}", names.join(", ")),
    }
}

/// A process by id and name.
pub(super) fn process(pid: u32) -> String {
    let name = procfs::comm(pid).unwrap_or_default();
    format!("process {pid} ({name})")
}

fn token(path: &Path) -> Check {
    let name = "token";
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => Check::ok(name, format!("in {}", path.display())),
        other => {
            let why = other.map_or_else(|e| e.to_string(), |_| "it is empty".to_owned());
            Check::not_ok(
                Status::Missing,
                name,
                format!("cannot read {}: {why}", path.display()),
                "the recorder does not start",
                format!("(umask 077 && openssl rand -hex 32 >{})", path.display()),
            )
        }
    }
}
