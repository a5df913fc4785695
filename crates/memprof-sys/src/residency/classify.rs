//! Determines the backing of a mapping: shmem, a file, huge pages, a device.
//!
//! `/proc/PID/maps` gives a device number, not a file system. The sources, in order:
//! 1. `/proc/PID/mountinfo` names the file system of every device the process has mounted. It never
//!    blocks; a `statfs` on a dead network file system would.
//! 2. `statfs` and `statx` of `/proc/PID/map_files/START-END` (CAP_SYS_ADMIN or, from Linux 5.9,
//!    CAP_CHECKPOINT_RESTORE). They follow the link to the mapped inode without opening it, so no
//!    device's `open` is called, and nobody waits for the `statfs` longer than a moment. This also reaches the kernel's own
//!    mounts of shmem and hugetlbfs.
//! 3. If that is refused: the device numbers of memprof's own memfds, which lie on those mounts.
//! 4. The name: paths below `/dev` other than `/dev/shm` count as devices.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use super::inode::{Dev, huge_page_shifts, memfd_dev, stat_node};
use super::proc_maps::DELETED;
use super::vma::{Backing, Vma};
use crate::ids::Pid;
use crate::target_file::{about, about_path, file_system_at, find_in, root_of};
use crate::{mounts, proc_dir};

/// Maximum number of cached (device, inode) pairs; beyond it the cache is cleared.
const CACHE_LIMIT: usize = 65_536;
/// The kind of a file system, from its name or magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FsKind {
    Shmem,
    Hugetlb,
    Stacked,
    /// Served by another machine or process; no request is sent to it, because that could block.
    Remote,
    Other,
}

impl FsKind {
    fn from_name(name: &str) -> FsKind {
        match name {
            "tmpfs" | "devtmpfs" | "shm" => FsKind::Shmem,
            "hugetlbfs" => FsKind::Hugetlb,
            "overlay" | "ecryptfs" | "aufs" | "shiftfs" | "erofs" => FsKind::Stacked,
            "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "afs" | "ncpfs" | "lustre" => {
                FsKind::Remote
            }
            name if name == "fuse" || name.starts_with("fuse.") => FsKind::Remote,
            _ => FsKind::Other,
        }
    }

    /// From `f_type` of `statfs(2)`; values of `linux/magic.h`.
    fn from_magic(magic: u64) -> FsKind {
        match magic {
            0x0102_1994 => FsKind::Shmem,
            0x9584_58f6 => FsKind::Hugetlb,
            // overlayfs, FUSE, ecryptfs, erofs
            0x794c_7630 | 0x6573_5546 | 0xf15f | 0xe0f5_e1e2 => FsKind::Stacked,
            _ => FsKind::Other,
        }
    }

    fn backing(self) -> Backing {
        match self {
            FsKind::Shmem => Backing::Shmem,
            FsKind::Hugetlb => Backing::Hugetlb,
            FsKind::Stacked | FsKind::Remote => Backing::Stacked,
            FsKind::Other => Backing::File,
        }
    }
}

/// Determines the backing of mappings and caches it; use one for all scans.
#[derive(Debug)]
pub struct Classifier {
    files: HashMap<(Dev, u64), Backing>,
    own: HashMap<Dev, FsKind>,
    use_map_files: bool,
}

impl Default for Classifier {
    fn default() -> Self {
        Classifier::new()
    }
}

impl Classifier {
    /// A classifier with an empty cache.
    pub fn new() -> Classifier {
        Classifier {
            files: HashMap::new(),
            own: own_mounts(),
            use_map_files: true,
        }
    }

    /// As [`Classifier::new`], but without `/proc/PID/map_files`, as if it were not permitted.
    pub fn without_map_files() -> Classifier {
        Classifier {
            use_map_files: false,
            ..Classifier::new()
        }
    }

    /// Sets [`Vma::backing`] of every mapping that has a file.
    pub(crate) fn classify<'a>(&mut self, pid: Pid, vmas: impl IntoIterator<Item = &'a mut Vma>) {
        if self.files.len() > CACHE_LIMIT {
            self.files.clear();
        }
        let mut mounts = None;
        for vma in vmas.into_iter().filter(|v| v.has_file()) {
            if vma.deleted && is_named_deleted(pid, vma) {
                (vma.name, vma.deleted) = (format!("{}{DELETED}", vma.name), false);
            }
            let key = (vma.dev, vma.ino);
            if let Some(&known) = self.files.get(&key) {
                vma.backing = known;
                continue;
            }
            let mounts = mounts.get_or_insert_with(|| mounted(pid));
            if let Some(backing) = self.find_out(pid, vma, mounts) {
                self.files.insert(key, backing);
                vma.backing = backing;
            } else {
                vma.backing = guess(vma, mounts, &self.own);
            }
        }
    }

    /// The backing according to the kernel; `None` if the mapping is gone or access is refused.
    fn find_out(&self, pid: Pid, vma: &Vma, mounts: &HashMap<Dev, FsKind>) -> Option<Backing> {
        if mounts.get(&vma.dev) == Some(&FsKind::Remote) {
            return Some(Backing::Stacked);
        }
        if !self.use_map_files {
            return None;
        }
        let (start, end) = (vma.start.0, vma.end.0);
        let link = proc_dir::path(pid, &format!("map_files/{start:x}-{end:x}"));
        let node = stat_node(&CString::new(&*link).ok()?)?;
        if let Some(backing) = node.backing() {
            return Some(backing);
        }
        let kind = match mounts.get(&vma.dev) {
            Some(&kind) => kind,
            None => FsKind::from_magic(file_system_at(&link).ok()?),
        };
        Some(kind.backing())
    }
}

