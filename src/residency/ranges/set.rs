//! A set of addresses.

use std::ops::Range;

use super::{Full, RangeMap};

/// A set of addresses, stored as a limited number of half-open ranges that neither overlap nor touch.
#[derive(Clone, Debug)]
pub struct RangeSet {
    map: RangeMap<()>,
}

impl RangeSet {
    /// An empty set that keeps at most `max` ranges.
    pub fn new(max: usize) -> RangeSet {
        RangeSet {
            map: RangeMap::new(max),
        }
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

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(range, ())| range)
    }

    /// The parts of `range` that are in the set, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.overlapping(range).map(|(range, ())| range)
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The total size of the ranges, in bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// The number of ranges dropped since creation.
    pub fn dropped(&self) -> u64 {
        self.map.dropped()
    }

    /// Removes all ranges but keeps the count of dropped ones.
    pub fn clear(&mut self) {
        self.map.clear();
    }
}
