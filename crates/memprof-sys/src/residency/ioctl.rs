//! The `PAGEMAP_SCAN` request on `/proc/PID/pagemap` (Linux 6.7, commit 52526ca7fdb9).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The page is not anonymous: a page of a file or of shmem.
pub(super) const PAGE_IS_FILE: u64 = 1 << 2;
/// The page is mapped.
pub(super) const PAGE_IS_PRESENT: u64 = 1 << 3;
/// There is a page table entry, but no page is mapped: swapped out, under migration, or a marker.
pub(super) const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// The shared zero page is mapped.
pub(super) const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// The page is mapped by a huge page table entry.
pub(super) const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96);

/// `struct page_region` of `linux/fs.h`: pages of equal categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// `PAGE_IS_…` bits.
    pub categories: u64,
}

const _: () = assert!(size_of::<Region>() == 24);

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, ScanArg);

/// Fills `regions` with the mapped or swapped pages between `start` and `end`, at most `max_pages`,
/// and returns the number of regions. Each region has the categories in `wanted`.
///
/// The request's `walk_end` is not used: the kernel leaves a stale value there once it has filled its
/// internal buffer of 512 regions. The end of the last region is always right.
pub(super) fn scan(
    pagemap: &File,
    (start, end): (u64, u64),
    max_pages: u64,
    wanted: u64,
    regions: &mut [Region],
) -> io::Result<usize> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start,
        end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages,
        category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        return_mask: wanted,
        ..ScanArg::default()
    };
    // SAFETY: `arg` has the kernel's layout and states its size; `vec` and `vec_len` describe `regions`,
    // which outlives the call and accepts every bit pattern.
    let count = unsafe { pagemap_scan(pagemap.as_raw_fd(), &raw mut arg) }?;
    Ok(usize::try_from(count).unwrap_or(0).min(regions.len()))
}

/// Whether this kernel supports the request.
pub(super) fn is_supported(pagemap: &File) -> io::Result<bool> {
    match scan(
        pagemap,
        (0, 0),
        0,
        PAGE_IS_PRESENT,
        &mut [Region::default()],
    ) {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => Ok(false),
        Err(e) => Err(e),
    }
}
