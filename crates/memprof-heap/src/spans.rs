//! Heaps of further allocators: mimalloc, musl's mallocng, gperftools' tcmalloc.
//!
//! They have one thing in common: spans of consecutive pages with blocks of one size. Each reader finds its allocator's
//! structures in the copy of a process's memory, verifies them, and describes the heap as extents with regions
//! ([`SpanMap`]); everything that counts and searches blocks then works for all of them. A reader that finds a
//! contradiction refuses its heap, with the reason: the process was stopped while it changed the heap, its memory is
//! damaged, or the release has another layout.
//!
//! Another allocator is one reader and one line in [`READERS`]. The heaps of managed runtimes (Go) are read in the same
//! way, and kept apart: their collector decides what is free, so that no object of theirs is called unreachable.

mod report;

pub use report::{SpanFigures, SpanHeap, SpanSize};

use super::chunks::ChunkKind;
use super::memory::{Run, overlapping};
use super::other_allocators::Seen;
use super::regions::{Extent, ExtentState, Regions};
use super::snapshot::Snapshot;
use super::{glibc, golang, jemalloc, mallocng, mimalloc, tcmalloc};

/// The readers, and whether the heap is a managed one. The names are those of [`Seen`].
const READERS: [(&str, Reader, bool); 4] = [
    (mimalloc::NAME, mimalloc::read, false),
    (mallocng::NAME, mallocng::read, false),
    (tcmalloc::NAME, tcmalloc::read, false),
    (golang::NAME, golang::read, true),
];

/// Maximum number of blocks of all these heaps.
pub(crate) const MAX_BLOCKS: usize = 1 << 30;

/// Reads an allocator's heap. `None` if the process does not have it.
type Reader = fn(&Snapshot) -> Result<Option<SpanMap>, Refusal>;

/// Why a heap could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(pub String);

/// Shorthand for a refusal with a formatted reason.
macro_rules! refuse {
    ($($arg:tt)*) => { Err($crate::spans::Refusal(format!($($arg)*))) };
}
pub(crate) use refuse;

/// A heap as its reader describes it.
#[derive(Debug, Default)]
pub(crate) struct SpanMap {
    /// Name of the file that contains the allocator; empty if not known.
    pub module: String,
    /// Version or generation of the layout, if known.
    pub version: Option<String>,
    /// The extents, in any order.
    extents: Vec<Extent>,
    /// The kinds of their regions.
    kinds: Vec<ChunkKind>,
    /// Number of spans.
    pub spans: u64,
    /// Number of threads' heaps or caches found.
    pub caches: u64,
    /// What the figures leave out or count differently.
    pub note: Option<&'static str>,
}

impl SpanMap {
    /// An empty heap of a version.
    pub(crate) fn new(version: &str) -> SpanMap {
        SpanMap {
            version: Some(version.to_owned()),
            ..SpanMap::default()
        }
    }

    /// Adds a span from `start` to `end`. Its regions of `size` bytes begin at `at`; they are `kinds`.
    ///
    /// # Errors
    /// The regions do not fit into the span, or there are too many.
    pub(crate) fn add(
        &mut self,
        (start, end): (u64, u64),
        at: u64,
        size: u64,
        kinds: impl ExactSizeIterator<Item = ChunkKind>,
    ) -> Result<(), Refusal> {
        let count = kinds.len() as u64;
        let last = size.checked_mul(count).and_then(|all| at.checked_add(all));
        let fits = start <= at && start < end && last.is_some_and(|last| last <= end);
        let is_small = count <= 1 || end - start <= u64::from(u32::MAX);
        if !fits || size == 0 || !is_small || self.kinds.len() + count as usize > MAX_BLOCKS {
            return refuse!("the blocks of the span at {start:#x} do not fit into it");
        }
        let first = self.kinds.len();
        self.kinds.extend(kinds);
        self.push(start, end, ExtentState::Active);
        if let Some(extent) = self.extents.last_mut() {
            (extent.at, extent.size) = (at, size);
            (extent.first, extent.count) = (first, count as u32);
        }
        Ok(())
    }

    /// Adds free pages.
    pub(crate) fn add_free(&mut self, start: u64, end: u64) {
        self.push(start, end, ExtentState::Dirty);
    }

    /// Adds the allocator's own structures.
    pub(crate) fn add_own(&mut self, start: u64, end: u64) {
        self.push(start, end, ExtentState::Own);
    }

