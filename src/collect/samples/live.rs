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

    /// The bytes that the sample represents in each of two views of the live heap, on average `weight`. Their errors are independent: a
    /// sample that is taken with the probability `p` has an error of `weight √(1 − p)`, by which one of the views, at random, is
    /// larger and the other one smaller.
    pub(super) fn views(&self) -> [u64; 2] {
        let beyond = match self.is_rarely_missed() {
            true => 0.0,
            false => (1.0 - self.size as f64 / self.weight as f64).sqrt(),
        };
        let beyond = (self.weight as f64 * beyond) as u64;
        let (less, more) = (self.weight - beyond, self.weight + beyond);
        let mixed = (self.at ^ u64::from(self.thread)).wrapping_mul(MIXING);
        match (mixed ^ mixed >> 32).wrapping_mul(MIXING) >> 63 {
            0 => [less, more],
            _ => [more, less],
        }
    }

    /// Half of what each view estimates.
    pub(super) fn told(&self) -> [Estimate; 2] {
        let whole = self.estimate();
        // In the mean of both views, each sample has its own error and that of the choice. Samples that are alike in both have decided on
        // the moment, too: it is too high by at most four of their errors.
        let errors = if self.is_rarely_missed() { 8.0 } else { 1.0 };
        self.views().map(|view| Estimate {
            space: view as f64 / 2.0,
            objects: view as f64 / 2.0 / self.size as f64,
            space_variance: whole.space_variance * errors,
            objects_variance: whole.objects_variance * errors,
        })
    }

    /// Whether at least nine in ten such allocations are sampled. Their errors, single missed samples, cannot be divided.
    fn is_rarely_missed(&self) -> bool {
        self.size as f64 >= 0.9 * self.weight as f64
    }
}

/// Mixes the bits of a number: 2⁶⁴ divided by the golden ratio.
const MIXING: u64 = 0x9e37_79b9_7f4a_7c15;

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

    /// The sample at an address.
    pub fn get(&self, at: Addr) -> Option<&LiveSample> {
        self.0.get(&at)
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
