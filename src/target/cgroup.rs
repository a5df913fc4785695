//! Control groups and the processes in them.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

use crate::event::Pid;

/// File with the list of processes in a control group's directory.
const PROCS: &str = "cgroup.procs";
/// Maximum number of groups searched; processes of further groups are missed.
const MAX_GROUPS: usize = 4096;

/// A control group, by its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    dir: PathBuf,
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dir.display().fmt(f)
    }
}

impl Cgroup {
    /// The control group at a path: a directory in a mounted cgroup file system of version 1 or 2, or a group's
    /// name below the mount of version 2, as in `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// There is no such directory, or it is not a control group.
    pub fn find(path: &Path) -> Result<Cgroup> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let mut places = vec![path.to_owned()];
        places.extend(mount_of_version_2().map(|root| root.join(inside)));
        for dir in &places {
            if is_cgroup(dir) {
                return Ok(Cgroup { dir: dir.clone() });
            }
        }
        let tried: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        bail!(
            "{} is not a control group (tried {}); give its directory below /sys/fs/cgroup, or its name \
             as in /proc/PID/cgroup",
            path.display(),
            tried.join(" and ")
        )
    }

    /// The processes in it and in the groups below it, except memprof.
    ///
    /// # Errors
    /// The group no longer exists.
    pub fn processes(&self) -> io::Result<Vec<Pid>> {
        let mut pids = read_procs(&self.dir)?;
        let mut groups = vec![self.dir.clone()];
        let mut seen = 0;
        while let Some(group) = groups.pop() {
            seen += 1;
            if seen > 1 {
                // A group below may have been removed meanwhile.
                pids.extend(read_procs(&group).unwrap_or_default());
            }
            if seen + groups.len() < MAX_GROUPS {
                groups.extend(below(&group));
            }
        }
        let own = std::process::id();
        pids.retain(|pid| pid.0 != own);
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }
}

fn is_cgroup(dir: &Path) -> bool {
    let on_cgroup = statfs(dir)
        .is_ok_and(|fs| [CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC].contains(&fs.filesystem_type()));
    on_cgroup && dir.join(PROCS).is_file()
}

/// One pid per line; 0 is a process outside memprof's pid namespace.
fn read_procs(dir: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(dir.join(PROCS))?;
    let pids = text.lines().filter_map(|line| line.parse().ok());
    Ok(pids.filter(|pid| *pid != 0).map(Pid).collect())
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok);
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|e| e.path()).collect()
}

/// Lines are `SOURCE POINT TYPE OPTIONS …`.
fn mount_of_version_2() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut lines = text.lines().map(|line| line.split(' '));
    lines.find_map(|mut words| {
        let point = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cgroup_is_told_so() {
        for path in ["/tmp", "/no/such/group", "", "/etc/passwd"] {
            let said = Cgroup::find(Path::new(path)).map_err(|e| e.to_string());
            assert!(said.is_err_and(|e| e.contains("not a control group")) || path.is_empty());
        }
    }

    #[test]
    fn own_group_holds_this_process_alone_or_others_too() {
        let Some(root) = mount_of_version_2() else {
            return;
        };
        let group = Cgroup::find(&root).unwrap();
        assert_eq!(Cgroup::find(Path::new("/")).unwrap(), group);
        let pids = group.processes().unwrap();
        assert!(pids.contains(&Pid(1)) && !pids.contains(&Pid(std::process::id())));
    }
}
