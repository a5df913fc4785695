//! After lost bytes: finds the next chunk by trial, and its exact number.
//!
//! A chunk is recognised by its tag of 128 bits, so that a success is certain. Neither the offset nor the number of the next chunk
//! is known, but a chunk starts within 65,537 bytes, and the number of bytes since the last known start bounds the numbers. Chunks
//! that follow each other are the likeliest starts: from a true start, the lengths lead from chunk to chunk to the end of the
//! bytes, while those at other offsets soon lead out of them. Lengths below that of a tag exclude an offset.

mod candidates;

use std::ops::Range;

use self::candidates::{Candidate, awaits_next, candidates};
use super::chunk::{self, HEADER, MAX_CHUNK};
use super::cipher::{Opener, TagKey};
use crate::budget::{Budget, Buffer};
use crate::time::Timestamp;

/// Number of bytes in which a likely candidate is expected: one of the largest chunks, or the beginning of a long chain. The search
/// goes on with the others then, and fails.
const ENOUGH: usize = 4 * MAX_CHUNK;

/// A chunk that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index of the chunk's first byte in the bytes after the gap.
    pub position: usize,
    /// Number of the chunk.
    pub number: u64,
    /// The index of the opener that decrypts it.
    pub opener: usize,
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The next chunk is found.
    Found(Found),
    /// The permitted work was done, and more is to do.
    More,
    /// More bytes are needed.
    Waiting,
    /// All candidates, or all that may be tried, were tried without success.
    Failed,
}

/// The direction as it was before the gap.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Number of the chunk that starts at the last known start.
    pub number: u64,
    /// Bytes between that start and the bytes after the gap.
    pub lost: u64,
    /// Number of the chunk with which the bytes after the gap begin, if the last known length is right.
    pub next: Option<u64>,
    /// Mean size of chunks with their lengths, in bytes.
    pub mean: u64,
    /// Size of the largest chunk with its length, in bytes: a sender cuts long messages into chunks of this size.
    pub largest: usize,
}

/// A search for the next chunk.
#[derive(Debug)]
pub struct Search {
    before: Before,
    buffer: Buffer,
    /// Where the captured pieces begin in the buffer, and their times.
    pieces: Vec<(usize, Timestamp)>,
    /// How often each position was tried.
    passes: Vec<u8>,
    /// Candidates, the likeliest last; of a buffer of that size.
    queue: Vec<Candidate>,
    queued_at: usize,
    /// Keys of the tags of all numbers, per opener.
    keys: Vec<Vec<Option<TagKey>>>,
    /// Work that was done, and that may be done in all, in bytes to authenticate.
    done: u64,
    max_work: u64,
}

impl Search {
    /// Maximum work of a search after lost bytes, in bytes to authenticate: about two seconds.
    pub const MAX_WORK: u64 = 6 << 30;
    /// Maximum work after a chunk that cannot be decrypted, without lost bytes.
    pub const MAX_WORK_WITHOUT_GAP: u64 = 64 << 20;
    /// Maximum number of bytes that are kept while the search goes on.
    pub const MAX_BYTES: usize = 1 << 20;
    /// Work for unlikely candidates that few bytes are worth.
    const MIN_WORK: u64 = 64 << 20;
    /// Maximum work for one likely candidate.
    const LIKELY_WORK: u64 = 32 << 20;
    /// Maximum work for another one.
    const UNLIKELY_WORK: u64 = 8 << 20;
    /// Work of a trial beside its bytes, measured: the preparation of a key takes as long as that many bytes.
    const TRIAL: u64 = 3 << 10;
    /// Minimum number of numbers that are tried for a candidate.
    const MIN_TRIALS: u64 = 16;
    /// Maximum number of tag keys that are kept.
    const MAX_NUMBERS: usize = 1 << 16;
    /// Bytes of captured pieces that share a time, at least: their times take memory.
    const PIECE: usize = 64;

    /// Begins a search of at most `work` bytes to authenticate.
    pub fn new(before: Before, work: u64, budget: Budget) -> Self {
        Self {
            before,
            buffer: Buffer::new(budget),
            pieces: Vec::new(),
            passes: Vec::new(),
            queue: Vec::new(),
            queued_at: 0,
            keys: Vec::new(),
            done: 0,
            max_work: work,
        }
    }

