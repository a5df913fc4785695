//! A set of addresses.

use std::ops::Range;

use super::{Full, RangeMap};

/// A set of addresses, stored as a limited number of half-open ranges that neither overlap nor touch.
#[derive(Clone, Debug)]
pub struct RangeSet {
    map: RangeMap<()>,
}

impl RangeSet {
    /// An empty set of at most `max` ranges.
    pub fn new(max: usize) -> RangeSet {
        RangeSet {
            map: RangeMap::new(max),
        }
    }

    /// Limits the set to `max` ranges from now on; existing ranges remain.
    pub fn limit(&mut self, max: usize) {
        self.map.limit(max);
    }

    /// The number of ranges.
    #[expect(clippy::len_without_is_empty, reason = "nobody needs to know that")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Adds a range; an empty one changes nothing.
    ///
    /// # Errors
    /// [`Full`]: the range was not added.
    pub fn insert(&mut self, range: Range<u64>) -> Result<(), Full> {
        self.map.insert(range, ())
    }

    /// Removes a range.
    ///
    /// # Errors
    /// [`Full`]: the range is removed, but it split another range, and the shorter part was dropped.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), Full> {
        self.map.remove(range)
    }

    /// Moves the addresses in `from` to `to` and replaces the target range.
    ///
    /// # Errors
    /// [`Full`] as for [`RangeSet::insert`] and [`RangeSet::remove`].
    pub fn move_range(&mut self, from: Range<u64>, to: u64) -> Result<(), Full> {
        self.map.move_range(from, to)
    }

    /// Whether the set contains `addr`.
    pub fn contains(&self, addr: u64) -> bool {
        self.map.get(addr).is_some()
    }

    /// The parts of `range` that are in the set, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.overlapping(range).map(|(range, ())| range)
    }

    /// The number of ranges dropped since creation.
    pub fn dropped(&self) -> u64 {
        self.map.dropped()
    }
}
