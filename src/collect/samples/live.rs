//! The live sampled allocations of one process.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::probe::event::SampledAllocation;
use memprof_profile::Estimate;
use memprof_sys::ids::{Addr, StackId};

/// A live sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSample {
    /// The stack of the allocation.
    pub stack: StackId,
    /// The requested size in bytes; at least 1.
    pub size: u64,
    /// The bytes that the sample represents; at least 1.
    pub weight: u64,
    /// Time of the allocation, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The allocating thread, by its id in the initial pid namespace.
    pub thread: u32,
}

impl LiveSample {
    /// The sample, with a size and weight of at least 1: the figures come from the process.
    pub(super) fn new(seen: &SampledAllocation) -> LiveSample {
        let size = seen.size.max(1);
        LiveSample {
            stack: seen.stack,
            size,
            weight: if seen.weight == 0 { size } else { seen.weight },
            at: seen.at,
            thread: seen.thread,
        }
    }

    /// The allocations that the sample represents.
    pub fn estimate(&self) -> Estimate {
        Estimate::from_sample(self.size, self.weight)
    }
}

/// The live samples of a process, by address. A forked child shares them with its parent until one of the two changes.
#[derive(Clone, Debug, Default)]
pub struct Live(Arc<FxHashMap<Addr, LiveSample>>);

impl Live {
    /// Adds a sample. Returns the sample that was at its address.
    pub(super) fn insert(&mut self, at: Addr, sample: LiveSample) -> Option<LiveSample> {
        Arc::make_mut(&mut self.0).insert(at, sample)
    }

    /// Removes a sample.
    pub(super) fn remove(&mut self, at: Addr) -> Option<LiveSample> {
        // `make_mut` would clone a shared map.
        if !self.0.contains_key(&at) {
            return None;
        }
        Arc::make_mut(&mut self.0).remove(&at)
    }

    /// Number of live samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no live samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All live samples, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Addr, LiveSample)> {
        self.0.iter().map(|(at, sample)| (*at, *sample))
    }

    /// The stacks of the samples, with repetitions.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.0.values().map(|sample| sample.stack)
    }
}