    /// Takes bytes after the gap. Returns false, and takes none, if that would be too many.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8], time: Timestamp) -> bool {
        let start = self.len();
        if start + bytes.len() > Self::MAX_BYTES || !self.buffer.extend(bytes) {
            return false;
        }
        let last = self.pieces.last().map(|piece| piece.0);
        if last.is_none_or(|last| start - last >= Self::PIECE) {
            self.pieces.push((start, time));
        }
        true
    }

    /// Takes another gap: the bytes before it do not help any more.
    pub fn gap(&mut self, length: u64) {
        let bytes = self.buffer.bytes().len() as u64;
        self.before.lost = self
            .before
            .lost
            .saturating_add(bytes)
            .saturating_add(length);
        (self.done, self.max_work) = (0, Self::MAX_WORK);
        self.buffer.clear();
        self.pieces.clear();
        self.passes.clear();
        self.queue.clear();
        self.queued_at = 0;
        self.keys.clear();
    }

    /// A part of the bytes after the gap, as they were captured, with their times.
    pub fn pieces_of(&self, range: Range<usize>) -> impl Iterator<Item = (Timestamp, &[u8])> {
        let bytes = self.buffer.bytes();
        let ends = self.pieces.iter().skip(1).map(|piece| piece.0);
        let ends = ends.chain([bytes.len()]);
        let pieces = self.pieces.iter().zip(ends);
        pieces.filter_map(move |(&(start, time), end)| {
            let part = start.max(range.start)..end.min(range.end);
            let part = bytes.get(part).filter(|part| !part.is_empty());
            part.map(|part| (time, part))
        })
    }

    /// When the last bytes were captured.
    pub fn last_time(&self) -> Timestamp {
        self.pieces
            .last()
            .map_or(Timestamp::default(), |piece| piece.1)
    }

    /// Number of bytes after the gap.
    pub fn len(&self) -> usize {
        self.buffer.bytes().len()
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.buffer.bytes().is_empty()
    }

    /// Number of the last chunk that may have been seen.
    pub fn number(&self) -> u64 {
        self.before.number
    }

    /// Tries candidates with each of the openers, until `work` bytes are authenticated. The order of the openers stays the same,
    /// or their number changes.
    pub fn run(&mut self, openers: &mut [&mut Opener], work: u64) -> Outcome {
        if self.keys.len() != openers.len() {
            self.keys = vec![Vec::new(); openers.len()];
            self.passes.clear();
            self.queued_at = 0;
        }
        if awaits_next(self.buffer.bytes(), &self.before) {
            return Outcome::Waiting;
        }
        let until = self.done.saturating_add(work);
        loop {
            let grown = self.len() - self.queued_at;
            if grown > self.queued_at / 8 || self.queue.is_empty() && grown > 0 {
                self.queued_at = self.len();
                self.queue = candidates(self.buffer.bytes(), &self.before, &self.passes);
            }
            let candidate = self.queue.pop();
            let Some(candidate) = candidate.filter(|one| self.done < self.permitted(one.likely))
            else {
                let enough = self.len() >= ENOUGH;
                return if enough {
                    Outcome::Failed
                } else {
                    Outcome::Waiting
                };
            };
            if let Some(found) = self.try_candidate(candidate, openers) {
                return Outcome::Found(self.earliest(found, openers));
            }
            if self.passes.len() <= candidate.position {
                self.passes.resize(candidate.position + 1, 0);
            }
            self.passes[candidate.position] = candidate.passed();
            if self.done >= until {
                return Outcome::More;
            }
        }
    }

    /// Work up to which a candidate is tried. Half of it is reserved for likely ones, which may come late.
    fn permitted(&self, likely: bool) -> u64 {
        if likely {
            return self.max_work;
        }
        let share = self.max_work / 2 * self.len().min(ENOUGH) as u64 / ENOUGH as u64;
        share.max(Self::MIN_WORK).min(self.max_work / 2)
    }

    /// Tries the numbers that a candidate may have.
    fn try_candidate(
        &mut self,
        candidate: Candidate,
        openers: &mut [&mut Opener],
    ) -> Option<Found> {
        let trial = (candidate.size as u64 + Self::TRIAL) * openers.len().max(1) as u64;
        let work = if candidate.likely {
            Self::LIKELY_WORK
        } else {
            Self::UNLIKELY_WORK
        };
        let count = (work / trial).max(Self::MIN_TRIALS) as usize;
        let position = candidate.position;
        for chunks in candidate.numbers(&self.before, count) {
            let number = self.before.number.checked_add(chunks)?;
            self.done += trial;
            for (index, opener) in openers.iter_mut().enumerate() {
                let mut uncached = None;
                let slot = chunks - self.before.lost / MAX_CHUNK as u64;
                let slot = slot_of(&mut self.keys[index], slot).unwrap_or(&mut uncached);
                let key = slot.get_or_insert_with(|| opener.tag_key(number));
                let sealed = &self.buffer.bytes()[position + HEADER..position + candidate.size];
                if key.verify(sealed).is_some() {
                    let opener = index;
                    return Some(Found {
                        position,
                        number,
                        opener,
                    });
                }
            }
        }
        None
    }

    /// The first of the chunks that lead to the one that was found: short chunks are tried before those that precede them.
    fn earliest(&self, mut found: Found, openers: &mut [&mut Opener]) -> Found {
        let bytes = self.buffer.bytes();
        while let Some(number) = found
            .number
            .checked_sub(1)
            .filter(|n| *n >= self.before.number)
        {
            let key = openers[found.opener].tag_key(number);
            let from = found.position.saturating_sub(MAX_CHUNK);
            let before = (from..found.position).find(|&position| {
                let chunk = &bytes[position..found.position];
                chunk::size(chunk) == Some(chunk.len()) && key.verify(&chunk[HEADER..]).is_some()
            });
            let Some(position) = before else { break };
            (found.position, found.number) = (position, number);
        }
        found
    }
}

/// A place for the key of one number, unless there are too many.
fn slot_of(keys: &mut Vec<Option<TagKey>>, slot: u64) -> Option<&mut Option<TagKey>> {
    let slot = usize::try_from(slot)
        .ok()
        .filter(|slot| *slot < Search::MAX_NUMBERS)?;
    if keys.len() <= slot {
        keys.resize(slot + 1, None);
    }
    keys.get_mut(slot)
}
