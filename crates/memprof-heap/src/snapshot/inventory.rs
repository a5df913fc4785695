//! The kernel's figures for a process's private memory by mapping (`smaps`): the sum, and the memory that a forked
//! child does not inherit.

use crate::whole::Anonymous;
use memprof_sys::ids::Pid;
use memprof_sys::residency::smaps::{self, AtFork, Region};
use memprof_sys::residency::{Classifier, Result, VmaKind, figures};

/// Summary of a process's `smaps`.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Anonymous memory.
    pub anonymous: Anonymous,
    /// Mappings that a forked child does not have, or has empty.
    pub kept_back: Vec<KeptBack>,
    /// Private huge pages of hugetlbfs, in bytes. They do not count as anonymous memory.
    pub hugetlb: u64,
}

/// A mapping whose private memory a forked child does not inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptBack {
    /// First address.
    pub start: u64,
    /// End of the mapping.
    pub end: u64,
    /// Whether the child has the mapping, but empty (`MADV_WIPEONFORK`).
    pub is_wiped: bool,
    /// Anonymous memory of the mapping, resident or swapped out, in bytes.
    pub bytes: u64,
}

impl Inventory {
    /// Reads the inventory of a process.
    ///
    /// # Errors
    /// The errors of [`smaps::read`].
    pub(super) fn read(pid: Pid) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        // Not the figure of `smaps`, which includes shared memory that is swapped out.
        inventory.anonymous.swapped = figures::counters(pid)?.swap;
        smaps::read(pid, &mut Classifier::new(), &mut |region| {
            inventory.add(&region);
        })?;
        Ok(inventory)
    }

    fn add(&mut self, region: &Region) {
        let (vma, figures) = (&region.vma, &region.figures);
        self.anonymous.resident += figures.anonymous;
        if vma.kind() == VmaKind::Hugetlb && !vma.perms.shared {
            self.hugetlb += figures.hugetlb;
        }
        if region.at_fork != AtFork::Shared && !vma.perms.shared {
            self.kept_back.push(KeptBack {
                start: vma.start.0,
                end: vma.end.0,
                is_wiped: region.at_fork == AtFork::Wiped,
                bytes: figures.anonymous + figures.swap,
            });
        }
    }

    /// Anonymous memory that a forked child does not inherit, in bytes.
    pub(super) fn bytes_kept_back(&self) -> u64 {
        self.kept_back.iter().map(|kept| kept.bytes).sum()
    }

    /// Returns the reason if the process must not be forked. When it writes to a page of hugetlbfs while a child
    /// exists, the kernel copies the page to another one of the pool. If the pool is empty, the kernel takes the page
    /// from the child, or, without a reservation, kills the process.
    pub(super) fn refuses_fork(&self) -> Option<String> {
        let mib = self.hugetlb >> 20;
        (mib > 0).then(|| {
            format!(
                "it has {mib} MiB of private huge pages (hugetlbfs), of which a child takes more"
            )
        })
    }

    /// Whether the mapping at this address is wiped in a forked child.
    pub(super) fn is_wiped(&self, start: u64) -> bool {
        let mut kept = self.kept_back.iter();
        kept.any(|kept| kept.is_wiped && kept.start <= start && start < kept.end)
    }
}
