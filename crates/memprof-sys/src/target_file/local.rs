//! Which files lie on file systems of this machine alone, which no other process or machine serves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::About;
use crate::mounts::{self, Mount};

/// File systems whose contents are on a device of this machine, or in its memory. An overlay is not among them: any of its
/// layers may be on a file system that a server answers for.
const LOCAL: [&str; 23] = [
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "nilfs2",
    "ntfs3",
    "ramfs",
    "reiserfs",
    "rootfs",
    "squashfs",
    "tmpfs",
    "udf",
    "vfat",
    "xfs",
    "zfs",
];
/// The mount table is read again after so long.
const FRESH: Duration = Duration::from_secs(1);

struct Mounts {
    read: Instant,
    /// Devices and mounts of local file systems.
    devices: BTreeSet<u64>,
    mounts: BTreeSet<u64>,
}

static MOUNTS: Mutex<Option<Mounts>> = Mutex::new(None);

/// Whether a file lies on a local file system that memprof sees mounted.
pub(super) fn is_local(about: &About) -> bool {
    let mut known = MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = match &mut *known {
        Some(known) if known.read.elapsed() < FRESH => known,
        old => old.insert(Mounts::parse(
            &fs::read("/proc/thread-self/mountinfo").unwrap_or_default(),
        )),
    };
    // (A file of btrfs has another device than its mount.)
    known.devices.contains(&about.device()) || known.mounts.contains(&about.mount())
}

impl Mounts {
    fn parse(text: &[u8]) -> Mounts {
        let mut found = Mounts {
            read: Instant::now(),
            devices: BTreeSet::new(),
            mounts: BTreeSet::new(),
        };
        for mount in mounts::parse(text).filter(is_on_this_machine) {
            let (major, minor) = mount.device;
            found.mounts.insert(mount.id);
            found.devices.insert(libc::makedev(major, minor));
        }
        found
    }
}

/// Whether a mount is local. Memprof's own root is, unless a server answers for it: without its root memprof cannot run.
fn is_on_this_machine(mount: &Mount) -> bool {
    let is_root = mount.point == Path::new("/");
    LOCAL.contains(&&*mount.kind) || is_root && mount.kind == "overlay"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_what_may_lie_above_them_are_not_local() {
        let line = |point: &str, kind: &str| {
            let line = format!("36 35 254:1 / {point} rw,relatime shared:1 - {kind} /dev/vda rw");
            !Mounts::parse(line.as_bytes()).mounts.is_empty()
        };
        assert!(line("/", "ext4") && line("/srv", "btrfs") && line("/", "overlay"));
        for kind in ["fuse", "fuse.sshfs", "fuseblk", "nfs4", "9p", "overlay"] {
            assert!(!line("/mnt", kind), "{kind}");
        }
        assert!(!line("/", "fuse.overlayfs"));
    }
}
