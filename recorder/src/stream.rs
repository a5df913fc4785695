//! One direction of a connection in order: captured records become pieces that follow each other, and gaps of exact size.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Timestamp;

/// Captured bytes of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Offset of the first byte in the direction; the first byte after the SYN has offset 0.
    pub offset: u64,
    /// Bytes of the direction that the kernel had in order when the packet passed: `bytes_received`, or `bytes_acked`. Offsets
    /// far from it do not belong to the connection.
    pub in_order: u64,
    /// When the bytes were captured.
    pub time: Timestamp,
    /// The bytes.
    pub data: &'a [u8],
}

/// The next part of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes.
    Bytes {
        /// Offset of the first byte.
        offset: u64,
        /// When they were captured.
        time: Timestamp,
        /// The bytes.
        data: &'a [u8],
    },
    /// Bytes that were not captured.
    Gap {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// When the bytes after them were captured; at the end, when the last ones were.
        time: Timestamp,
    },
}

/// Sums of a direction, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were captured, each once.
    pub captured: u64,
    /// Bytes that were captured again, and dropped.
    pub repeated: u64,
    /// Bytes in gaps.
    pub lost: u64,
    /// Bytes of records that were too far from the others to belong to the connection, and were dropped.
    pub foreign: u64,
}

/// A record that waits for those before it.
#[derive(Debug)]
struct Waiting {
    time: Timestamp,
    arrived: Timestamp,
    data: Vec<u8>,
}

/// Puts the records of one direction in order.
#[derive(Debug, Default)]
pub struct Stream {
    expected: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Memory of the waiting records, in bytes.
    size: usize,
    /// When the oldest waiting record arrived.
    since: Option<Timestamp>,
    /// When the last bytes were captured.
    last: Timestamp,
    traffic: Traffic,
}

impl Stream {
    /// Maximum memory of waiting records, in bytes.
    pub const MAX_WAITING: usize = 256 << 10;
    /// Maximum time that a record waits for those before it.
    pub const MAX_WAIT: Duration = Duration::from_secs(2);
    /// Maximum distance from the bytes that the kernel has in order, in bytes.
    pub const WINDOW: u64 = 16 << 20;
    /// Memory of a waiting record beside its bytes, about.
    const OVERHEAD: usize = 96;

    /// Takes a record at time `now`, and gives the pieces that follow.
    pub fn push(&mut self, record: &Record<'_>, now: Timestamp, sink: &mut dyn FnMut(Piece<'_>)) {
        let size = record.data.len() as u64;
        let end = record.offset.checked_add(size);
        let near = record.offset.abs_diff(record.in_order) <= Self::WINDOW;
        let Some(end) = end.filter(|_| near) else {
            self.traffic.foreign += size;
            return;
        };
        if end <= self.expected {
            self.traffic.repeated += size;
        } else if record.offset <= self.expected {
            self.give(record.offset, record.time, record.data, sink);
            self.drain(sink);
        } else {
            self.wait(record, now);
            while self.size > Self::MAX_WAITING {
                self.skip(sink);
            }
        }
    }

    /// Gives what has waited too long at time `now`, after the gap before it.
    pub fn expire(&mut self, now: Timestamp, sink: &mut dyn FnMut(Piece<'_>)) {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            self.skip(sink);
        }
    }

    /// When [`Self::expire`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.since.map(|since| since.after(Self::MAX_WAIT))
    }

    /// Gives all that waits: no record will come any more. `end` is the number of bytes that the direction had, if it is known.
    pub fn finish(&mut self, end: Option<u64>, sink: &mut dyn FnMut(Piece<'_>)) {
        while !self.waiting.is_empty() {
            self.skip(sink);
        }
        if let Some(end) = end {
            self.gap(end, self.last, sink);
        }
    }

    /// Sums of the direction.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn wait(&mut self, record: &Record<'_>, now: Timestamp) {
        let old = self.waiting.get(&record.offset).map(|old| old.data.len());
        if old.is_some_and(|old| old >= record.data.len()) {
            self.traffic.repeated += record.data.len() as u64;
            return;
        }
        if let Some(old) = old {
            self.traffic.repeated += old as u64;
            self.size -= old + Self::OVERHEAD;
        }
        self.size += record.data.len() + Self::OVERHEAD;
        let waiting = Waiting {
            time: record.time,
            arrived: now,
            data: record.data.to_vec(),
        };
        self.waiting.insert(record.offset, waiting);
        self.since = Some(self.since.map_or(now, |since| since.min(now)));
    }

    /// Gives up the bytes before the first waiting record.
    fn skip(&mut self, sink: &mut dyn FnMut(Piece<'_>)) {
        if let Some((&offset, first)) = self.waiting.first_key_value() {
            self.gap(offset, first.time, sink);
        }
        self.drain(sink);
    }

    /// Gives the waiting records that follow.
    fn drain(&mut self, sink: &mut dyn FnMut(Piece<'_>)) {
        if self.waiting.is_empty() {
            return;
        }
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() > self.expected {
                break;
            }
            let (offset, record) = first.remove_entry();
            self.size -= record.data.len() + Self::OVERHEAD;
            self.give(offset, record.time, &record.data, sink);
        }
        self.since = self.waiting.values().map(|waiting| waiting.arrived).min();
    }

    /// Gives the bytes that were not given before.
    fn give(&mut self, offset: u64, time: Timestamp, data: &[u8], sink: &mut dyn FnMut(Piece<'_>)) {
        let given = self.expected - offset;
        let new = usize::try_from(given).ok().and_then(|n| data.get(n..));
        let new = new.unwrap_or_default();
        self.traffic.captured += new.len() as u64;
        self.traffic.repeated += (data.len() - new.len()) as u64;
        if !new.is_empty() {
            let offset = self.expected;
            self.expected += new.len() as u64;
            self.last = time;
            sink(Piece::Bytes {
                offset,
                time,
                data: new,
            });
        }
    }

    fn gap(&mut self, end: u64, time: Timestamp, sink: &mut dyn FnMut(Piece<'_>)) {
        if end > self.expected {
            let (offset, length) = (self.expected, end - self.expected);
            self.expected = end;
            self.traffic.lost += length;
            sink(Piece::Gap {
                offset,
                length,
                time,
            });
        }
    }
}
