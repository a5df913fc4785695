//! The kernel's figures, and how memprof's total compares with them.

use std::ops::AddAssign;

/// The kernel's own figures for the target, in bytes; memprof's totals are checked against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFigures {
    /// `Anonymous` of `/proc/PID/smaps_rollup`; `None` if it was not read because that would have stalled
    /// the target (see [`figures::is_brief`](crate::residency::figures::is_brief)).
    pub anonymous: Option<u64>,
    /// `RssAnon` of `/proc/PID/status` (approximate up to Linux 6.15). For a command that has ended, this and the next
    /// three are sums over `smaps`, by what backs each mapping ([`Kept`](crate::residency::Kept)).
    pub rss_anon: u64,
    /// `RssShmem` of `/proc/PID/status`.
    pub rss_shmem: u64,
    /// `RssFile` of `/proc/PID/status`.
    pub rss_file: u64,
    /// `VmSwap` of `/proc/PID/status`.
    pub swap: u64,
    /// `VmPTE` of `/proc/PID/status`: page tables. They are kernel memory, not part of RSS.
    pub page_tables: u64,
}

impl Default for KernelFigures {
    /// All zero: the start of a sum.
    fn default() -> KernelFigures {
        KernelFigures {
            anonymous: Some(0),
            rss_anon: 0,
            rss_shmem: 0,
            rss_file: 0,
            swap: 0,
            page_tables: 0,
        }
    }
}

impl AddAssign for KernelFigures {
    fn add_assign(&mut self, o: KernelFigures) {
        self.anonymous = self.anonymous.zip(o.anonymous).map(|(a, b)| a + b);
        self.rss_anon += o.rss_anon;
        self.rss_shmem += o.rss_shmem;
        self.rss_file += o.rss_file;
        self.swap += o.swap;
        self.page_tables += o.page_tables;
    }
}

impl KernelFigures {
    /// `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.rss_anon + self.rss_shmem
    }
}

/// memprof's resident total and the kernel's `RssAnon + RssShmem` before and after, in bytes.
///
/// # Examples
///
/// ```
/// use memprof::profile::{Agreement, Verdict};
///
/// let mut agreement = Agreement { ours: 8192, low: 8192, high: 8192, complete: true };
/// assert_eq!(agreement.verdict(), Verdict::Equal);
/// // The target allocated memory during the scan.
/// agreement.high = 12_288;
/// assert_eq!(agreement.verdict(), Verdict::Between);
/// assert_eq!(agreement.outside(), 0);
/// agreement.ours = 4096;
/// assert_eq!(agreement.outside(), -4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// [`Usage::resident`](super::Usage::resident) of the total.
    pub ours: u64,
    /// The smaller of the kernel's two figures.
    pub low: u64,
    /// The larger one.
    pub high: u64,
    /// True if all three include every process of the target.
    pub complete: bool,
}

/// The result of an [`Agreement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's figure did not change, and ours is the same.
    Equal,
    /// The kernel's figure changed, and ours is between its two values.
    Between,
    /// Ours is smaller.
    Below,
    /// Ours is larger.
    Above,
    /// Processes are missing from our total and from the kernel's figures: see [`Losses`](super::Losses).
    Incomplete,
}

impl Agreement {
    /// Compares the figures.
    pub fn verdict(&self) -> Verdict {
        match self.ours {
            _ if !self.complete => Verdict::Incomplete,
            ours if ours < self.low => Verdict::Below,
            ours if ours > self.high => Verdict::Above,
            _ if self.low == self.high => Verdict::Equal,
            _ => Verdict::Between,
        }
    }

    /// By how much ours is above both of the kernel's figures, or below them if it is negative, in bytes.
    pub fn outside(&self) -> i64 {
        let nearest = self.ours.clamp(self.low, self.high);
        let distance = i64::try_from(self.ours.abs_diff(nearest)).unwrap_or(i64::MAX);
        match self.ours < nearest {
            true => -distance,
            false => distance,
        }
    }
}
