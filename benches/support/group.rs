//! A control group for the processes of a measurement.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::skip::skip_named;

/// A cgroup v2 group, removed when dropped.
pub struct Group {
    root: PathBuf,
    dir: PathBuf,
}

impl Group {
    /// Creates a group; if that is not possible, reports this benchmark as skipped and returns `None`.
    pub fn new(bench: &str) -> Result<Option<Group>> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let Some(mount) = lines.find(|l| l.get(2) == Some(&"cgroup2")) else {
            skip_named(bench, "no cgroup2 is mounted");
            return Ok(None);
        };
        let root = PathBuf::from(mount[1]);
        let dir = root.join(format!("memprof-bench-{}", std::process::id()));
        if let Err(e) = std::fs::create_dir(&dir) {
            skip_named(bench, format_args!("cannot make {}: {e}", dir.display()));
            return Ok(None);
        }
        Ok(Some(Group { root, dir }))
    }

    /// The name of the group, as in `/proc/PID/cgroup`.
    pub fn name(&self) -> Result<String> {
        Ok(format!("/{}", self.dir.strip_prefix(&self.root)?.display()))
    }

    /// A command that runs in this group.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let enter = format!(
            "echo $$ >{}/cgroup.procs && exec \"$@\"",
            self.dir.display()
        );
        command.args(["-c", &enter, "sh"]).args(argv);
        command
    }

    /// Moves a process into this group.
    pub fn add(&self, pid: u32) -> Result<()> {
        let procs = self.dir.join("cgroup.procs");
        std::fs::write(&procs, pid.to_string())
            .with_context(|| format!("cannot write {}", procs.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}
