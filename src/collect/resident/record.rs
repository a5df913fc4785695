//! The entries of the page ledger.

use crate::probe::wire::{
    RECORD_FOLLOWS, RECORD_INHERITED, RECORD_SHARE_BITS, RECORD_STACK_BITS, RECORD_WRITE,
    stack_of_record,
};

/// A page's record: `enum page_record`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) stack: u32,
    /// `share_code()` of the interval.
    share: u32,
    /// Whether the page came in by a neighbour's fault.
    pub(super) follows: bool,
    /// Whether the fault was a write, which maps no small pages around it.
    pub(super) write: bool,
    /// Whether the record is a copy of a parent's record.
    pub(super) inherited: bool,
}

impl Record {
    pub(super) fn from_entry(entry: u32) -> Record {
        Record {
            stack: stack_of_record(entry),
            share: entry >> RECORD_STACK_BITS & ((1 << RECORD_SHARE_BITS) - 1),
            follows: entry & RECORD_FOLLOWS != 0,
            write: entry & RECORD_WRITE != 0,
            inherited: entry & RECORD_INHERITED != 0,
        }
    }

    /// The sampling interval at the time of this fault: one fault in this many was walked; 1 if the fault was walked in any case.
    pub(super) fn interval(self) -> u32 {
        match self.share {
            share @ ..32 => share.max(1),
            share => (16 + share % 16) << (share / 16 - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_kept_to_five_bits() {
        let interval = |share: u32| Record::from_entry(20 | share << RECORD_STACK_BITS).interval();
        assert_eq!(
            [0, 2, 31, 32, 33, 47, 48].map(interval),
            [1, 2, 31, 32, 34, 62, 64]
        );
        // Covers each interval up to the maximum, encoded as in share_code(): the highest bit and the four bits after it.
        let share = |interval: u32| {
            let bits = (interval | 16).ilog2() - 4;
            (bits << 4) + (interval >> bits)
        };
        for n in 2..=65_536u32 {
            let low = n.ilog2().saturating_sub(4);
            assert_eq!(interval(share(n)), n >> low << low);
        }
        assert!(share(65_536) < 1 << RECORD_SHARE_BITS);
        let all = u32::MAX >> 1;
        assert!(
            Record::from_entry(all).follows && !Record::from_entry(all ^ RECORD_FOLLOWS).follows
        );
        assert!(Record::from_entry(all).write && !Record::from_entry(all ^ RECORD_WRITE).write);
        assert_eq!(Record::from_entry(all).stack, (1 << RECORD_STACK_BITS) - 1);
    }
}
