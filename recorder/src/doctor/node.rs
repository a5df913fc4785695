//! A node: its identity, its process and control group, and the room for its database.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use zeroize::Zeroizing;

use super::server::process;
use super::{Check, Status};
use crate::capture::Target;
use crate::cgroups;
use crate::config::{Node, P2p};
use crate::p2p::identity::Identity;
use crate::sockets;

/// Maximum size of an identity's file that is read, in bytes.
const MAX_IDENTITY: u64 = 1 << 16;

/// Free space below which a database without a limit is called short, in bytes.
const FREE: u64 = 1 << 30;

pub(super) fn checks(node: &Node) -> Vec<Check> {
    let p2p = node.p2p.as_ref();
    let mut checks: Vec<_> = p2p
        .into_iter()
        .flat_map(|p2p| [identity(p2p), found(p2p)])
        .collect();
    checks.push(database(node));
    checks
}

fn identity(p2p: &P2p) -> Check {
    let name = "identity";
    let path = p2p.identity.display();
    let read = fs::metadata(&p2p.identity).and_then(|metadata| {
        if !metadata.is_file() || metadata.len() > MAX_IDENTITY {
            return Err(io::Error::other("it is no regular file of at most 64 KiB"));
        }
        let text = Zeroizing::new(fs::read_to_string(&p2p.identity)?);
        Ok((metadata.permissions().mode(), text))
    });
    let (mode, text) = match read {
        Ok(read) => read,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Check::not_ok(
                Status::Degraded,
                name,
                format!("{path} is not there"),
                "connections are only recorded once it is",
                "start the node, which makes it, or correct the path",
            );
        }
        Err(e) => {
            return Check::not_ok(
                Status::Missing,
                name,
                format!("cannot read {path}: {e}"),
                "nothing can be decrypted",
                "run the recorder as root or as the node's user",
            );
        }
    };
    let identity = match Identity::parse(&text) {
        Ok(identity) => identity,
        Err(e) => {
            return Check::not_ok(
                Status::Missing,
                name,
                format!("{path}: {e}"),
                "nothing can be decrypted",
                "give the file that the node uses",
            );
        }
    };
    let found = format!("{path}, of peer {}", identity.peer_id());
    if !identity.meets(p2p.target) {
        let found = format!("{found}; its proof of work is below {} bits", p2p.target);
        return Check::not_ok(
            Status::Degraded,
            name,
            found,
            "peers with that target refuse the node",
            "let the node generate its identity, or set `pow`",
        );
    }
    if mode & 0o004 != 0 {
        let found = format!(
            "{found}; every user may read it (mode {:03o})",
            mode & 0o777
        );
        return Check::not_ok(
            Status::Degraded,
            name,
            found,
            "every user can read the node's traffic, and act as the node",
            format!("chmod 600 {path}"),
        );
    }
    Check::ok(name, found)
}

/// The control group of the node, and its process if it is known.
fn found(p2p: &P2p) -> Check {
    let name = "process";
    let waits = |found: String| {
        Check::not_ok(
            Status::Degraded,
            name,
            found,
            "connections are recorded once it is there",
            "start the node, or correct `port`, `cgroup`, `unit` or `pid`",
        )
    };
    let mount = match cgroups::mount() {
        Ok(mount) => mount,
        Err(e) => return waits(e.to_string()),
    };
    let of_process = |pid| {
        let group = cgroups::of_process(&mount, pid)?;
        Ok((process(pid), group))
    };
    let there = match &p2p.place {
        Target::Port(port) => match sockets::listeners(*port).first() {
            Some(pid) => of_process(*pid),
            None => return waits(format!("no process listens at port {port}")),
        },
        Target::Process(pid) => of_process(*pid),
        Target::Unit(unit) => match cgroups::of_unit(&mount, unit) {
            Some(group) => Ok((format!("unit {unit}"), group)),
            None => return waits(format!("the unit {unit} has no control group")),
        },
        Target::Cgroup(group) => {
            let group = mount.join(group);
            let checked = cgroups::check(&group);
            checked
                .map(|()| ("control group".to_owned(), group.clone()))
                .map_err(|e| io::Error::other(format!("{}: {e}", group.display())))
        }
    };
    match there {
        Ok((what, group)) if group == mount => Check::not_ok(
            Status::Degraded,
            name,
            format!("{what}, in the root control group"),
            "each packet of each process of this machine passes the programs, which compare a number",
            "start the node by a systemd unit or in a container",
        ),
        Ok((what, group)) => Check::ok(name, format!("{what}, {}", group.display())),
        Err(e) => waits(format!("no control group: {e}")),
    }
}

/// Whether the database can be written, and has as much room as it may take.
fn database(node: &Node) -> Check {
    let name = "database";
    let path = node.db.display();
    let mut there = node.db.ancestors().filter(|path| path.is_dir());
    let there = there.next().unwrap_or(Path::new("."));
    if let Err(e) = access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        return Check::not_ok(
            Status::Missing,
            name,
            format!("cannot write to {}: {e}", there.display()),
            "the recorder does not start",
            "run the recorder as another user, or choose another `db`",
        );
    }
    let free = match statvfs(there) {
        Ok(system) => system
            .blocks_available()
            .saturating_mul(system.fragment_size()),
        Err(e) => {
            let found = format!("cannot read the free space at {path}: {e}");
            return Check::not_ok(
                Status::Degraded,
                name,
                found,
                "the disk may become full",
                "choose another `db`",
            );
        }
    };
    let p2p = node.p2p.as_ref().map(|p2p| p2p.keep);
    let log = node.log.as_ref().map(|log| log.keep);
    let limits: Option<Vec<u64>> = p2p.iter().chain(&log).map(|keep| keep.bytes).collect();
    let limit = limits.map(|limits| limits.iter().fold(0_u64, |sum, n| sum.saturating_add(*n)));
    let used = size(&node.db);
    let found = format!("{path}: {} used, {} free", shown(used), shown(free));
    match limit {
        Some(limit) if free.saturating_add(used) < limit => Check::not_ok(
            Status::Degraded,
            name,
            format!("{found}, and up to {} may be kept", shown(limit)),
            "the disk becomes full before the oldest is deleted; then nothing more is stored",
            "lower `keep`, or choose another `db`",
        ),
        None if free < FREE => Check::not_ok(
            Status::Degraded,
            name,
            format!("{found}, and nothing limits it"),
            "the disk becomes full; then nothing more is stored",
            "set `keep`, or choose another `db`",
        ),
        Some(limit) => Check::ok(name, format!("{found}, at most {} kept", shown(limit))),
        None => Check::ok(name, format!("{found}, no limit")),
    }
}

/// Bytes of the files in a directory.
fn size(directory: &Path) -> u64 {
    let files = directory.read_dir().into_iter().flatten().flatten();
    let sizes = files
        .filter_map(|file| file.metadata().ok())
        .map(|file| file.len());
    sizes.sum()
}

/// A size with a unit.
fn shown(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}
