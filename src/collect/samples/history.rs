//! Sampled allocations, one by one: the live ones, and the newest of those that were freed.

use std::collections::VecDeque;

use super::LiveSample;
use memprof_sys::ids::{MmId, StackId};

/// Maximum number of freed samples that are kept, 56 bytes each.
pub(super) const MOST: usize = 1 << 18;

/// A sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The address space.
    pub mm: MmId,
    /// The sample.
    pub sample: LiveSample,
    /// When it was freed, in ns of `CLOCK_MONOTONIC`; `None` if it is live, or was at the end of its process.
    pub freed: Option<u64>,
    /// Whether it was made before the process was forked, by its parent.
    pub inherited: bool,
}

/// The newest samples that were freed, or whose process has ended. When there are too many, the oldest are forgotten; sums still have them.
#[derive(Debug, Default)]
pub(super) struct History {
    ended: VecDeque<Record>,
    forgotten: Forgotten,
}

/// The samples that are kept no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Their number.
    pub samples: u64,
    /// When the last one of them was freed, or made if it was not, in ns of `CLOCK_MONOTONIC`; `None` if there is none.
    pub until: Option<u64>,
}

impl History {
    /// Adds a sample.
    pub(super) fn add(&mut self, record: Record) {
        if self.ended.len() == MOST {
            let oldest = self.ended.pop_front();
            let end = oldest.map(|record| record.freed.unwrap_or(record.sample.at));
            self.forgotten.until = self.forgotten.until.max(end);
            self.forgotten.samples += 1;
        }
        self.ended.push_back(record);
    }

    /// All that are kept, in the order in which they were added.
    pub(super) fn iter(&self) -> impl Iterator<Item = Record> {
        self.ended.iter().copied()
    }

    /// Those that are kept no longer.
    pub(super) fn forgotten(&self) -> Forgotten {
        self.forgotten
    }

    /// The stacks, with repetitions.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackId> {
        self.ended.iter().map(|record| record.sample.stack)
    }
}
