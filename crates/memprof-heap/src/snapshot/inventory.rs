//! What the kernel says of a process's private memory, mapping by mapping (`smaps`): its sum, and what a fork would not
//! pass on.

use crate::whole::Anonymous;
use memprof_sys::ids::Pid;
use memprof_sys::residency::smaps::{self, AtFork, Region};
use memprof_sys::residency::{Classifier, Result, VmaKind, figures};

/// What the kernel says.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Its anonymous memory.
    pub anonymous: Anonymous,
    /// Mappings that a forked child does not have, or has empty.
    pub kept_back: Vec<KeptBack>,
    /// Private huge pages of hugetlbfs, in bytes. They are no part of the anonymous memory.
    pub hugetlb: u64,
}

/// A mapping of which a forked child does not have the private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptBack {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Whether the child has the mapping, empty.
    pub is_wiped: bool,
    /// Its anonymous memory, resident or swapped out, in bytes.
    pub bytes: u64,
}

impl Inventory {
    /// Reads it.
    ///
    /// # Errors
    /// Those of [`smaps::read`].
    pub(super) fn read(pid: Pid) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        // Not that of `smaps`, which has swapped-out shared memory, too.
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

    /// The part of the anonymous memory that a forked child does not have, in bytes.
    pub(super) fn bytes_kept_back(&self) -> u64 {
        self.kept_back.iter().map(|kept| kept.bytes).sum()
    }

    /// Why the process is not to be forked. A page of hugetlbfs that it writes to while there is a child is copied to another one
    /// of the pool. If that is empty, the kernel takes the page from the child, or, without a reservation, kills the process.
    pub(super) fn refuses_fork(&self) -> Option<String> {
        let mib = self.hugetlb >> 20;
        (mib > 0).then(|| {
            format!(
                "it has {mib} MiB of private huge pages (hugetlbfs), of which a child takes more"
            )
        })
    }

    /// Whether a mapping at this address is wiped in a forked child.
    pub(super) fn is_wiped(&self, start: u64) -> bool {
        let mut kept = self.kept_back.iter();
        kept.any(|kept| kept.is_wiped && kept.start <= start && start < kept.end)
    }
}
