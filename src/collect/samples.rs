//! Heap memory by the stack that allocated it, estimated from sampled allocations.
//!
//! A sampler in the process samples each allocation with a probability `p` that depends only on its size, and reports the bytes
//! that the sample represents (`weight = size / p`). A sample represents `weight` bytes and `1 / p` allocations, and sums over
//! samples are unbiased estimates of the sums over all allocations. The samples are independent: the variance of a sum of bytes is
//! estimated by the sum of `weight² (1 − p)`, that of a count by the sum of `(1 − p) / p²`.
//!
//! Samples come through the ring buffer in the order in which they were taken, so the free of a sample follows it. Samples that do
//! not fit into the ring buffer are counted as lost.

mod freed_samples;
mod history;
mod live;
mod sums;

pub use history::{Forgotten, Record};
pub use live::{Live, LiveSample};

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::probe::event::{SampleFreed, SampledAllocation};
use crate::probe::source::Totals;
use freed_samples::Freed;
use history::History;
use memprof_profile::Losses;
use memprof_profile::measure::TEMPORARY;
use memprof_sys::ids::{MmId, StackId};
use sums::{Peaks, Sums};

/// Maximum number of live samples of all processes, about 60 bytes each. Beyond it, a process may add samples only up to its even
/// share, so the true maximum is twice this number.
const MAX_LIVE: usize = 1 << 20;
/// Maximum number of bytes of one sample, and of all samples together. Figures come from the processes, and the sums of all stacks
/// must fit into 64 bits.
const MAX_BYTES: u64 = 1 << 47;
const MAX_TOTAL: u64 = 1 << 62;

/// The sampled allocations of all followed processes.
#[derive(Debug)]
pub struct Samples {
    /// By address space.
    spaces: BTreeMap<MmId, Space>,
    /// Allocations of ended processes.
    ended: Sums,
    history: History,
    /// The live heap of all address spaces, now and when it was largest.
    peaks: Peaks,
    /// Time of the first sample, in ns of `CLOCK_MONOTONIC`.
    began: Option<u64>,
    /// Time of the newest sample.
    newest: u64,
    /// Number of live samples of all address spaces.
    live: usize,
    /// Number of samples whose frees will not be noticed, because the samples did not fit.
    untracked: u64,
    /// Number of samples at the address of a live sample, whose free was therefore missed.
    unseen_frees: u64,
    /// Number of samples without sums of their own stack, which did not fit.
    unsummed: u64,
    /// Number of samples with impossible figures.
    refused: u64,
    /// Bytes that all samples so far represent.
    bytes: u64,
    temporary_ns: u64,
}

/// The samples of an address space.
#[derive(Debug, Default)]
struct Space {
    live: Live,
    sums: Sums,
    /// For a forked address space, the time of the newest sample before the fork, in ns of `CLOCK_MONOTONIC`.
    forked: Option<u64>,
    /// Freed samples, while a heap snapshot is taken.
    freed: Option<Freed>,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples {
            spaces: BTreeMap::new(),
            ended: Sums::default(),
            history: History::default(),
            peaks: Peaks::default(),
            began: None,
            newest: 0,
            live: 0,
            untracked: 0,
            unseen_frees: 0,
            unsummed: 0,
            refused: 0,
            bytes: 0,
            temporary_ns: TEMPORARY.as_nanos() as u64,
        }
    }
}