/// Whether a file that the kernel's text calls deleted exists under a name that ends so.
fn is_named_deleted(pid: Pid, vma: &Vma) -> bool {
    let (start, end) = (vma.start.0, vma.end.0);
    let has_path = !vma.name.starts_with("/memfd:");
    has_path && named_deleted(pid, &format!("map_files/{start:x}-{end:x}"), &vma.name)
}

/// The same of the file that a link of a process's directory leads to; `bare` is its name without the end.
pub(super) fn named_deleted(pid: Pid, link: &str, bare: &str) -> bool {
    let mapped = proc_dir::with(pid, |dir| about_path(Path::new(dir).join(link)));
    let Some(mapped) = mapped.ok().filter(|mapped| !mapped.is_unlinked()) else {
        return false;
    };
    let path = PathBuf::from(format!("{bare}{DELETED}"));
    let named = root_of(pid).and_then(|root| about(&find_in(&root, &path, 0)?));
    named.is_ok_and(|named| named.identity() == mapped.identity())
}

/// The devices of the kernel's own mounts, on which memfds lie: one of shmem and one of hugetlbfs for
/// each huge page size.
fn own_mounts() -> HashMap<Dev, FsKind> {
    let plain = memfd_dev(0).map(|dev| (dev, FsKind::Shmem));
    let huge = huge_page_shifts().into_iter().filter_map(|shift| {
        let flags = libc::MFD_HUGETLB | (shift << libc::MFD_HUGE_SHIFT);
        memfd_dev(flags).map(|dev| (dev, FsKind::Hugetlb))
    });
    plain.into_iter().chain(huge).collect()
}

/// Guesses the backing by device and name, without map_files.
fn guess(vma: &Vma, mounts: &HashMap<Dev, FsKind>, own: &HashMap<Dev, FsKind>) -> Backing {
    if let Some(kind) = own.get(&vma.dev) {
        return kind.backing();
    }
    if vma.name == "/dev/zero" && !vma.deleted {
        return Backing::Anon;
    }
    let pseudo = !vma.name.starts_with('/');
    let device = vma.name.starts_with("/dev/") && !vma.name.starts_with("/dev/shm/");
    if pseudo || device {
        return Backing::Device;
    }
    if vma.name.starts_with("/anon_hugepage") {
        return Backing::Hugetlb;
    }
    mounts.get(&vma.dev).map_or(Backing::File, |k| k.backing())
}

/// The file systems that `pid` has mounted, by device; if it has ended, those of memprof.
fn mounted(pid: Pid) -> HashMap<Dev, FsKind> {
    let text = proc_dir::read(pid, "mountinfo");
    let text = text.or_else(|_| fs::read("/proc/self/mountinfo"));
    kinds(&text.unwrap_or_default())
}

/// Without `rootfs`: it is a tmpfs or a ramfs, and only `statfs` shows which.
fn kinds(mountinfo: &[u8]) -> HashMap<Dev, FsKind> {
    mounts::parse(mountinfo)
        .filter(|mount| mount.kind != "rootfs")
        .map(|mount| (mount.device, FsKind::from_name(&mount.kind)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn file_systems_have_kinds() {
        let text = b"24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=1k\n\
             25 24 0:23 / /dev/shm rw master:1 propagate_from:2 - tmpfs tmpfs rw\n\
             27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
             28 1 0:40 / /a\\040-\\040b rw - overlay none rw\n\
             29 1 0:41 / /h rw - hugetlbfs none rw\n\
             30 1 0:42 / /n rw - nfs4 host:/x rw\n\
             1 1 0:2 / / rw - rootfs none rw,size=491984k\n\
             31 1 0:43 / /f rw - fuse.sshfs x rw\n";
        let mounts = kinds(text);
        let expected = [
            ((0, 6), FsKind::Shmem),
            ((0, 23), FsKind::Shmem),
            ((254, 0), FsKind::Other),
            ((0, 40), FsKind::Stacked),
            ((0, 41), FsKind::Hugetlb),
            ((0, 42), FsKind::Remote),
            ((0, 43), FsKind::Remote),
        ];
        assert_eq!(mounts, expected.into_iter().collect());
    }

    /// The name of the mapping of a file of this process, and whether it is deleted.
    fn shown(file: &std::fs::File) -> (String, bool) {
        use std::os::unix::fs::MetadataExt;
        let ino = file.metadata().unwrap().ino();
        let own = Pid(std::process::id());
        let vmas = crate::residency::proc_maps::read(own, &mut Classifier::new()).unwrap();
        let vma = vmas.into_iter().find(|vma| vma.ino == ino).unwrap();
        (vma.name, vma.deleted)
    }

    #[test]
    fn a_file_may_be_named_as_if_it_were_deleted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["plain", "odd (deleted)"] {
            let path = dir.path().join(name);
            fs::write(&path, "x").unwrap();
            let file = fs::File::open(&path).unwrap();
            // SAFETY: a new mapping, which nothing reads.
            let mapped = unsafe {
                let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
                libc::mmap(std::ptr::null_mut(), 1, read, private, file.as_raw_fd(), 0)
            };
            assert_ne!(mapped, libc::MAP_FAILED);
            let text = path.to_str().unwrap().to_owned();
            assert_eq!(shown(&file), (text.clone(), false));
            fs::remove_file(&path).unwrap();
            assert_eq!(shown(&file), (text, true));
        }
    }

    #[test]
    fn own_memfds_name_the_shmem_mount() {
        let own = own_mounts();
        assert!(own.values().any(|k| *k == FsKind::Shmem), "{own:?}");
    }
}
