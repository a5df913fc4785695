//! Which files lie on file systems of this machine alone, which no other process or machine serves.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::About;

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
    /// Lines are `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS…] - TYPE SOURCE OPTIONS`.
    fn parse(text: &[u8]) -> Mounts {
        let mut found = Mounts {
            read: Instant::now(),
            devices: BTreeSet::new(),
            mounts: BTreeSet::new(),
        };
        for line in String::from_utf8_lossy(text).lines() {
            if let Some((mount, device)) = local(line) {
                found.mounts.insert(mount);
                found.devices.insert(device);
            }
        }
        found
    }
}

/// Mount and device of a line, if they are local. Memprof's own root is, unless a server answers for it: without its root
/// memprof cannot run.
fn local(line: &str) -> Option<(u64, u64)> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ');
    let mount = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    let is_root = fields.nth(1)? == "/";
    let kind = right.split(' ').next()?;
    let is_local = LOCAL.contains(&kind) || is_root && kind == "overlay";
    is_local.then_some((mount, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_what_may_lie_above_them_are_not_local() {
        let line = |point: &str, kind: &str| {
            local(&format!(
                "36 35 254:1 / {point} rw,relatime shared:1 - {kind} /dev/vda rw"
            ))
            .is_some()
        };
        assert!(line("/", "ext4") && line("/srv", "btrfs") && line("/", "overlay"));
        for kind in ["fuse", "fuse.sshfs", "fuseblk", "nfs4", "9p", "overlay"] {
            assert!(!line("/mnt", kind), "{kind}");
        }
        assert!(!line("/", "fuse.overlayfs"));
        assert_eq!(local("x"), None);
    }
}
