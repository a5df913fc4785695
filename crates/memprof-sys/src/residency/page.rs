//! Kinds of pages, and runs of pages of one kind.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::ids::Addr;

/// Proportional shares are in units of 1/4096 byte: `1 << SHARE_SHIFT` units are one byte, as in the kernel (`PSS_SHIFT` in
/// fs/proc/task_mmu.c).
pub const SHARE_SHIFT: u32 = 12;

/// The figure under which a page counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageKind {
    /// Resident anonymous memory (`RssAnon`), including pages merged by KSM.
    Anon,
    /// Resident shmem (`RssShmem`).
    Shmem,
    /// A resident page of a file (`RssFile`).
    File,
    /// Swapped-out anonymous memory (`VmSwap`).
    Swap,
    /// A page of hugetlbfs (`HugetlbPages`).
    Hugetlb,
}

/// Neighbouring pages of one kind. Runs are reported in address order and do not cross a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// First address.
    pub start: Addr,
    /// First address after it.
    pub end: Addr,
    /// The figure under which the pages count.
    pub kind: PageKind,
    /// Whether huge page table entries map them. [`Method::Pagemap`](super::Method::Pagemap) cannot see this
    /// and always sets `false`.
    pub huge: bool,
    /// Number of mappings of each page in all processes; `None` if mappings are not counted.
    pub maps: Option<NonZeroU32>,
}

impl PageRun {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// This mapping's proportional share of the pages, in units of 1/4096 byte, rounded down for each page as in the kernel; `None`
    /// if mappings are not counted.
    pub fn share(&self) -> Option<u64> {
        let maps = u64::from(self.maps?.get());
        let page = page_size();
        Some((page << SHARE_SHIFT) / maps * (self.len() / page))
    }

    /// Whether the run covers no address. A scan never reports an empty run.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// The size of a base page, in bytes.
pub fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}
