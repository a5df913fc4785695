//! Inode types, read without opening the inode, and the devices of the kernel's own mounts.

use std::ffi::CStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::vma::Backing;
use crate::file_id::FileId;

/// A device number: (major, minor).
pub(super) type Dev = (u32, u32);

/// `/dev/zero`, a private mapping of which is plain anonymous memory.
const DEV_ZERO: Dev = (1, 5);

/// The type and attributes of an inode.
pub(super) struct Node {
    regular: bool,
    dax: bool,
    rdev: Dev,
    char_device: bool,
}

impl Node {
    /// The backing; `None` for a regular file, whose backing depends on its file system.
    pub(super) fn backing(&self) -> Option<Backing> {
        if self.char_device && self.rdev == DEV_ZERO {
            return Some(Backing::Anon);
        }
        (!self.regular || self.dax).then_some(Backing::Device)
    }
}

/// The inode's pages are mapped directly from persistent memory (Linux 5.8).
const STATX_ATTR_DAX: u64 = 0x0020_0000;

/// Identity of the regular file at a path; neither opens the file nor contacts a remote server.
pub fn file_id(path: &CStr) -> Option<FileId> {
    identity(path, libc::S_IFREG)
}

/// As [`file_id`], of a directory.
pub fn directory_id(path: &CStr) -> Option<FileId> {
    identity(path, libc::S_IFDIR)
}

fn identity(path: &CStr, kind: libc::mode_t) -> Option<FileId> {
    let st = statx(path, libc::STATX_TYPE | libc::STATX_INO)?;
    let wanted = u32::from(st.stx_mode) & libc::S_IFMT == kind;
    wanted.then_some(FileId {
        dev: (st.stx_dev_major, st.stx_dev_minor),
        ino: st.stx_ino,
    })
}

fn statx(path: &CStr, fields: u32) -> Option<libc::statx> {
    let mut buffer = MaybeUninit::<libc::statx>::uninit();
    // SAFETY: `path` is NUL-terminated and `buffer` has room for what the kernel writes.
    let status = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            fields,
            buffer.as_mut_ptr(),
        )
    };
    // SAFETY: a successful call fills the whole structure.
    (status == 0).then(|| unsafe { buffer.assume_init() })
}

/// Reads type and attributes of the inode at a path without opening it.
pub(super) fn stat_node(path: &CStr) -> Option<Node> {
    let st = statx(path, libc::STATX_TYPE)?;
    let kind = u32::from(st.stx_mode) & libc::S_IFMT;
    Some(Node {
        regular: kind == libc::S_IFREG,
        dax: st.stx_attributes & STATX_ATTR_DAX != 0,
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        char_device: kind == libc::S_IFCHR,
    })
}

/// Base-two logarithms of the huge page sizes, from `/sys/kernel/mm/hugepages/hugepages-NkB`.
pub(super) fn huge_page_shifts() -> Vec<u32> {
    let Ok(dir) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return Vec::new();
    };
    dir.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        Some(kib.parse::<u64>().ok()?.checked_mul(1024)?.trailing_zeros())
    })
    .collect()
}

/// The device number of memfds created with `flags`.
pub(super) fn memfd_dev(flags: u32) -> Option<Dev> {
    // SAFETY: the name is NUL-terminated; no other pointer is passed.
    let fd = unsafe { libc::memfd_create(c"memprof".as_ptr(), flags | libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut buffer = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fd` is open and `buffer` has room for what the kernel writes.
    if unsafe { libc::fstat(fd.as_raw_fd(), buffer.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded and has filled the whole structure.
    let dev = unsafe { buffer.assume_init() }.st_dev;
    Some((libc::major(dev), libc::minor(dev)))
}
