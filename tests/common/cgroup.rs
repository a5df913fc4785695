//! A cgroup for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::memprof::event::Pid;

use super::process::LIMIT;
use super::workload::unique_name;

/// A cgroup v2 group, removed when dropped.
pub struct Group {
    root: PathBuf,
    pub dir: PathBuf,
}

impl Group {
    pub fn new() -> Group {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut lines = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
        let root = lines.find(|l| l[2] == "cgroup2").expect("no cgroup2")[1];
        let root = PathBuf::from(root);
        let dir = root.join(unique_name("memprof-test-"));
        fs::create_dir(&dir).unwrap();
        Group { root, dir }
    }

    pub fn put(&self, pid: Pid) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub fn take_out(&self, pid: Pid) {
        fs::write(self.root.join("cgroup.procs"), pid.to_string()).unwrap();
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
