//! Sums of resident, swapped and cached pages, in bytes.

use std::ops::{AddAssign, SubAssign};

use serde::{Deserialize, Serialize};

/// Bytes of resident, swapped and cached pages. `anon + shmem` is the kernel's `RssAnon + RssShmem`.
/// Saved profiles have these fields, in this order.
///
/// # Examples
///
/// ```
/// use memprof_sys::usage::Usage;
///
/// let mut usage = Usage { anon: 8192, cache: 4096, ..Usage::default() };
/// usage += Usage { shmem: 4096, swap: 4096, ..Usage::default() };
/// assert_eq!(usage.resident(), 12_288);
/// // Swapped-out memory is in no sum.
/// assert_eq!(usage.value(), 16_384);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Resident anonymous memory, in bytes.
    pub anon: u64,
    /// Resident shared memory (shmem, tmpfs, memfd) mapped by the target, in bytes.
    pub shmem: u64,
    /// Page cache that the target's own I/O brought in and that is still cached, in bytes.
    pub cache: u64,
    /// Resident file mappings, in bytes. `cache` may count the same physical pages.
    pub file: u64,
    /// Swapped-out memory, in bytes; not resident.
    pub swap: u64,
    /// Hugetlb memory, in bytes; the kernel does not count it in RSS.
    pub hugetlb: u64,
}

impl Usage {
    /// Resident anonymous and shared memory: `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.anon + self.shmem
    }

    /// The figure of the `/v1` tree: resident anonymous and shared memory and page cache, in bytes.
    pub fn value(&self) -> u64 {
        self.resident() + self.cache
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, o: Usage) {
        self.anon += o.anon;
        self.shmem += o.shmem;
        self.file += o.file;
        self.swap += o.swap;
        self.hugetlb += o.hugetlb;
        self.cache += o.cache;
    }
}

/// Subtracts a part of the same pages: no figure goes below 0.
impl SubAssign for Usage {
    fn sub_assign(&mut self, o: Usage) {
        let take = |all: &mut u64, part: u64| *all = all.saturating_sub(part);
        take(&mut self.anon, o.anon);
        take(&mut self.shmem, o.shmem);
        take(&mut self.file, o.file);
        take(&mut self.swap, o.swap);
        take(&mut self.hugetlb, o.hugetlb);
        take(&mut self.cache, o.cache);
    }
}
