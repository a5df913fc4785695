//! How many address ranges all processes may hold together.

use std::collections::BTreeMap;

use super::Aggregator;
use crate::collect::space::Space;
use crate::probe::event::RangeEvent;
use memprof_sys::ids::MmId;

/// How many ranges, and runs of pages from before the attach, all processes may have: about 100 MiB. When there are so
/// many, a process may add some only up to its even share, so that there are never more than twice as many.
const MOST: usize = 1 << 20;
/// After so many changes they are counted anew: processes that share ranges stop sharing them.
const COUNTED_FOR: u32 = 4096;

/// How many there are, about.
#[derive(Debug, Default)]
pub(super) struct Held {
    ranges: usize,
    /// For how many more changes the count holds.
    valid: u32,
}

impl Held {
    /// Has them counted anew: processes came or went.
    pub(super) fn forget(&mut self) {
        self.valid = 0;
    }

    /// How many ranges each process may have.
    fn share(&mut self, spaces: &BTreeMap<MmId, Space>) -> usize {
        if self.valid == 0 {
            self.ranges = spaces.values().map(Space::held).sum();
            self.valid = COUNTED_FOR;
        }
        self.valid -= 1;
        match self.ranges < MOST {
            true => usize::MAX,
            false => MOST / spaces.len().max(1),
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
        // Every other page: neighbours would be one range.
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
        assert!((MOST..=2 * MOST).contains(&total), "{total}");
        let last = &aggregator.spaces[large.last().unwrap()];
        assert!(last.forgotten() > 0, "what did not fit is counted");
        // One with few ranges still adds its own, up to its share, and not more.
        (0..70_000).for_each(|page| aggregator.change_range(&mapped(*small, page)));
        let small = &aggregator.spaces[small];
        assert_eq!(small.held(), MOST / 16);
        assert_eq!(small.forgotten(), 70_000 - MOST as u64 / 16);
    }
}
