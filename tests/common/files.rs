//! Files and their page cache.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::process::wait_until;
use memprof_sys::residency::Error;
use memprof_sys::residency::cachestat::cachestat;

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const OVERLAY: i64 = 0x794c_7630;

const MIB: u64 = 1 << 20;

/// A new file of `len` bytes.
pub fn written(path: &Path, len: u64) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    let mut left = len;
    while left > 0 {
        let part = vec![b'x'; left.min(MIB) as usize];
        (&file).write_all(&part).unwrap();
        left -= part.len() as u64;
    }
    file.sync_all().unwrap();
    file
}

/// A new file of `len` bytes, none of them cached.
pub fn cold(path: &Path, len: u64) -> File {
    let file = written(path, len);
    evict(&file);
    file
}

/// Whether files in this directory have page cache that can be dropped.
pub fn has_page_cache(dir: &Path) -> bool {
    let kind = nix::sys::statfs::statfs(dir).unwrap().filesystem_type().0;
    ![TMPFS, RAMFS, OVERLAY].contains(&(kind as i64))
}

/// Fails the test unless files in this directory have page cache that can be dropped.
pub fn require_page_cache(dir: &Path) {
    assert!(
        has_page_cache(dir),
        "{} is on a tmpfs or an overlay, whose files have no page cache of their own: set \
         CARGO_TARGET_DIR to a directory on a disk",
        dir.display()
    );
}

/// KiB of a file in the page cache, as reported by cachestat(2), or by mincore(2) before Linux 6.5.
#[track_caller]
pub fn cached(file: &File) -> u64 {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let pages = match cachestat(file.as_fd(), 0, 0) {
        Err(Error::Unsupported { .. }) => cached_by_mincore(file, page),
        stat => stat.unwrap().nr_cache,
    };
    pages * page / 1024
}

/// Pages of a file in the page cache: for pages that a mapping has not touched, mincore(2) checks the page cache.
#[track_caller]
fn cached_by_mincore(file: &File, page: u64) -> u64 {
    let len = file.metadata().unwrap().len();
    let Some(size) = NonZeroUsize::new(len as usize) else {
        return 0;
    };
    let mut pages = vec![0_u8; len.div_ceil(page) as usize];
    // SAFETY: the kernel chooses a free address for the mapping, which is never read.
    let start = unsafe {
        mmap(
            None,
            size,
            ProtFlags::PROT_NONE,
            MapFlags::MAP_SHARED,
            file,
            0,
        )
    };
    let start = start.unwrap();
    // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
    let done = unsafe { libc::mincore(start.as_ptr(), size.get(), pages.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // SAFETY: this is the mapping made above; nothing refers to it.
    unsafe { munmap(start, size.get()) }.unwrap();
    assert_eq!(done, 0, "mincore: {error}");
    pages.iter().filter(|state| *state & 1 == 1).count() as u64
}

/// Drops the file's clean pages from the page cache.
pub fn evict(file: &File) {
    // The kernel initially keeps pages to which a CPU still holds a reference.
    wait_until(|| {
        posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        cached(file) == 0
    });
}
