//! Control groups and their processes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};

use super::is_own;
use crate::ids::Pid;
use crate::mounts::{self, Mount};
use crate::procfs::controls_memory;
use crate::residency::cgroup::{GroupFigures, Version};

/// The file with the process ids, in a control group's directory.
const PROCS: &str = "cgroup.procs";
/// Maximum number of groups to search; processes of further groups are missed.
const MAX_GROUPS: usize = 4096;

/// A control group, identified by its directory.
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
    /// Finds the control group at a path: a directory in a mounted cgroup v1 or v2 file system, or a group's name below the cgroup
    /// v2 mount, as in `/proc/PID/cgroup`.
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

    /// The processes in this group and its descendants, except memprof's own.
    ///
    /// # Errors
    /// The group no longer exists.
    pub fn processes(&self) -> io::Result<Vec<Pid>> {
        let mut pids = read_procs(&self.dir)?;
        for group in self.groups().iter().skip(1) {
            // A descendant may have been removed meanwhile.
            pids.extend(read_procs(group).unwrap_or_default());
        }
        pids.retain(|pid| !is_own(*pid));
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// The directories of this group and its descendants, at most [`MAX_GROUPS`]. The group's own directory comes first.
    fn groups(&self) -> Vec<PathBuf> {
        let mut groups = vec![self.dir.clone()];
        let mut at = 0;
        while let Some(group) = groups.get(at).filter(|_| groups.len() < MAX_GROUPS) {
            groups.extend(below(group));
            at += 1;
        }
        groups.truncate(MAX_GROUPS);
        groups
    }

    /// The group's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The memory that the kernel charges to the group now.
    ///
    /// # Errors
    /// The reason why there are no figures, as a message.
    pub fn charged(&self) -> std::result::Result<(Version, GroupFigures), String> {
        let version = self.version_of_memory()?;
        let groups = self.groups().len() as u64;
        GroupFigures::read(&self.dir, version, groups)
            .map(|figures| (version, figures))
            .map_err(|e| format!("cannot read {}/memory.stat: {e}", self.dir.display()))
    }

    /// The cgroup version of the group's memory controller; as the error, why it has none.
    fn version_of_memory(&self) -> std::result::Result<Version, String> {
        // The cgroup v2 root group has `memory.stat` but no usage file.
        let has = |name: &str| self.dir.join(name).is_file();
        if has(Version::One.usage_file()) {
            return Ok(Version::One);
        }
        if has("memory.stat") {
            return Ok(Version::Two);
        }
        let dir = self.dir.display();
        if !self.dir.is_dir() {
            return Err(format!("the control group {dir} no longer exists"));
        }
        let elsewhere = mounted().into_iter().find(charges_memory);
        Err(match elsewhere {
            Some(mount) => format!(
                "{dir} has no memory controller: memory is charged to the groups of another hierarchy; give the group's \
                 directory below {}",
                mount.point.display()
            ),
            None => format!(
                "the memory controller is not enabled in {dir}: the memory of its processes is charged to a group above \
                 it; `echo +memory > {}/cgroup.subtree_control` enables it, for what is charged from then on",
                self.dir.parent().unwrap_or(&self.dir).display()
            ),
        })
    }
}

fn is_cgroup(dir: &Path) -> bool {
    let on_cgroup = statfs(dir)
        .is_ok_and(|fs| [CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC].contains(&fs.filesystem_type()));
    on_cgroup && dir.join(PROCS).is_file()
}

/// Parses one pid per line. The kernel writes 0 for a process outside memprof's pid namespace.
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

fn mounted() -> Vec<Mount> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounts::parse(&text).collect()
}

/// Whether a mount is the cgroup v1 hierarchy that charges memory.
fn charges_memory(mount: &Mount) -> bool {
    mount.kind == "cgroup" && controls_memory(&mount.options)
}

fn mount_of_version_2() -> Option<PathBuf> {
    let mut found = mounted().into_iter();
    let found = found.find(|mount| mount.kind == "cgroup2");
    found.map(|mount| mount.point)
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
    fn a_group_of_another_controller_has_no_memory_figures() {
        let pids = Path::new("/sys/fs/cgroup/pids");
        let Ok(group) = Cgroup::find(pids) else {
            return;
        };
        let why = group.charged().unwrap_err();
        assert!(why.contains("no memory controller"), "{why}");
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
