//! Sampled allocations, and the chunks in which they are.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::super::all_heaps::AllHeaps;
use memprof_sys::ids::StackId;

/// A sampled allocation that was not freed yet when the process was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSample {
    /// What the allocator returned.
    pub address: u64,
    /// The bytes that were requested.
    pub size: u64,
    /// The bytes of all allocations that it stands for: its size divided by the probability that it was sampled.
    pub weight: u64,
    /// Who allocated it.
    pub stack: StackId,
}

impl HeapSample {
    /// The probability with which it was sampled; `None` if it cannot be one.
    pub(super) fn probability(&self) -> Option<f64> {
        let of_bytes = self.size > 0 && self.weight > 0;
        of_bytes.then(|| (self.size as f64 / self.weight as f64).min(1.0))
    }
}

/// The live samples of a process at the moment of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapSamples {
    /// Those that were kept.
    pub kept: Vec<HeapSample>,
    /// How they were sampled.
    pub origin: Origin,
    /// Number of samples that were not kept.
    pub lost: u64,
    /// Number of samples, of all processes and also such that were freed since, of which memprof was not told.
    pub unsent: u64,
}

/// How samples were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Whether sampling began with the program, so that each chunk in use could have been sampled.
    pub from_start: bool,
    /// The mean number of bytes between samples, if that is known; with 0 each allocation is one.
    pub interval: Option<u64>,
}

impl Origin {
    /// Whether each allocation of the program was a sample.
    pub fn is_every(self) -> bool {
        self.from_start && self.interval == Some(0)
    }
}

/// What became of the samples in a join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SampleCounts {
    /// Those of chunks in use, from which all is estimated.
    pub joined: u64,
    /// Those without a chunk in use at their address, or with one that is too small: they were freed, which was not seen.
    pub gone: u64,
    /// Those of no bytes, which stand for none.
    pub empty: u64,
    /// Those that were not kept before the join: there was no room for them.
    pub lost: u64,
    /// Those of which memprof was not told, because it could not keep up: of all processes, and also such that were freed since.
    pub unsent: u64,
}

/// A sample in its chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// First address of the chunk's contents.
    pub start: u64,
    pub sample: HeapSample,
    /// The probability with which it was sampled.
    pub p: f64,
}

/// Finds the chunks of all samples. Returns them in the order of their addresses, one for each chunk.
pub(crate) fn place(heaps: &AllHeaps, samples: &HeapSamples) -> (Vec<Placed>, SampleCounts) {
    let mut counts = SampleCounts {
        lost: samples.lost,
        unsent: samples.unsent,
        ..SampleCounts::default()
    };
    let mut placed = Vec::new();
    for sample in &samples.kept {
        let Some(p) = sample.probability() else {
            counts.empty += 1;
            continue;
        };
        // An aligned address may lie anywhere in its chunk.
        let chunk = heaps.place(sample.address);
        let chunk = chunk.filter(|(_, kind)| kind.is_live());
        let contents = chunk.map(|(place, _)| heaps.contents(place));
        let fits = |(_, end): &(u64, u64)| end - sample.address >= sample.size;
        match contents.filter(fits) {
            Some((start, _)) => placed.push(Placed {
                start,
                sample: *sample,
                p,
            }),
            None => counts.gone += 1,
        }
    }
    placed.sort_by_key(|placed| (placed.start, placed.sample.address));
    let all = placed.len();
    placed.dedup_by_key(|placed| placed.start);
    counts.gone += (all - placed.len()) as u64;
    counts.joined = placed.len() as u64;
    (placed, counts)
}

/// The unreachable chunks that lead to others, of the chunks with samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    wanted: HashSet<u64>,
    heads: HashMap<u64, u64>,
}

impl Heads {
    /// Those of these chunks are wanted.
    pub(crate) fn of(placed: &[Placed]) -> Heads {
        Heads {
            wanted: placed.iter().map(|placed| placed.start).collect(),
            heads: HashMap::new(),
        }
    }

    /// Notes that a chunk is unreachable and that `head` leads to it. Both are first addresses of contents.
    pub(crate) fn note(&mut self, chunk: u64, head: u64) {
        if self.wanted.contains(&chunk) {
            self.heads.insert(chunk, head);
        }
    }

    /// What leads to an unreachable chunk.
    pub(super) fn get(&self, chunk: u64) -> Option<u64> {
        self.heads.get(&chunk).copied()
    }
}
