//! The newest sampled allocations that were freed, one by one.

use std::collections::{HashSet, VecDeque};

use super::LiveSample;
use memprof_sys::ids::{MmId, StackId};

/// Maximum number of freed samples that are stored, 56 bytes each.
pub(super) const MAX_FREED: usize = 1 << 18;

/// A sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The address space.
    pub mm: MmId,
    /// The sample.
    pub sample: LiveSample,
    /// Time of the free, in ns of `CLOCK_MONOTONIC`; `None` if the allocation is live, or was live at the end of its process.
    pub freed: Option<u64>,
    /// Whether the parent made the allocation, before the process was forked.
    pub inherited: bool,
}

/// The newest samples that were freed, or whose process has ended. When there are too many, the oldest are discarded; the sums
/// contain them.
#[derive(Debug, Default)]
pub(super) struct History {
    ended: VecDeque<Record>,
    forgotten: Forgotten,
}

/// The discarded samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Number of discarded samples.
    pub samples: u64,
    /// Time of the last free among them, or of the allocation if it was not freed, in ns of `CLOCK_MONOTONIC`; `None` if none was
    /// discarded.
    pub until: Option<u64>,
}

impl History {
    /// Adds a sample.
    pub(super) fn add(&mut self, record: Record) {
        if self.ended.len() == MAX_FREED {
            let oldest = self.ended.pop_front();
            let end = oldest.map(|record| record.freed.unwrap_or(record.sample.at));
            self.forgotten.until = self.forgotten.until.max(end);
            self.forgotten.samples += 1;
        }
        self.ended.push_back(record);
    }

    /// Removes the samples of an address space with these stacks.
    pub(super) fn take_back(&mut self, mm: MmId, stacks: &HashSet<StackId>) {
        let is_theirs = |record: &Record| record.mm == mm && stacks.contains(&record.sample.stack);
        self.ended.retain(|record| !is_theirs(record));
    }

    /// All stored samples, in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = Record> {
        self.ended.iter().copied()
    }

    /// The discarded samples.
    pub(super) fn forgotten(&self) -> Forgotten {
        self.forgotten
    }

    /// The stacks of the stored samples, with repetitions.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.ended.iter().map(|record| record.sample.stack)
    }
}
