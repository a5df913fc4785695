//! Control groups (version 2): where they are mounted, and which one a process or a unit is in.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use memprof_sys::{mounts, procfs};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Where the hierarchy of control groups is mounted; on hosts that have version 1, too, not at `/sys/fs/cgroup`.
///
/// # Errors
/// If there is none, or `/proc` cannot be read.
pub fn mount() -> io::Result<PathBuf> {
    let text = fs::read("/proc/self/mountinfo")?;
    let mut mounts: Vec<_> = mounts::parse(&text)
        .filter(|mount| mount.kind == "cgroup2")
        .collect();
    // A container may have a part of the hierarchy mounted as well.
    mounts.sort_by_key(|mount| mount.root != Path::new("/"));
    let first = mounts.into_iter().next().map(|mount| mount.point);
    first.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup2 is mounted"))
}

/// Checks that a directory is a control group of version 2.
///
/// # Errors
/// If it is none, or cannot be read.
pub fn check(directory: &Path) -> io::Result<()> {
    match statfs(directory)?.filesystem_type() {
        CGROUP2_SUPER_MAGIC => Ok(()),
        _ => Err(other("it is not a control group of version 2")),
    }
}

/// The directory of the control group that a process is in.
///
/// # Errors
/// If the process does not exist, or its group is outside of the recorder's cgroup namespace.
pub fn of_process(mount: &Path, pid: u32) -> io::Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mut lines = procfs::cgroups(&text);
    let path = lines.find_map(|(controllers, path)| controllers.is_empty().then_some(path));
    let path = path.ok_or_else(|| other("the process is in no control group of version 2"))?;
    let path = Path::new(path.trim_end_matches(" (deleted)").trim_start_matches('/'));
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(other(
            "the process's control group is outside of the recorder's cgroup namespace; run the container with the host's (--cgroupns=host)",
        ));
    }
    Ok(mount.join(path))
}

/// The directory of a systemd unit's control group, such as that of `octez-node.service`.
pub fn of_unit(mount: &Path, unit: &str) -> Option<PathBuf> {
    /// Slices in slices; a user's units are five below the mount.
    const DEPTH: usize = 6;
    let mut level = vec![mount.to_path_buf()];
    for _ in 0..DEPTH {
        let groups: Vec<_> = level.iter().flat_map(|dir| children(dir)).collect();
        if let Some(found) = groups.iter().find(|dir| dir.ends_with(unit)) {
            return Some(found.clone());
        }
        level = groups;
    }
    None
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

fn other(text: &str) -> io::Error {
    io::Error::other(text)
}

/// The processes in a control group and in those below it.
pub fn processes(dir: &Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse().ok());
    let below = children(dir).into_iter().flat_map(|dir| processes(&dir));
    own.chain(below).filter(|pid| *pid != 0).collect()
}
