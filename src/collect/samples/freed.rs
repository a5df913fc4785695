//! The live samples of a moment that is over: those of now, and those that were freed since.

use super::{LiveSample, Samples};
use memprof_sys::ids::{Addr, MmId};

/// Maximum number of frees that are kept for one address space.
const MOST: usize = 1 << 18;

/// Samples that were freed lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Freed {
    /// Each with the time of its free, in ns of `CLOCK_MONOTONIC`.
    kept: Vec<(Addr, LiveSample, u64)>,
    left_out: u64,
}

impl Freed {
    pub(super) fn add(&mut self, address: Addr, sample: LiveSample, at: u64) {
        match self.kept.len() < MOST {
            true => self.kept.push((address, sample, at)),
            false => self.left_out += 1,
        }
    }
}

impl Samples {
    /// Keeps samples of this address space that are freed from now on, for [`Samples::live_at`].
    pub fn keep_freed(&mut self, mm: MmId) {
        self.spaces.entry(mm).or_default().freed = Some(Freed::default());
    }

    /// Keeps them no longer.
    pub fn forget_freed(&mut self, mm: MmId) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.freed = None;
        }
    }

    /// The samples that were live at a moment, in ns of `CLOCK_MONOTONIC`, since which frees are kept; and the number of
    /// samples that may be missing.
    pub fn live_at(&self, mm: MmId, at: u64) -> (Vec<(Addr, LiveSample)>, u64) {
        let Some(space) = self.spaces.get(&mm) else {
            return (Vec::new(), self.untracked);
        };
        let was = |sample: &LiveSample| sample.at <= at;
        let mut live: Vec<(Addr, LiveSample)> = space
            .live
            .iter()
            .filter(|(_, sample)| was(sample))
            .collect();
        let freed = space.freed.iter();
        for (address, sample, freed) in freed.clone().flat_map(|freed| &freed.kept) {
            if was(sample) && *freed > at {
                live.push((*address, *sample));
            }
        }
        let left_out: u64 = freed.map(|freed| freed.left_out).sum();
        (live, self.untracked + left_out)
    }
}
