//! The file tree of a small container, like those of Alpine Linux: busybox, musl, and a program; and processes that run in
//! namespaces of their own with that tree as their root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::wait_until;
use super::skip::skip;
use super::workload::Workload;
use crate::common::programs::copy_program;
use memprof_sys::ids::Pid;

/// Where programs look for musl's loader.
const LOADER: &str = "/lib/ld-musl-x86_64.so.1";
/// Leaves the old root, as container runtimes do. Arguments: the new root, then the command.
const ENTER: &str = "mount --bind \"$1\" \"$1\"; cd \"$1\"; shift; mount -t proc proc proc; pivot_root . old; \
    exec /bin/busybox sh -ec 'umount -l /old; exec \"$0\" \"$@\"' \"$@\"";

/// A container's file tree.
pub struct Container {
    root: TempDir,
}

impl Container {
    /// With busybox, and with musl's loader if this machine has it. Without busybox, reports the test as skipped and returns
    /// `None`.
    #[track_caller]
    pub fn new() -> Option<Container> {
        let root = tempfile::tempdir().unwrap();
        for dir in ["bin", "lib", "old", "proc", "dev"] {
            fs::create_dir(root.path().join(dir)).unwrap();
        }
        let Some(busybox) = static_busybox() else {
            skip("there is no busybox that is linked statically (busybox-static)");
            return None;
        };
        let container = Container { root };
        container.put(&busybox, "/bin/busybox");
        symlink("busybox", container.at("/bin/sh")).unwrap();
        if Path::new(LOADER).exists() {
            container.put(Path::new(LOADER), LOADER);
        }
        fs::write(container.at("/dev/zero"), vec![0; 1 << 20]).unwrap();
        Some(container)
    }

    /// Where a path of the container is on this machine.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Copies a file into it.
    pub fn put(&self, file: &Path, path: &str) {
        let to = self.at(path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        // (Another process may be running what is there.)
        let _ = fs::remove_file(&to);
        copy_program(file, to);
    }

    /// Starts a command in it, and returns it with its process id on this machine.
    pub fn start(&self, command: &[&str]) -> (Workload, Pid) {
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--fork",
            "--kill-child",
        ]);
        unshare
            .args(["/bin/sh", "-ec", ENTER, "sh"])
            .arg(self.root.path());
        let workload = Workload::start_as(unshare.args(command));
        let children = format!("/proc/{0}/task/{0}/children", workload.pid());
        let program = Path::new(command[0]);
        let mut pid = None;
        wait_until(|| {
            let first = fs::read_to_string(&children).unwrap_or_default();
            pid = first
                .split_whitespace()
                .next()
                .map(|pid| pid.parse().unwrap());
            pid.is_some_and(|pid: u32| {
                fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
            })
        });
        (workload, Pid(pid.unwrap()))
    }
}

fn static_busybox() -> Option<PathBuf> {
    let all = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"];
    all.iter().map(PathBuf::from).find(|path| {
        let out = Command::new("readelf").arg("-lW").arg(path).output();
        out.is_ok_and(|out| {
            out.status.success() && !String::from_utf8_lossy(&out.stdout).contains("INTERP")
        })
    })
}