impl Samples {
    /// Sets the time within which a freed allocation counts as temporary.
    pub fn set_temporary(&mut self, within: Duration) {
        self.temporary_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Adds a sampled allocation.
    pub fn allocated(&mut self, seen: &SampledAllocation) {
        let sample = LiveSample::new(seen);
        if sample.weight.max(sample.size) > MAX_BYTES || self.bytes > MAX_TOTAL {
            self.refused += 1;
            return;
        }
        self.bytes += sample.weight;
        self.began.get_or_insert(seen.at);
        self.newest = self.newest.max(seen.at);
        let share = MAX_LIVE / (self.spaces.len() + 1);
        let space = self.spaces.entry(seen.mm).or_default();
        self.unsummed += u64::from(!space.sums.fits(seen.stack));
        space.sums.allocated(&sample);
        if self.live >= MAX_LIVE && space.live.len() >= share {
            self.untracked += 1;
            return;
        }
        let before = space.live.insert(seen.address, sample);
        if let Some(before) = &before {
            space.sums.ends(before, &mut self.peaks);
        }
        space.sums.lives(&sample, &mut self.peaks);
        match before {
            None => self.live += 1,
            Some(before) => {
                self.unseen_frees += 1;
                if let Some(freed) = &mut space.freed {
                    freed.add(seen.address, before, seen.at);
                }
            }
        }
    }

    /// Takes back the samples of an address space with these stacks, as if they had not been taken.
    pub fn take_back(&mut self, mm: MmId, stacks: &HashSet<StackId>) {
        let Some(space) = self.spaces.get_mut(&mm) else {
            return;
        };
        let live = space.live.iter();
        let theirs: Vec<_> = live
            .filter(|(_, sample)| stacks.contains(&sample.stack))
            .collect();
        for (address, sample) in theirs {
            space.live.remove(address);
            self.live -= 1;
            space.sums.ends(&sample, &mut self.peaks);
        }
        space.sums.take_back(stacks);
        self.history.take_back(mm, stacks);
    }

    /// Applies the free of a sampled allocation. Frees of samples from before memprof attached are ignored.
    pub fn freed(&mut self, seen: &SampleFreed) {
        let Some(space) = self.spaces.get_mut(&seen.mm) else {
            return;
        };
        let Some(sample) = space.live.remove(seen.address) else {
            return;
        };
        self.live -= 1;
        space.sums.ends(&sample, &mut self.peaks);
        self.history
            .add(space.record(seen.mm, sample, Some(seen.at)));
        if let Some(freed) = &mut space.freed {
            freed.add(seen.address, sample, seen.at);
        }
        if seen.at.saturating_sub(sample.at) <= self.temporary_ns {
            space.sums.freed_soon(&sample);
        }
    }

    /// Adds a forked process, whose heap is a copy of its parent's.
    pub fn forked(&mut self, parent: MmId, child: MmId) {
        self.ended(child);
        if let Some(of_parent) = self.spaces.get(&parent) {
            let live = of_parent.live.clone();
            self.live += live.len();
            let space = Space {
                live,
                sums: of_parent.sums.forked(&mut self.peaks),
                forked: Some(self.newest),
                ..Space::default()
            };
            self.spaces.insert(child, space);
        }
    }

    /// Removes an ended address space. Its allocations remain in the sums.
    pub fn ended(&mut self, mm: MmId) {
        let Some(space) = self.spaces.remove(&mm) else {
            return;
        };
        self.live -= space.live.len();
        // Allocations that were live at its end.
        let live = space
            .live
            .iter()
            .map(|(_, sample)| space.record(mm, sample, None));
        let own = live.filter(|record| !record.inherited);
        own.for_each(|record| self.history.add(record));
        self.unsummed += self.ended.take_over(space.sums, &mut self.peaks);
    }

    /// The live samples of an address space.
    pub fn live(&self, mm: MmId) -> Option<&Live> {
        self.spaces.get(&mm).map(|space| &space.live)
    }

    /// Every stack that a sum or a live sample names.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        let spaces = self.spaces.values();
        let live = spaces.clone().flat_map(|space| space.live.stacks());
        let sums = spaces.flat_map(|space| space.sums.stacks());
        live.chain(sums)
            .chain(self.ended.stacks())
            .chain(self.history.stacks())
    }

    /// All stored samples: the live samples, and the newest freed samples.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let live = self.spaces.iter().flat_map(|(mm, space)| {
            let live = space.live.iter();
            live.map(|(_, sample)| space.record(*mm, sample, None))
        });
        self.history.iter().chain(live)
    }

    /// Time of the first sample, in ns of `CLOCK_MONOTONIC`.
    pub fn began(&self) -> Option<u64> {
        self.began
    }

    /// The samples that are missing in [`Samples::records`].
    pub fn forgotten(&self) -> Forgotten {
        self.history.forgotten()
    }

    /// The time within which a freed allocation counts as temporary, in ns.
    pub fn temporary_ns(&self) -> u64 {
        self.temporary_ns
    }

    /// Adds the estimates of an address space.
    pub(crate) fn add_to(&self, mm: MmId, totals: &mut Totals) {
        if let Some(space) = self.spaces.get(&mm) {
            space.sums.add_to(&self.peaks, totals);
        }
    }

    /// Adds the allocations of ended processes.
    pub(crate) fn add_ended_to(&self, totals: &mut Totals) {
        self.ended.add_to(&self.peaks, totals);
    }

    /// Adds the losses of the estimates.
    pub fn losses(&self, losses: &mut Losses) {
        losses.add(
            "sampled allocations that are not in the live heap: too many live ones",
            self.untracked,
        );
        losses.add(
            "sampled allocations whose free was not seen, noticed when their address was used again",
            self.unseen_frees,
        );
        losses.add(
            "sampled allocations without their own stack: too many stacks",
            self.unsummed,
        );
        losses.add(
            "sampled allocations refused: figures that cannot be true",
            self.refused,
        );
    }
}

impl Space {
    fn record(&self, mm: MmId, sample: LiveSample, freed: Option<u64>) -> Record {
        Record {
            mm,
            sample,
            freed,
            inherited: self.forked.is_some_and(|last| sample.at <= last),
        }
    }
}

#[cfg(test)]
mod tests;
