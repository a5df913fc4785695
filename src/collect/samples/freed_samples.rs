//! Reconstructs the samples that were live at an earlier moment: the live samples, and the samples freed since.

use super::{LiveSample, Samples};
use memprof_sys::ids::{Addr, MmId};

/// Maximum number of frees that are stored for one address space.
const MAX_FREES: usize = 1 << 18;

/// Recently freed samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Freed {
    /// Freed samples, each with the time of its free, in ns of `CLOCK_MONOTONIC`.
    kept: Vec<(Addr, LiveSample, u64)>,
    left_out: u64,
}

impl Freed {
    pub(super) fn add(&mut self, address: Addr, sample: LiveSample, at: u64) {
        match self.kept.len() < MAX_FREES {
            true => self.kept.push((address, sample, at)),
            false => self.left_out += 1,
        }
    }
}

impl Samples {
    /// Starts storing the freed samples of this address space, for [`Samples::live_at`].
    pub fn keep_freed(&mut self, mm: MmId) {
        self.spaces.entry(mm).or_default().freed = Some(Freed::default());
    }

    /// Stops storing freed samples.
    pub fn forget_freed(&mut self, mm: MmId) {
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.freed = None;
        }
    }

    /// The samples that were live at `at`, in ns of `CLOCK_MONOTONIC`, and the number of samples that may be missing. Freed samples
    /// must have been stored since before `at`.
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
