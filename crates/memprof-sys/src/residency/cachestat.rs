//! `cachestat(2)`: how much of a file is in the page cache, counted by the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::error::{Error, Result, denial};

/// Counts of pages of one range of a file, as `struct cachestat` of `linux/mman.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// Pages in the cache.
    pub nr_cache: u64,
    /// Of these, pages not yet written.
    pub nr_dirty: u64,
    /// Of these, pages being written.
    pub nr_writeback: u64,
    /// Pages that were in the cache and have been evicted.
    pub nr_evicted: u64,
    /// Pages evicted so recently that reading them again indicates memory pressure.
    pub nr_recently_evicted: u64,
}

const _: () = assert!(size_of::<CacheStat>() == 40);

#[repr(C)]
struct CacheStatRange {
    off: u64,
    len: u64,
}

const _: () = assert!(size_of::<CacheStatRange>() == 16);

/// Same number on every architecture except alpha.
const SYS_CACHESTAT: libc::c_long = 451;

/// Counts the cached pages of bytes `offset..offset + len` of a file; `len` 0 means up to its end.
///
/// # Errors
/// [`Error::Unsupported`] before Linux 6.5; [`Error::Denied`] if the kernel answers only the file's owner and
/// users with write access (commit 5f537664e705, "cachestat: fix page cache statistics permission
/// checking"); [`Error::Io`] otherwise, for example for hugetlbfs.
pub fn cachestat(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<CacheStat> {
    let range = CacheStatRange { off: offset, len };
    let mut stat = CacheStat::default();
    // SAFETY: both structures have the kernel's layout and live until the call returns; the kernel
    // reads the first, writes the second, and retains neither.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0u32,
        )
    };
    if status == 0 {
        return Ok(stat);
    }
    let source = io::Error::last_os_error();
    let what = "cachestat(2)".to_owned();
    Err(match source.raw_os_error() {
        Some(libc::ENOSYS) => Error::Unsupported {
            what: "cachestat(2), which needs Linux 6.5",
        },
        Some(errno @ (libc::EPERM | libc::EACCES)) => Error::Denied {
            what,
            reason: denial(errno),
            remedy: "run memprof as the file's owner, or with write access to it",
        },
        _ => Error::Io { what, source },
    })
}
