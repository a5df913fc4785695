//! Candidates for the next chunk, and the numbers that each may have.

use std::cmp::Reverse;

use super::Before;
use crate::p2p::chunk::{self, MAX_CHUNK, MIN_ENCRYPTED};

/// Maximum work for a likely candidate, in bytes to authenticate.
const LIKELY_WORK: u64 = 32 << 20;
/// Maximum work for another one.
const UNLIKELY_WORK: u64 = 4 << 20;
/// Number of chunks after which a chain of lengths makes a candidate likely.
const CHAIN: u32 = 3;

/// A place where a chunk may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Its first byte in the bytes after the gap.
    pub(super) position: usize,
    /// Its size with its length.
    pub(super) size: usize,
    /// Maximum work for it, in bytes to authenticate.
    pub(super) work: u64,
}

/// The candidates of which all bytes are there and that were not tried, the likeliest last: long chains, then small chunks.
pub(super) fn candidates(bytes: &[u8], before: &Before, tried: &[bool]) -> Vec<Candidate> {
    let chains = chains(bytes);
    let mut found = Vec::new();
    for (position, chain) in chains.iter().take(MAX_CHUNK).enumerate() {
        let size = chunk::size(&bytes[position..]).unwrap_or(usize::MAX);
        let whole = size <= bytes.len() - position;
        let new = !tried.get(position).is_some_and(|tried| *tried);
        if whole && new && *chain > 0 {
            let rank = rank(position, size, *chain, before);
            let work = rank.map_or(UNLIKELY_WORK, |_| LIKELY_WORK);
            let candidate = Candidate {
                position,
                size,
                work,
            };
            found.push((rank, candidate));
        }
    }
    found.sort_by_key(|(rank, candidate)| (*rank, Reverse(candidate.size)));
    let mut found: Vec<Candidate> = found.into_iter().map(|found| found.1).collect();
    let tried = tried.first().is_some_and(|tried| *tried);
    if before.next.is_some() && !tried && is_next(bytes, &chains, before) {
        found.retain(|candidate| candidate.position == 0);
    }
    found
}

/// The rank of a likely candidate.
fn rank(position: usize, size: usize, chain: u32, before: &Before) -> Option<u32> {
    if position == 0 && before.next.is_some() {
        return Some(u32::MAX);
    }
    (chain >= CHAIN || size == before.largest).then_some(chain)
}

/// True if the bytes seem to begin with a chunk, which is then waited for; not if it is larger than all before.
fn is_next(bytes: &[u8], chains: &[u32], before: &Before) -> bool {
    let size = chunk::size(bytes).unwrap_or(0);
    size <= before.largest && chains.first().is_some_and(|chain| *chain > 0)
}

/// The numbers of chunks that may lie before a candidate, counted from the last known start, the likeliest first.
pub(super) fn numbers(candidate: &Candidate, before: &Before) -> impl Iterator<Item = u64> + use<> {
    let distance = before.lost.saturating_add(candidate.position as u64);
    let lowest = distance.div_ceil(MAX_CHUNK as u64);
    let highest = distance / MIN_ENCRYPTED as u64;
    let next = before.next.filter(|_| candidate.position == 0);
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
