//! Candidates for the next chunk, and the numbers that each may have.

use std::cmp::Reverse;

use super::{Before, ENOUGH};
use crate::p2p::chunk::{self, MAX_CHUNK, MIN_ENCRYPTED};

/// Size of the largest unlikely candidate that is tried before there are bytes enough for likely ones.
const SMALL: usize = 2 << 10;

/// Number of chunks in a chain of lengths that makes its first one likely: in so many random bytes, x = bytes / 65,536, there are
/// bytes · xⁿ / n! chains of n chunks, fewer than one.
fn long_chain(bytes: usize) -> usize {
    const X: usize = 64 << 10;
    3 + bytes.min(X) / (9 << 10) + bytes.saturating_sub(X) / (16 << 10)
}

/// A place where a chunk may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Index of the candidate's first byte in the bytes after the gap.
    pub(super) position: usize,
    /// Size of the candidate with its length field, in bytes.
    pub(super) size: usize,
    /// True if it begins a long chain, is of the largest size, or begins where the last known length ends.
    pub(super) likely: bool,
    /// Passes that are over.
    pub(super) passes: u8,
}

impl Candidate {
    /// Passes after which nothing is left to try.
    pub(super) const PASSES: u8 = 2;
    /// Numbers that are tried in the first pass over unlikely candidates.
    const NEAREST: usize = 32;

    /// The numbers of the next pass, at most `count`: all of a likely candidate, else the nearest, then the others.
    pub(super) fn numbers(
        &self,
        before: &Before,
        count: usize,
    ) -> impl Iterator<Item = u64> + use<> {
        let (from, to) = match (self.likely, self.passes) {
            (true, _) => (0, count),
            (false, 0) => (0, count.min(Self::NEAREST)),
            (false, _) => (Self::NEAREST, count),
        };
        numbers(self.position, before).take(to).skip(from)
    }

    /// Passes that are over after the next.
    pub(super) fn passed(&self) -> u8 {
        if self.likely {
            Self::PASSES
        } else {
            self.passes + 1
        }
    }
}

/// True if the chunk with which the bytes begin, if the last known length is right, is to be waited for before others are tried. It
/// is not if it is larger than all before.
pub(super) fn awaits_next(bytes: &[u8], before: &Before) -> bool {
    let size = chunk::size(bytes).unwrap_or(MIN_ENCRYPTED);
    before.next.is_some() && size > bytes.len() && (MIN_ENCRYPTED..=before.largest).contains(&size)
}

/// The candidates of which all bytes are there and whose passes are not over, the likeliest last: long chains, then small chunks.
/// Likely ones may be later chunks, which lead back to the next one. `passes` has those of each position.
pub(super) fn candidates(bytes: &[u8], before: &Before, passes: &[u8]) -> Vec<Candidate> {
    let (chains, long) = (chains(bytes), long_chain(bytes.len()));
    let enough = bytes.len() >= ENOUGH;
    let small = if enough { MAX_CHUNK } else { SMALL };
    let mut found = Vec::new();
    for (position, &chain) in chains.iter().enumerate() {
        let size = chunk::size(&bytes[position..]).unwrap_or(usize::MAX);
        let whole = size <= bytes.len() - position;
        let passes = passes.get(position).copied().unwrap_or(0);
        if !whole || passes == Candidate::PASSES || chain == 0 {
            continue;
        }
        let next = position == 0 && before.next.is_some();
        let likely = next || chain as usize >= long || size == before.largest;
        if !likely && (size > small || position >= MAX_CHUNK) {
            continue;
        }
        let last = if likely {
            passes + 1
        } else {
            Candidate::PASSES
        };
        for passes in passes..last {
            let rank = (next, likely.then_some(chain), Reverse((passes, size)));
            let candidate = Candidate {
                position,
                size,
                likely,
                passes,
            };
            found.push((rank, candidate));
        }
    }
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The numbers of chunks that may lie before a position, counted from the last known start, the likeliest first.
fn numbers(position: usize, before: &Before) -> impl Iterator<Item = u64> + use<> {
    let distance = before.lost.saturating_add(position as u64);
    let lowest = distance.div_ceil(MAX_CHUNK as u64);
    let highest = distance / MIN_ENCRYPTED as u64;
    let next = before.next.filter(|_| position == 0);
    let next = next.map(|next| next.saturating_sub(before.number));
    let likeliest = next.unwrap_or(distance / before.mean.max(1));
    nearest(
        likeliest.clamp(lowest, highest.max(lowest)),
        lowest,
        highest,
    )
}

/// The length of the chain of chunks from each position to the end of the bytes; 0 if it meets a length that no chunk has.
fn chains(bytes: &[u8]) -> Vec<u32> {
    let mut chains = vec![1; bytes.len()];
    for position in (0..bytes.len()).rev() {
        let Some(size) = chunk::size(&bytes[position..]) else {
            continue;
        };
        chains[position] = match chains.get(position + size) {
            _ if size < MIN_ENCRYPTED => 0,
            Some(0) => 0,
            Some(next) => next + 1,
            None => 1,
        };
    }
    chains
}

/// The numbers from `lowest` to `highest`, those nearest to `likeliest` first.
fn nearest(likeliest: u64, lowest: u64, highest: u64) -> impl Iterator<Item = u64> {
    let furthest = (highest.saturating_sub(likeliest)).max(likeliest - lowest);
    let of_distance = move |distance: u64| {
        let above = likeliest.checked_add(distance).filter(|n| *n <= highest);
        let below = likeliest.checked_sub(distance);
        let below = below.filter(|n| *n >= lowest && distance > 0);
        [above, below].into_iter().flatten()
    };
    (0..=furthest).flat_map(of_distance)
}
