//! Rules for counting the pages of a mapping.

use super::ioctl::{PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED};
use super::page::PageKind;
use super::vma::{Backing, Vma};

/// The rule for a file page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRule {
    /// Counts as this kind.
    Known(PageKind),
    /// Counts as shmem or file, depending on its page flags.
    Flags,
}

/// The rule for a page without a file. Zero pages are dropped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherRule {
    /// Counts as this kind.
    Known(PageKind),
    /// Counts as anonymous if its page flags say so, otherwise not at all.
    Prove,
    /// Does not count: a shared mapping has no anonymous pages, so this is not a page of memory.
    Drop,
}

/// The rules of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) file: FileRule,
    pub(super) other: OtherRule,
}

impl Policy {
    /// Whether the kinds of some pages depend on page flags.
    pub(super) fn needs_flags(self) -> bool {
        self.file == FileRule::Flags || self.other == OtherRule::Prove
    }

    /// The rules for a mapping.
    pub(super) fn for_mapping(vma: &Vma) -> Policy {
        let shared = vma.perms.shared;
        let known = |file, other| Policy {
            file: FileRule::Known(file),
            other: OtherRule::Known(other),
        };
        match vma.backing {
            Backing::Anon => known(PageKind::Anon, PageKind::Anon),
            Backing::Hugetlb => known(PageKind::Hugetlb, PageKind::Hugetlb),
            Backing::Shmem if shared => known(PageKind::Shmem, PageKind::Shmem),
            Backing::Shmem => known(PageKind::Shmem, PageKind::Anon),
            Backing::File => Policy {
                file: FileRule::Known(PageKind::File),
                other: Policy::private(shared, OtherRule::Known(PageKind::Anon)),
            },
            Backing::Stacked => Policy {
                file: FileRule::Flags,
                other: Policy::private(shared, OtherRule::Known(PageKind::Anon)),
            },
            Backing::Device | Backing::Special => Policy {
                file: FileRule::Flags,
                other: Policy::private(shared, OtherRule::Prove),
            },
        }
    }

    fn private(shared: bool, rule: OtherRule) -> OtherRule {
        if shared { OtherRule::Drop } else { rule }
    }

    /// The categories to request from the kernel. For `PAGE_IS_FILE` the kernel reads each `struct page` (a cache miss each), so it
    /// is requested only where it makes a difference.
    pub(super) fn categories(&self) -> u64 {
        let base = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE;
        match (self.file, self.other) {
            (FileRule::Known(a), OtherRule::Known(b)) if a == b => base,
            _ => base | PAGE_IS_FILE,
        }
    }
}