    fn push(&mut self, start: u64, end: u64, state: ExtentState) {
        if start < end {
            self.extents.push(Extent {
                start,
                end,
                state,
                arena: 0,
                at: start,
                size: end - start,
                first: 0,
                count: 0,
            });
        }
    }

    /// The address ranges, in any order.
    fn ranges(&self) -> impl Iterator<Item = Run> {
        self.extents.iter().map(|extent| Run {
            start: extent.start,
            end: extent.end,
            resident: true,
        })
    }
}

/// The heaps of all these allocators.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// All extents and regions. An extent's `arena` is an index in `names`.
    pub regions: Regions,
    names: Vec<&'static str>,
}

impl Spans {
    /// Whether no heap was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Name of the allocator that has an extent.
    pub(crate) fn name(&self, extent: &Extent) -> &'static str {
        self.names
            .get(usize::from(extent.arena))
            .copied()
            .unwrap_or_default()
    }

    /// The address ranges of all extents, in address order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Run> {
        self.regions
            .extents
            .chunk_by(|a, b| a.end == b.start)
            .map(|run: &[Extent]| -> Run {
                Run {
                    start: run[0].start,
                    end: run[run.len() - 1].end,
                    resident: true,
                }
            })
    }

    /// Adds a heap. Extents must not overlap each other, nor `taken`, the ranges of other heaps.
    fn add(&mut self, name: &'static str, map: SpanMap, taken: &[Run]) -> Result<(), Refusal> {
        let mut starts: Vec<(u64, u64)> = map.ranges().map(|run| (run.start, run.end)).collect();
        starts.sort_unstable();
        if let Some(pair) = starts.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return refuse!("two spans overlap at {:#x}", pair[1].0);
        }
        let theirs: Vec<Run> = self.ranges().collect();
        let overlaps = |run: &Run| {
            let of = |runs| overlapping(runs, run.start, run.end).next().is_some();
            of(taken) || of(&theirs)
        };
        if let Some(run) = map.ranges().find(overlaps) {
            return refuse!("the span at {:#x} overlaps another heap", run.start);
        }
        let (first, arena) = (self.regions.kinds.len(), self.names.len() as u16);
        self.names.push(name);
        self.regions.kinds.extend(map.kinds);
        let extents = map.extents.into_iter().map(|extent| Extent {
            arena,
            first: first + extent.first,
            ..extent
        });
        self.regions.extents.extend(extents);
        self.regions.extents.sort_by_key(|extent| extent.start);
        Ok(())
    }
}

/// Reads the heaps of all allocators in [`READERS`]. Removes from `seen` those that were read or refused: `seen` lists
/// allocators that memprof does not read. Returns the allocators' heaps, those of managed runtimes, and the summaries.
pub(crate) fn read(
    snapshot: &Snapshot,
    glibc: Option<&glibc::Heap>,
    jemalloc: Option<&jemalloc::Heap>,
    seen: &mut Vec<Seen>,
) -> (Spans, Spans, Vec<SpanHeap>) {
    let mut taken: Vec<Run> = glibc.map_or_else(Vec::new, glibc::Heap::ranges);
    taken.extend(jemalloc.map_or_else(Vec::new, jemalloc::Heap::ranges));
    taken.sort_by_key(|run| run.start);
    let (mut spans, mut managed, mut heaps) = (Spans::default(), Spans::default(), Vec::new());
    for (name, reader, is_managed) in READERS {
        let found = reader(snapshot).and_then(|map| {
            let Some(map) = map else { return Ok(None) };
            let summary = SpanHeap::read(name, is_managed, &map);
            let (to, others) = match is_managed {
                true => (&mut managed, &spans),
                false => (&mut spans, &managed),
            };
            let mut taken = taken.clone();
            taken.extend(others.ranges());
            taken.sort_by_key(|run| run.start);
            to.add(name, map, &taken)?;
            Ok(Some(summary))
        });
        let named = seen.iter().position(|seen| seen.name == name);
        let heap = match found {
            Ok(None) => continue,
            Ok(Some(heap)) => heap,
            Err(refusal) => SpanHeap::Refused {
                name,
                reason: refusal.to_string(),
            },
        };
        heaps.push(heap.with(named.map(|index| seen.remove(index))));
    }
    spans.regions.index();
    (spans, managed, heaps)
}
