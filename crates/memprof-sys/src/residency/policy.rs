//! How the pages of a mapping are counted.

use super::ioctl::{PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED};
use super::page::PageKind;
use super::vma::{Backing, Vma};

/// How a file page is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRule {
    /// Always as this kind.
    Known(PageKind),
    /// As shmem or file, by its page flags.
    Flags,
}

/// How a page without a file is counted; zero pages are dropped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherRule {
    /// Always as this kind.
    Known(PageKind),
    /// As anonymous if its page flags say so; otherwise not at all.
    Prove,
    /// Not at all: a shared mapping has no anonymous pages, so this is no page of memory.
    Drop,
}

/// The rules of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) file: FileRule,
    pub(super) other: OtherRule,
}

impl Policy {
    /// Whether page flags decide about some of the pages.
    pub(super) fn needs_flags(self) -> bool {
        self.file == FileRule::Flags || self.other == OtherRule::Prove
    }

    /// The rules for a mapping.
    pub(super) fn of(vma: &Vma) -> Policy {
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

    /// The categories to request from the kernel. `PAGE_IS_FILE` makes it read each `struct page` (a cache
    /// miss each), so it is requested only where the answer makes a difference.
    pub(super) fn categories(&self) -> u64 {
        let base = PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE;
        match (self.file, self.other) {
            (FileRule::Known(a), OtherRule::Known(b)) if a == b => base,
            _ => base | PAGE_IS_FILE,
        }
    }
}
