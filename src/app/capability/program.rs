//! Explains why a program file cannot be opened although its process can be inspected: the file system refuses access.

use std::path::Path;

use memprof_sys::ids::Pid;
use memprof_sys::{mounts, proc_dir};

/// Describes the consequences of a missing program file, and the remedy.
pub(super) fn unreadable(pid: Pid, why: &str) -> String {
    let path = proc_dir::link(pid, "exe").unwrap_or_default();
    let mounts = proc_dir::read(pid, "mountinfo").unwrap_or_default();
    let kind = file_system(&mounts, &path).unwrap_or_else(|| "unknown".to_owned());
    let helps = match kind.starts_with("fuse") {
        true => {
            "only the user who mounted it may read it; mount it with `-o allow_other`, or start the program from another file \
             system (an AppImage: `--appimage-extract`, then squashfs-root/AppRun)"
        }
        false => {
            "run memprof as a user who may read it, or start the program from another file system"
        }
    };
    format!(
        "cannot open its program {}: {why}. Stacks and the names of exported functions come from its memory, other functions \
         have no names. It is on a file system of type {kind}: {helps}",
        path.display()
    )
}

/// The type of the file system that contains a path, according to the text of `/proc/PID/mountinfo`.
fn file_system(mounts: &[u8], path: &Path) -> Option<String> {
    let on = mounts::parse(mounts).filter(|mount| path.starts_with(&mount.point));
    // The longest mount point wins. If several mounts share a directory, the last one is visible; `max_by_key` returns the
    // last.
    let on = on.max_by_key(|mount| mount.point.as_os_str().len())?;
    Some(on.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            36 21 0:40 / /tmp/.mount\\040x rw,nosuid - fuse.squashfuse squashfuse ro\n\
            37 21 0:41 / /tmp rw - tmpfs tmpfs rw\n\
            nonsense\n";
        let of = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(of("/tmp/.mount x/app").as_deref(), Some("fuse.squashfuse"));
        assert_eq!(of("/tmp/.mount x2/app").as_deref(), Some("tmpfs"));
        assert_eq!(of("/usr/bin/app").as_deref(), Some("ext4"));
        assert_eq!(of("app"), None);
    }
}
