//! A cgroup for a test.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::LIMIT;
use super::workload::unique_name;
use memprof_sys::ids::Pid;

/// A group, removed when dropped.
pub struct Group {
    root: PathBuf,
    pub dir: PathBuf,
}

impl Group {
    /// A new group of version 2.
    pub fn new() -> Group {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let root = lines.find(|l| l[2] == "cgroup2").expect("no cgroup2")[1];
        Group::below(root)
    }

    /// A new group in the hierarchy that limits memory, and that one's version. `None` if there is none.
    pub fn new_where_memory_is_limited() -> Option<(Group, u32)> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let mut found = lines.filter_map(|line| match (line[2], line[1], line[3]) {
            ("cgroup", root, options) if options.split(',').any(|o| o == "memory") => {
                Some((Group::below(root), 1))
            }
            ("cgroup2", root, _) => {
                // Refused where it is enabled already, or where version 1 has it.
                let _ = fs::write(Path::new(root).join("cgroup.subtree_control"), "+memory");
                let group = Group::below(root);
                group.dir.join("memory.max").exists().then_some((group, 2))
            }
            _ => None,
        });
        found.next()
    }

    /// A new group in the hierarchy that is mounted there.
    pub fn new_in(root: &str) -> Group {
        Group::below(root)
    }

    /// A new group below this one.
    pub fn child(&self) -> Group {
        Group::at(self.root.clone(), &self.dir)
    }

    fn below(root: &str) -> Group {
        Group::at(PathBuf::from(root), Path::new(root))
    }

    fn at(root: PathBuf, above: &Path) -> Group {
        let dir = above.join(unique_name("memprof-test-"));
        fs::create_dir(&dir).unwrap();
        Group { root, dir }
    }

    /// Limits its memory, without swap.
    pub fn limit_memory(&self, bytes: u64) {
        let set = |file: &str, value: u64| fs::write(self.dir.join(file), value.to_string());
        // Where swap is not limited on its own, there is none.
        let _ = set("memory.swappiness", 0);
        let _ = set("memory.swap.max", 0);
        set("memory.limit_in_bytes", bytes)
            .or_else(|_| set("memory.max", bytes))
            .unwrap();
    }

    pub fn put(&self, pid: Pid) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub fn take_out(&self, pid: Pid) {
        fs::write(self.root.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// The processes in it.
    pub fn pids(&self) -> Vec<Pid> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap();
        text.lines().map(|pid| Pid(pid.parse().unwrap())).collect()
    }

    pub fn name(&self) -> &Path {
        self.dir.strip_prefix(&self.root).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes may still be exiting.
        let end = Instant::now() + LIMIT;
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
