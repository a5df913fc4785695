//! Heap memory by the stack that allocated it, estimated from sampled allocations.
//!
//! A sampler in the process samples each allocation with a probability `p` that depends on its size alone, and says for
//! how many bytes it stands (`weight = size / p`). So a sample stands for `weight` bytes and `1 / p` allocations, and
//! the sums over samples estimate those over all allocations without bias. The samples are independent: the variance
//! of a sum of bytes is estimated by the sum of `weight² (1 − p)`, that of a count by the sum of `(1 − p) / p²`.
//!
//! Samples come through the ring buffer in the order in which they were taken, so the free of a sample follows it. What
//! did not fit the ring buffer is counted as lost.

mod freed;
mod history;
mod live;

pub use history::{Forgotten, Record};
pub use live::{Live, LiveSample};

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::probe::event::{SampleFreed, SampledAllocation};
use crate::probe::source::Totals;
use crate::probe::wire;
use freed::Freed;
use history::History;
use memprof_profile::measure::{
    ALLOC_OBJECTS, ALLOC_SPACE, ColumnId, INUSE_OBJECTS, INUSE_SPACE, TEMPORARY, TEMPORARY_OBJECTS,
    TEMPORARY_SPACE,
};
use memprof_profile::{Amounts, Estimate, Losses};
use memprof_sys::ids::{MmId, StackId};

/// Maximum number of live samples of all processes, about 60 bytes each. A process that has its share of them may keep no
/// more, so the true maximum is twice that.
const MOST_LIVE: usize = 1 << 20;
/// Maximum number of stacks in the sums of a process, and of all that have ended, about 120 bytes each.
const MOST_STACKS: usize = 1 << 16;
/// Maximum number of bytes of one sample, and of all together: figures come from the processes, and the sums of all stacks
/// must fit into 64 bits.
const MOST_BYTES: u64 = 1 << 47;
const MOST_IN_ALL: u64 = 1 << 62;
/// The stack of what is beyond.
const OTHER: StackId = StackId(wire::STACK_LOST);

/// The sampled allocations of all followed processes.
#[derive(Debug)]
pub struct Samples {
    /// By address space.
    spaces: BTreeMap<MmId, Space>,
    /// What ended processes have allocated.
    ended: Sums,
    history: History,
    /// When the first sample was taken, in ns of `CLOCK_MONOTONIC`.
    began: Option<u64>,
    /// When the newest one was taken.
    newest: u64,
    /// Live samples of all address spaces.
    live: usize,
    /// Samples whose frees will not be noticed, because there is no room for them.
    untracked: u64,
    /// Samples at the address of a live one, whose free was therefore not seen.
    unseen_frees: u64,
    /// Samples whose stack stands for many, because there is no room for more.
    unsummed: u64,
    /// Samples with figures that cannot be true.
    refused: u64,
    /// Bytes that all samples so far stand for.
    bytes: u64,
    temporary_ns: u64,
}

/// The samples of an address space.
#[derive(Debug, Default)]
struct Space {
    live: Live,
    sums: Sums,
    /// If it was forked, when the last sample before was taken, in ns of `CLOCK_MONOTONIC`.
    forked: Option<u64>,
    /// While a heap snapshot is taken.
    freed: Option<Freed>,
}

/// What each stack has allocated so far.
#[derive(Debug, Default)]
struct Sums(HashMap<StackId, Allocated>);

