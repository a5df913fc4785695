//! The sampled allocations that are kept one by one, with their stacks.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;

use super::Aggregator;
use crate::probe::{Probe, source};
use memprof_profile::allocations::{Allocation, Allocations};
use memprof_profile::{Stack, StackSizes};
use memprof_sys::ids::{MmId, Pid, StackId};

impl Aggregator {
    /// The sizes of each stack's allocations in an exact window.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn sizes(&self, probe: &Probe) -> Result<Vec<StackSizes>> {
        let all = source::exact::sizes(probe)?.into_iter();
        let named = all.map(|(id, sizes)| StackSizes {
            stack: self.stacks.get(id).cloned(),
            sizes,
        });
        Ok(named.collect())
    }

    /// Every sample that is kept. `now` is in ns of `CLOCK_MONOTONIC`.
    pub fn allocations(&self, now: u64) -> Allocations {
        let mut numbers: HashMap<StackId, u32> = HashMap::new();
        let mut stacks: Vec<Arc<Stack>> = Vec::new();
        let mut pids: HashMap<MmId, Pid> = HashMap::new();
        pids.extend(self.spaces.iter().map(|(mm, space)| (*mm, space.pid)));
        let began = self.samples.began().unwrap_or(now);
        let forgotten = self.samples.forgotten();
        let since = |at: u64| at.saturating_sub(began);
        let mut without_stack = 0;
        let mut all = Vec::new();
        for record in self.samples.records() {
            let sample = record.sample;
            let Some(stack) = self.stacks.get(sample.stack) else {
                without_stack += 1;
                continue;
            };
            let number = *numbers.entry(sample.stack).or_insert_with(|| {
                stacks.push(self.without_own_frames(stack));
                stacks.len() as u32 - 1
            });
            all.push(Allocation {
                stack: number,
                pid: pids.get(&record.mm).copied(),
                thread: sample.thread,
                size: sample.size,
                weight: sample.weight,
                born_ns: since(sample.at),
                freed_ns: record.freed.map(since),
                inherited: record.inherited,
            });
        }
        Allocations {
            stacks,
            all,
            without_stack,
            began_ns: began,
            now_ns: since(now),
            missing: forgotten.samples,
            missing_until_ns: forgotten.until.map(since),
            temporary_ns: self.samples.temporary_ns(),
        }
    }
}
