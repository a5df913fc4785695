//! The sampled allocations of a process, with their stacks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Aggregator, Snapshot};
use crate::probe::Probe;
use memprof_heap::{HeapSample, HeapSamples, Origin};
use memprof_profile::{Amounts, Frame, Profile, Sample, Stack};
use memprof_sys::ids::{MmId, Pid, StackId};
use memprof_sys::usage::Usage;

/// Sampled allocations that were live at one moment.
#[derive(Clone, Debug)]
pub struct SampledHeap {
    /// The samples.
    pub samples: HeapSamples,
    /// The samples' known stacks: one sample of `profile` for each, in the same order.
    pub stacks: Vec<StackId>,
    /// The stacks, each with one byte, for their names.
    pub profile: Profile,
}

impl Aggregator {
    /// The followed address space of a process.
    pub fn space_of(&self, pid: Pid) -> Option<MmId> {
        let space = self.spaces.iter().find(|(_, space)| space.pid == pid);
        space.map(|(mm, _)| *mm)
    }

    /// The sampled allocations that were live at `at`, in ns of `CLOCK_MONOTONIC`. Frees must have been kept since before `at`, and
    /// all events up to `at` must have been applied.
    pub fn sampled(&mut self, mm: MmId, at: u64, origin: Origin, probe: &Probe) -> SampledHeap {
        let (live, lost) = self.samples.live_at(mm, at);
        // Without the sampler's frames, stacks with different ids can be equal.
        let mut ids: HashMap<Box<[Frame]>, StackId> = HashMap::new();
        let mut shown: HashMap<StackId, StackId> = HashMap::new();
        let mut stacks: BTreeMap<StackId, Arc<Stack>> = BTreeMap::new();
        for (_, sample) in &live {
            let Entry::Vacant(unseen) = shown.entry(sample.stack) else {
                continue;
            };
            let id = match self.stacks.get(sample.stack) {
                None => sample.stack,
                Some(stack) => {
                    let stack = self.without_own_frames(stack);
                    let id = *ids.entry(stack.frames.clone()).or_insert(sample.stack);
                    stacks.entry(id).or_insert(stack);
                    id
                }
            };
            unseen.insert(id);
        }
        let kept: Vec<HeapSample> = live
            .into_iter()
            .map(|(address, sample)| HeapSample {
                address: address.0,
                size: sample.size,
                weight: sample.weight,
                stack: shown[&sample.stack],
            })
            .collect();
        let mut profile = self.profile(Snapshot::default(), probe);
        let byte = Usage {
            anon: 1,
            ..Usage::default()
        };
        let found = stacks.into_iter().map(|(id, stack)| {
            let amounts = Amounts::from(byte);
            (id, Sample { stack, amounts })
        });
        let (stacks, samples) = found.unzip();
        profile.samples = samples;
        profile.not_observed = Vec::new();
        profile.uncertainties = Vec::new();
        SampledHeap {
            samples: HeapSamples {
                kept,
                origin,
                lost,
                unsent: probe.samples_lost(),
            },
            stacks,
            profile,
        }
    }
}
