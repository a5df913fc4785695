//! Sampled allocations, and the chunks that contain them.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::super::all_heaps::AllHeaps;
use super::super::python::PythonMemory;
use memprof_sys::ids::StackId;

/// A sampled allocation that was live when the process was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSample {
    /// The address that the allocator returned.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Bytes of all allocations that the sample stands for: its size divided by its sampling probability.
    pub weight: u64,
    /// The stack that allocated it.
    pub stack: StackId,
}

impl HeapSample {
    /// The sampling probability; `None` if size or weight is 0.
    pub(super) fn probability(&self) -> Option<f64> {
        let of_bytes = self.size > 0 && self.weight > 0;
        of_bytes.then(|| (self.size as f64 / self.weight as f64).min(1.0))
    }
}

/// The live samples of a process at the moment of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapSamples {
    /// The samples that memprof recorded.
    pub kept: Vec<HeapSample>,
    /// How the samples were taken.
    pub origin: Origin,
    /// Number of samples that memprof could not record.
    pub lost: u64,
    /// Number of samples that did not reach memprof. Counts all processes, and includes samples freed since.
    pub unsent: u64,
}

/// How samples were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Whether sampling began with the program, so that each chunk in use could have been sampled.
    pub from_start: bool,
    /// Mean number of bytes between samples, if known. With 0, each allocation is sampled.
    pub interval: Option<u64>,
}

impl Origin {
    /// Whether each allocation of the program was sampled.
    pub fn is_every(self) -> bool {
        self.from_start && self.interval == Some(0)
    }
}

/// Number of samples by their fate in a join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapSampleCounts")]
pub struct SampleCounts {
    /// Samples of chunks in use. All estimates are made from them.
    pub joined: u64,
    /// Samples whose address has no chunk in use, or too small a chunk: memprof missed that they were freed.
    pub gone: u64,
    /// Zero-byte samples, which stand for no bytes.
    pub empty: u64,
    /// Samples that were dropped before the join because the sample table was full.
    pub lost: u64,
    /// Samples dropped because memprof fell behind, across all processes, including samples freed since.
    pub unsent: u64,
}

/// A sample with its chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// First address of the chunk's contents.
    pub start: u64,
    pub sample: HeapSample,
    /// Sampling probability.
    pub p: f64,
}

/// Finds the chunks of all samples, which may also be blocks of Python. Returns the samples in address order, at most one per
/// chunk.
pub(crate) fn place(
    heaps: &AllHeaps,
    python: Option<&PythonMemory>,
    samples: &HeapSamples,
) -> (Vec<Placed>, SampleCounts) {
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
        let contents = contents.or_else(|| python?.live_block(sample.address));
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

/// For each sampled chunk that is unreachable, the head that leads to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    wanted: HashSet<u64>,
    heads: HashMap<u64, u64>,
}

impl Heads {
    /// Starts empty, and accepts the heads of these chunks only.
    pub(crate) fn new(placed: &[Placed]) -> Heads {
        Heads {
            wanted: placed.iter().map(|placed| placed.start).collect(),
            heads: HashMap::new(),
        }
    }

    /// Records that a chunk is unreachable and that `head` leads to it. Both are first addresses of contents.
    pub(crate) fn note(&mut self, chunk: u64, head: u64) {
        if self.wanted.contains(&chunk) {
            self.heads.insert(chunk, head);
        }
    }

    /// The head of an unreachable chunk.
    pub(super) fn get(&self, chunk: u64) -> Option<u64> {
        self.heads.get(&chunk).copied()
    }
}
