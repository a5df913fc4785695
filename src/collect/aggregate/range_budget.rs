//! The limit on the number of address ranges of all processes together.

use std::collections::BTreeMap;

use super::Aggregator;
use crate::collect::space::Space;
use crate::probe::event::RangeEvent;
use memprof_sys::ids::MmId;

/// Maximum number of ranges, and of runs of pages from before the attach, of all processes: about 100 MiB. Beyond it, a process may
/// add entries only up to its even share, so that the total never exceeds twice this number.
const MAX_RANGES: usize = 1 << 20;
/// Number of changes after which the ranges are counted again: processes that share ranges stop sharing them.
const COUNTED_FOR: u32 = 4096;

/// The approximate number of ranges of all processes.
#[derive(Debug, Default)]
pub(super) struct RangeBudget {
    ranges: usize,
    /// Number of further changes for which `ranges` is valid.
    valid: u32,
}

impl RangeBudget {
    /// Invalidates the count, because processes came or went.
    pub(super) fn forget(&mut self) {
        self.valid = 0;
    }

    /// Maximum number of ranges of each process.
    fn share(&mut self, spaces: &BTreeMap<MmId, Space>) -> usize {
        if self.valid == 0 {
            self.ranges = spaces.values().map(Space::held).sum();
            self.valid = COUNTED_FOR;
        }
        self.valid -= 1;
        match self.ranges < MAX_RANGES {
            true => usize::MAX,
            false => MAX_RANGES / spaces.len().max(1),
        }
    }
}

impl Aggregator {
    /// Applies a change of an address space.
    pub(super) fn change_range(&mut self, e: &RangeEvent) {
        let share = self.held.share(&self.spaces);
        if let Some(space) = self.spaces.get_mut(&e.mm) {
            let before = space.held();
            space.most = share;
            space.apply(e);
            self.held.ranges = (self.held.ranges + space.held()).saturating_sub(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::event::RangeChange;
    use memprof_sys::ids::{Addr, Pid, StackId};

    fn mapped(mm: MmId, page: u64) -> RangeEvent {
        // Every other page, because adjacent ranges would be merged.
        let start = page * 8192;
        RangeEvent {
            mm,
            start: Addr(start),
            end: Addr(start + 4096),
            change: RangeChange::Mapped {
                stack: StackId(1),
                populated: false,
                code: false,
            },
        }
    }

    #[test]
    fn a_process_with_very_many_ranges_leaves_room_for_others() {
        let mut aggregator = Aggregator::new(true);
        let spaces: Vec<MmId> = (1..=16).map(MmId).collect();
        for (&mm, pid) in spaces.iter().zip(1..) {
            aggregator.spaces.insert(mm, Space::new(Pid(pid), "p"));
        }
        let (small, large) = spaces.split_first().unwrap();
        for &mm in large {
            (0..130_000).for_each(|page| aggregator.change_range(&mapped(mm, page)));
        }
        let total: usize = aggregator.spaces.values().map(Space::held).sum();
        assert!((MAX_RANGES..=2 * MAX_RANGES).contains(&total), "{total}");
        let last = &aggregator.spaces[large.last().unwrap()];
        assert!(last.forgotten() > 0, "what did not fit is counted");
        // A process with few ranges can add ranges up to its share.
        (0..70_000).for_each(|page| aggregator.change_range(&mapped(*small, page)));
        let small = &aggregator.spaces[small];
        assert_eq!(small.held(), MAX_RANGES / 16);
        assert_eq!(small.forgotten(), 70_000 - MAX_RANGES as u64 / 16);
    }
}
