//! Probes how the kernel shows memory, with memory of memprof's own.

use std::fs::File;

use super::ioctl::{self, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, Region};
use super::pagemap::{Entry, read_entries};

/// Frame number of the zero page, found by reading a page of our own that was never written.
pub(super) fn zero_frame(page: u64) -> Option<u64> {
    let own = OwnMemory::map(page)?;
    own.touch(0);
    let mut entry = [0];
    read_entries(&own.pagemap, own.start() / page, &mut entry).ok()?;
    match Entry::decode(entry[0]) {
        Entry::NotFile(frame) if frame != 0 => Some(frame),
        _ => None,
    }
}

/// A private anonymous mapping of memprof's own.
pub(super) struct OwnMemory {
    memory: *const u8,
    len: usize,
    /// `/proc/self/pagemap`.
    pagemap: File,
}

impl OwnMemory {
    /// Maps `len` bytes of private anonymous memory.
    pub(super) fn map(len: u64) -> Option<OwnMemory> {
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        let len = usize::try_from(len).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other one.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        (memory != libc::MAP_FAILED).then_some(OwnMemory {
            memory: memory.cast(),
            len,
            pagemap,
        })
    }

    /// First address.
    pub(super) fn start(&self) -> u64 {
        self.memory as u64
    }

    /// Asks for huge pages.
    pub(super) fn advise_huge(&self) {
        // SAFETY: the range is our own mapping, and the advice does not change its content.
        unsafe { libc::madvise(self.memory.cast_mut().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Reads the byte at `offset`, which faults in the zero page.
    pub(super) fn touch(&self, offset: u64) {
        let offset = (offset as usize).min(self.len - 1);
        // SAFETY: `offset` lies within our own readable mapping.
        unsafe { self.memory.add(offset).read_volatile() };
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is our own and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.cast_mut().cast(), self.len) };
    }
}

/// Whether `PAGEMAP_SCAN` marks the huge zero page as zero, as it does from Linux 6.16 on (commit
/// 4a5e85f4eb8f, "fs/proc/task_mmu: fix PAGE_IS_PFNZERO detection for the huge zero folio"). Tested on
/// our own memory, because older series have the commit as well; `false` if the test is inconclusive.
pub(super) fn shows_huge_zero(page: u64) -> bool {
    const LEN: u64 = 4 << 20;
    let Some(own) = OwnMemory::map(LEN) else {
        return false;
    };
    own.advise_huge();
    let middle = (own.start() + LEN / 2) / (LEN / 2) * (LEN / 2);
    own.touch(middle - own.start());
    let wanted = PAGE_IS_PRESENT | PAGE_IS_HUGE | PAGE_IS_PFNZERO;
    let mut regions = [Region::default(); 8];
    let count = ioctl::scan(
        &own.pagemap,
        (middle, middle + page),
        0,
        wanted,
        &mut regions,
    );
    let both = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
    count.is_ok_and(|n| regions[..n].iter().any(|r| r.categories & both == both))
}
