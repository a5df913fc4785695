//! The kernel's figures, and how memprof's total compares with them.

/// memprof's resident total and the kernel's `RssAnon + RssShmem` before and after, in bytes.
///
/// # Examples
///
/// ```
/// use memprof_profile::{Agreement, Verdict};
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
    /// [`Usage::resident`](memprof_sys::usage::Usage::resident) of the total.
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
