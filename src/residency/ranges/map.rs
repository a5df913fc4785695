//! A map from addresses to values.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Full;

/// Maps addresses to values: disjoint half-open ranges, neighbours of equal value joined, with a limit
/// on their number.
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

    /// Gives all addresses of `range` a value, in place of what they had; an empty range changes nothing.
    ///
    /// # Errors
    /// [`Full`]: old values are gone from `range`, but the new one found no room, or what is left of
    /// an old range did not.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> Result<(), Full> {
        let before = self.dropped;
        self.take_out(&range);
        self.put_in(range, value);
        self.forgotten_since(before)
    }

    /// Removes the addresses of `range`.
    ///
    /// # Errors
    /// [`Full`]: `range` is removed, but it cut another in two, and the shorter part was forgotten.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), Full> {
        let before = self.dropped;
        self.take_out(&range);
        self.forgotten_since(before)
    }

    /// Moves the addresses in `from` so that they start at `to`, as `mremap` does; what was there is
    /// replaced, gaps included. The two may overlap. What would lie beyond `u64::MAX` is lost.
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

    /// The range `addr` lies in, and its value.
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

    /// The ranges that have addresses in `range`, cut to it, in order.
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

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether no address has a value.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many ranges were forgotten since it was made.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes everything; the count of forgotten ranges stays.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    fn forgotten_since(&self, before: u64) -> Result<(), Full> {
        match self.dropped - before {
            0 => Ok(()),
            dropped => Err(Full { dropped }),
        }
    }

    /// Removes `range`; where that leaves one range too many, the shorter part of the one that was cut.
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

    /// Makes `at` a border between two ranges if it lies inside one.
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

    /// Of the ranges on both sides of the hole `range`, forgets the shorter one.
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

    /// Adds a range no address of which has a value, and joins it with its neighbours.
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
