//! Comparison of memprof's total with the kernel's figures.

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
    /// The larger of the kernel's two figures.
    pub high: u64,
    /// True if all three figures include every process of the target.
    pub complete: bool,
}

/// The result of an [`Agreement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel's figure did not change, and memprof's equals it.
    Equal,
    /// The kernel's figure changed, and memprof's is between the two values.
    Between,
    /// memprof's figure is smaller than both of the kernel's.
    Below,
    /// memprof's figure is larger than both of the kernel's.
    Above,
    /// Processes are missing from memprof's total and from the kernel's figures; see [`Losses`](super::Losses).
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

    /// Distance of memprof's figure from the kernel's range, in bytes: positive above it, negative below it, 0 inside.
    pub fn outside(&self) -> i64 {
        let nearest = self.ours.clamp(self.low, self.high);
        let distance = i64::try_from(self.ours.abs_diff(nearest)).unwrap_or(i64::MAX);
        match self.ours < nearest {
            true => -distance,
            false => distance,
        }
    }
}
