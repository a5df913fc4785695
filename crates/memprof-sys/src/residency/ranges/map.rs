//! A map from addresses to values.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Full;

/// Maps addresses to values, stored as a limited number of disjoint half-open ranges; adjacent ranges of
/// equal value are joined.
#[derive(Clone, Debug)]
pub struct RangeMap<V> {
    /// First address → (first address after it, value).
    ranges: BTreeMap<u64, (u64, V)>,
    max: usize,
    dropped: u64,
}

impl<V: Clone + Eq> RangeMap<V> {
    /// An empty map that keeps at most `max` ranges.
    pub fn new(max: usize) -> RangeMap<V> {
        RangeMap {
            ranges: BTreeMap::new(),
            max,
            dropped: 0,
        }
    }

    /// Keeps at most `max` ranges from now on; those that it has stay.
    pub fn limit(&mut self, max: usize) {
        self.max = max.max(self.ranges.len());
    }

    /// The number of ranges.
    #[expect(clippy::len_without_is_empty, reason = "nobody needs to know that")]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Sets the value of all addresses of `range`; an empty range changes nothing.
    ///
    /// # Errors
    /// [`Full`]: the old values of `range` are removed, but there was no room for the new range or for
    /// the rest of an old one.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> Result<(), Full> {
        let before = self.dropped;
        self.take_out(&range);
        self.put_in(range, value);
        self.forgotten_since(before)
    }

    /// Removes the addresses of `range`.
    ///
    /// # Errors
    /// [`Full`]: `range` is removed, but it split another range, and the shorter part was dropped.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), Full> {
        let before = self.dropped;
        self.take_out(&range);
        self.forgotten_since(before)
    }

    /// Moves the addresses in `from` to `to`, as `mremap` does. The whole target range is replaced,
    /// gaps included. The two may overlap. Addresses that would exceed `u64::MAX` are discarded.
    ///
    /// # Errors
    /// [`Full`] as for [`RangeMap::insert`] and [`RangeMap::remove`].
    pub fn move_range(&mut self, from: Range<u64>, to: u64) -> Result<(), Full> {
        let before = self.dropped;
        let moved: Vec<_> = self
            .overlapping(from.clone())
            .map(|(range, value)| (range, value.clone()))
            .collect();
        let there = |addr: u64| to.saturating_add(addr - from.start);
        self.take_out(&from);
        if !from.is_empty() {
            self.take_out(&(to..there(from.end)));
        }
        for (range, value) in moved {
            self.put_in(there(range.start)..there(range.end), value);
        }
        self.forgotten_since(before)
    }

    /// The range that contains `addr`, and its value.
    pub fn get(&self, addr: u64) -> Option<(Range<u64>, &V)> {
        let (&start, (end, value)) = self.ranges.range(..=addr).next_back()?;
        (addr < *end).then_some((start..*end, value))
    }

    /// The ranges and their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> + '_ {
        self.ranges
            .iter()
            .map(|(&start, (end, value))| (start..*end, value))
    }

    /// The ranges that overlap `range`, clipped to it, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> + '_ {
        let first = self.get(range.start).map_or(range.start, |(r, _)| r.start);
        let inside = first..range.end.max(first);
        self.ranges
            .range(inside)
            .map(move |(&start, (end, value))| {
                (start.max(range.start)..(*end).min(range.end), value)
            })
            .filter(|(r, _)| !r.is_empty())
    }

    /// The number of ranges dropped since creation.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes all ranges but keeps the count of dropped ones.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    fn forgotten_since(&self, before: u64) -> Result<(), Full> {
        match self.dropped - before {
            0 => Ok(()),
            dropped => Err(Full { dropped }),
        }
    }

    /// Removes `range`. If that leaves one range too many, also drops the shorter neighbour of the hole.
    fn take_out(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.cut_at(range.start);
        self.cut_at(range.end);
        let inside: Vec<u64> = self
            .ranges
            .range(range.clone())
            .map(|(&start, _)| start)
            .collect();
        for start in inside {
            self.ranges.remove(&start);
        }
        if self.ranges.len() > self.max {
            self.drop_shorter_side(range);
        }
    }

    /// Splits the range that contains `at`, if any, at that address.
    fn cut_at(&mut self, at: u64) {
        let Some((start, (end, value))) = self.ranges.range_mut(..at).next_back() else {
            return;
        };
        if *end <= at {
            return;
        }
        let rest = (*end, value.clone());
        debug_assert!(*start < at);
        *end = at;
        self.ranges.insert(at, rest);
    }

    /// Drops the shorter of the two ranges beside the hole `range`.
    fn drop_shorter_side(&mut self, range: &Range<u64>) {
        let left = self.ranges.range(..range.start).next_back();
        let left = left.map(|(&start, (end, _))| (end - start, start));
        let right = self.ranges.range(range.end..).next();
        let right = right.map(|(&start, (end, _))| (end - start, start));
        if let Some((_, start)) = left.into_iter().chain(right).min() {
            self.ranges.remove(&start);
            self.dropped += 1;
        }
    }

    /// Adds a range whose addresses have no value, and joins it with its neighbours.
    fn put_in(&mut self, mut range: Range<u64>, value: V) {
        if range.is_empty() {
            return;
        }
        if let Some((&start, (end, left))) = self.ranges.range(..range.start).next_back()
            && *end == range.start
            && *left == value
        {
            range.start = start;
            self.ranges.remove(&start);
        }
        if let Some((end, right)) = self.ranges.get(&range.end)
            && *right == value
        {
            let (end, start) = (*end, range.end);
            range.end = end;
            self.ranges.remove(&start);
        }
        if self.ranges.len() < self.max {
            self.ranges.insert(range.start, (range.end, value));
        } else {
            self.dropped += 1;
        }
    }
}
