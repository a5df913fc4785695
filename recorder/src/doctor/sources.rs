//! The sources of a node's logs.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::unistd::{AccessFlags, access};

use super::{Check, Status};
use crate::config::Node;
use crate::logs::{self, Source};
use crate::privileges;

pub(super) fn checks(node: &Node) -> Vec<Check> {
    let sources = node.log.iter().flat_map(|log| &log.sources);
    sources.map(check).collect()
}

/// A finding, a consequence and a remedy.
type Problem = (Status, String, &'static str, &'static str);

fn check(source: &Source) -> Check {
    let problem = match source {
        Source::Udp(address) => udp(*address),
        Source::Socket { path, .. } => socket(path),
        Source::File(path) => file(path),
        Source::Daily(directory) => daily(directory),
        Source::Journal { unit } => journal(unit),
    };
    match problem {
        None => Check::ok("logs", source.to_string()),
        Some((status, found, consequence, remedy)) => {
            let found = format!("{source}: {found}");
            Check::not_ok(status, "logs", found, consequence, remedy)
        }
    }
}

fn udp(address: SocketAddr) -> Option<Problem> {
    if let Err(e) = UdpSocket::bind(address) {
        return Some((
            Status::Missing,
            e.to_string(),
            "the recorder does not start",
            "end the other program, or choose another port",
        ));
    }
    (!address.ip().is_loopback()).then(|| {
        (
            Status::Degraded,
            "it is reached from other machines".to_owned(),
            "every host that reaches the port can write lines into the log",
            "listen at 127.0.0.1, or let a firewall protect the port",
        )
    })
}

fn socket(path: &Path) -> Option<Problem> {
    let in_use = UnixDatagram::unbound()
        .and_then(|probe| probe.connect(path))
        .is_ok();
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let writable = access(directory.unwrap_or(Path::new(".")), AccessFlags::W_OK);
    let found = match (in_use, writable) {
        (true, _) => "it is in use".to_owned(),
        (_, Err(e)) => format!("cannot write to its directory: {e}"),
        _ => return None,
    };
    Some((
        Status::Missing,
        found,
        "the recorder does not start",
        "end the other program, or choose another path",
    ))
}

fn file(path: &Path) -> Option<Problem> {
    let e = logs::probe_file(path).err()?;
    let remedy = match e.kind() {
        io::ErrorKind::NotFound => "let the node log to it; it may come later",
        io::ErrorKind::PermissionDenied => "run the recorder as root or as the node's user",
        _ => "give the path of the file itself",
    };
    Some((
        Status::Degraded,
        e.to_string(),
        "there are no lines until it can be read",
        remedy,
    ))
}

fn daily(directory: &Path) -> Option<Problem> {
    let remedy = "start the node, or give its data directory, in which Octez makes daily-logs";
    let so = "there are no lines until there is one";
    let mut names = match directory.read_dir() {
        Ok(files) => files.flatten().map(|file| file.file_name()),
        Err(e) => return Some((Status::Degraded, e.to_string(), so, remedy)),
    };
    let there = names.any(|name| name.to_string_lossy().starts_with("daily-"));
    let problem = (
        Status::Degraded,
        "no daily-YYYYMMDD.log".to_owned(),
        so,
        remedy,
    );
    (!there).then_some(problem)
}

fn journal(unit: &str) -> Option<Problem> {
    let mut command = Command::new("journalctl");
    command.args([
        "--quiet",
        "--lines=1",
        "--output=cat",
        &format!("--unit={unit}"),
    ]);
    let so = "there are no lines of it";
    // The recorder starts it without capabilities.
    let output = thread::scope(|scope| {
        let started = scope.spawn(|| {
            privileges::reduce(&[]);
            command.output()
        });
        started.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    match output {
        Err(e) => Some((
            Status::Missing,
            format!("cannot start journalctl: {e}"),
            so,
            "install systemd, or use another source of logs",
        )),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr);
            let why = text
                .lines()
                .next()
                .unwrap_or("journalctl failed")
                .to_owned();
            Some((
                Status::Missing,
                why,
                so,
                "run the recorder as root, or as a user in the group systemd-journal (in the unit: SupplementaryGroups=systemd-journal)",
            ))
        }
        Ok(output) if output.stdout.is_empty() => Some((
            Status::Degraded,
            "the journal has no line of it".to_owned(),
            "there are no lines until the unit writes some",
            "start the unit, or correct its name: systemctl list-units",
        )),
        Ok(_) => None,
    }
}