#[derive(Clone, Copy, Debug, Default)]
struct Allocated {
    all: Estimate,
    /// Freed soon.
    temporary: Estimate,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples {
            spaces: BTreeMap::new(),
            ended: Sums::default(),
            history: History::default(),
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
    /// Allocations freed within this time count as temporary.
    pub fn set_temporary(&mut self, within: Duration) {
        self.temporary_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Takes in a sampled allocation.
    pub fn allocated(&mut self, seen: &SampledAllocation) {
        let sample = LiveSample::new(seen);
        if sample.weight.max(sample.size) > MOST_BYTES || self.bytes > MOST_IN_ALL {
            self.refused += 1;
            return;
        }
        self.bytes += sample.weight;
        self.began.get_or_insert(seen.at);
        self.newest = self.newest.max(seen.at);
        let share = MOST_LIVE / (self.spaces.len() + 1);
        let space = self.spaces.entry(seen.mm).or_default();
        let summed = space.sums.entry(seen.stack);
        self.unsummed += u64::from(summed.is_none());
        let sums = match summed {
            Some(sums) => sums,
            None => space.sums.0.entry(OTHER).or_default(),
        };
        sums.all += sample.estimate();
        if self.live >= MOST_LIVE && space.live.len() >= share {
            self.untracked += 1;
            return;
        }
        match space.live.insert(seen.address, sample) {
            None => self.live += 1,
            Some(before) => {
                self.unseen_frees += 1;
                if let Some(freed) = &mut space.freed {
                    freed.add(seen.address, before, seen.at);
                }
            }
        }
    }

    /// Takes in the free of a sampled allocation. Those of samples that were taken before memprof listened are ignored.
    pub fn freed(&mut self, seen: &SampleFreed) {
        let Some(space) = self.spaces.get_mut(&seen.mm) else {
            return;
        };
        let Some(sample) = space.live.remove(seen.address) else {
            return;
        };
        self.live -= 1;
        self.history
            .add(space.record(seen.mm, sample, Some(seen.at)));
        if let Some(freed) = &mut space.freed {
            freed.add(seen.address, sample, seen.at);
        }
        if seen.at.saturating_sub(sample.at) <= self.temporary_ns {
            let known = space.sums.0.contains_key(&sample.stack);
            let stack = if known { sample.stack } else { OTHER };
            space.sums.0.entry(stack).or_default().temporary += sample.estimate();
        }
    }

    /// A followed process was forked: the child's heap is a copy of its parent's.
    pub fn forked(&mut self, parent: MmId, child: MmId) {
        if let Some(live) = self.spaces.get(&parent).map(|space| space.live.clone()) {
            self.live += live.len();
            let space = Space {
                live,
                forked: Some(self.newest),
                ..Space::default()
            };
            self.spaces.insert(child, space);
        }
    }

    /// An address space has ended. What it has allocated stays in the sums.
    pub fn ended(&mut self, mm: MmId) {
        let Some(space) = self.spaces.remove(&mm) else {
            return;
        };
        self.live -= space.live.len();
        // What it held at its end.
        let live = space
            .live
            .iter()
            .map(|(_, sample)| space.record(mm, sample, None));
        let own = live.filter(|record| !record.inherited);
        own.for_each(|record| self.history.add(record));
        for (stack, allocated) in space.sums.0 {
            let sums = self.ended.entry(stack);
            self.unsummed += u64::from(sums.is_none());
            let sums = match sums {
                Some(sums) => sums,
                None => self.ended.0.entry(OTHER).or_default(),
            };
            sums.all += allocated.all;
            sums.temporary += allocated.temporary;
        }
    }

    /// The live samples of an address space.
    pub fn live(&self, mm: MmId) -> Option<&Live> {
        self.spaces.get(&mm).map(|space| &space.live)
    }

    /// Every stack that a sum or a live sample names.
    pub fn stacks(&self) -> impl Iterator<Item = StackId> {
        let spaces = self.spaces.values();
        let live = spaces.clone().flat_map(|space| space.live.stacks());
        let sums = spaces.flat_map(|space| space.sums.0.keys().copied());
        live.chain(sums)
            .chain(self.ended.0.keys().copied())
            .chain(self.history.stacks())
    }

    /// Every sample that is kept: live ones, and the newest of those that were freed.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let live = self.spaces.iter().flat_map(|(mm, space)| {
            let live = space.live.iter();
            live.map(|(_, sample)| space.record(*mm, sample, None))
        });
        self.history.iter().chain(live)
    }

    /// When the first sample was taken, in ns of `CLOCK_MONOTONIC`.
    pub fn began(&self) -> Option<u64> {
        self.began
    }

    /// The samples that are missing in [`Samples::records`].
    pub fn forgotten(&self) -> Forgotten {
        self.history.forgotten()
    }

    /// An allocation freed within so many ns counts as temporary.
    pub fn temporary_ns(&self) -> u64 {
        self.temporary_ns
    }

    /// Adds the estimates of an address space.
    pub(crate) fn add_to(&self, mm: MmId, totals: &mut Totals) {
        let Some(space) = self.spaces.get(&mm) else {
            return;
        };
        space.sums.add_to(totals);
        for (stack, live) in space.live.by_stack() {
            add(totals, stack, live, INUSE_SPACE, INUSE_OBJECTS);
        }
    }

    /// Adds what ended processes have allocated.
    pub(crate) fn add_ended_to(&self, totals: &mut Totals) {
        self.ended.add_to(totals);
    }

    /// Adds what is missing from the estimates.
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

impl Sums {
    /// The sums of a stack; `None` if there is no room for it.
    fn entry(&mut self, stack: StackId) -> Option<&mut Allocated> {
        if self.0.len() >= MOST_STACKS && !self.0.contains_key(&stack) {
            return None;
        }
        Some(self.0.entry(stack).or_default())
    }

    fn add_to(&self, totals: &mut Totals) {
        for (stack, allocated) in &self.0 {
            add(totals, *stack, allocated.all, ALLOC_SPACE, ALLOC_OBJECTS);
            let soon = allocated.temporary;
            add(totals, *stack, soon, TEMPORARY_SPACE, TEMPORARY_OBJECTS);
        }
    }
}

/// Adds an estimate and its variances to the columns of a stack.
fn add(
    totals: &mut Totals,
    stack: StackId,
    estimate: Estimate,
    space: ColumnId,
    objects: ColumnId,
) {
    for (column, figure, variance) in [
        (space, estimate.space, estimate.space_variance),
        (objects, estimate.objects, estimate.objects_variance),
    ] {
        // Rounded once for each stack, not once for each sample.
        totals.add_stack(stack, Amounts::in_column(column, figure.round() as u64));
        *totals.variances.entry((stack, column)).or_default() += variance;
    }
}

#[cfg(test)]
mod tests;
