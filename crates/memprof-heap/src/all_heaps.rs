//! The heaps of all allocators as one, so that code that finds and counts chunks is independent of the allocator.

use super::chunks::{BEHIND, CONTENTS, ChunkKind};
use super::glibc;
use super::jemalloc::{self, Region};
use super::memory::Run;
use super::spans::Spans;

/// The location of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkRef {
    /// In the part of glibc's heap with this index, at this address.
    Part(u32, u64),
    /// A glibc chunk with a mapping of its own, by index.
    Mapped(u32),
    /// A jemalloc region.
    Region(Region),
    /// A region of another allocator.
    Span(Region),
}

/// All heaps of a process.
#[derive(Debug, Default)]
pub(crate) struct AllHeaps {
    /// glibc's heap, if the process has one.
    pub glibc: Option<glibc::Heap>,
    /// jemalloc's heap, if the process has one.
    pub jemalloc: Option<jemalloc::Heap>,
    /// The heaps of further allocators.
    pub spans: Spans,
    /// First address and end of glibc's heap, of jemalloc's, and of the others.
    bounds: [(u64, u64); 3],
}

impl AllHeaps {
    /// Combines the heaps that were read.
    pub(crate) fn new(glibc: Option<glibc::Heap>, jemalloc: Option<jemalloc::Heap>) -> AllHeaps {
        let of_glibc = glibc.as_ref().map(|heap| {
            let ranges = heap.ranges();
            let start = ranges.first().map_or(0, |range| range.start);
            (
                start,
                ranges.iter().map(|range| range.end).max().unwrap_or(0),
            )
        });
        let of_jemalloc = jemalloc.as_ref().and_then(|heap| heap.regions.bounds());
        AllHeaps {
            bounds: [of_glibc, of_jemalloc, None].map(Option::unwrap_or_default),
            glibc,
            jemalloc,
            spans: Spans::default(),
        }
    }

    /// Adds the heaps of further allocators.
    pub(crate) fn with_spans(mut self, spans: Spans) -> AllHeaps {
        self.bounds[2] = spans.regions.bounds().unwrap_or_default();
        self.spans = spans;
        self
    }

    /// Whether no heap was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.glibc.is_none() && self.jemalloc.is_none() && self.spans.is_empty()
    }

    /// First address of the lowest heap and end of the highest.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let filled = self.bounds.iter().filter(|(start, end)| start < end);
        let start = filled.clone().map(|bounds| bounds.0).min();
        (
            start.unwrap_or(0),
            filled.map(|bounds| bounds.1).max().unwrap_or(0),
        )
    }

    /// The ranges of all heaps, in address order.
    pub(crate) fn ranges(&self) -> Vec<Run> {
        let glibc = self.glibc.iter().flat_map(glibc::Heap::ranges);
        let jemalloc = self.jemalloc.iter().flat_map(jemalloc::Heap::ranges);
        let spans = self.spans.ranges();
        let mut ranges: Vec<Run> = glibc.chain(jemalloc).chain(spans).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Finds the chunk whose contents include an address.
    pub(super) fn place(&self, addr: u64) -> Option<(ChunkRef, ChunkKind)> {
        let [of_glibc, of_jemalloc, of_spans] = self.bounds;
        if let Some(heap) = &self.jemalloc
            && (of_jemalloc.0..of_jemalloc.1).contains(&addr)
            && let Some(region) = heap.regions.containing(addr)
        {
            return Some((ChunkRef::Region(region), heap.regions.kind(region)));
        }
        if (of_spans.0..of_spans.1).contains(&addr)
            && let Some(region) = self.spans.regions.containing(addr)
        {
            return Some((ChunkRef::Span(region), self.spans.regions.kind(region)));
        }
        let heap = self.glibc.as_ref()?;
        if !(of_glibc.0..of_glibc.1).contains(&addr) {
            return None;
        }
        let index = heap.parts.partition_point(|part| part.end <= addr);
        if let Some(part) = heap.parts.get(index).filter(|part| part.start <= addr) {
            let (at, kind) = part.chunks.containing(addr - BEHIND)?;
            return (addr >= at + CONTENTS).then_some((ChunkRef::Part(index as u32, at), kind));
        }
        let index = heap.mmapped.partition_point(|c| c.start + c.len <= addr);
        let chunk = heap.mmapped.get(index)?;
        (addr >= chunk.at + CONTENTS).then_some((ChunkRef::Mapped(index as u32), chunk.kind))
    }

    /// Prefetches the index entry of the glibc chunk whose contents include an address.
    pub(super) fn prefetch(&self, addr: u64) {
        let Some(heap) = &self.glibc else { return };
        let index = heap.parts.partition_point(|part| part.end <= addr);
        if let Some(part) = heap.parts.get(index) {
            part.chunks.prefetch(addr.wrapping_sub(BEHIND));
        }
    }

    /// First address of a chunk's contents, if no index has to be read for it.
    pub(super) fn start(place: ChunkRef) -> Option<u64> {
        match place {
            ChunkRef::Part(_, at) => Some(at + CONTENTS),
            _ => None,
        }
    }

    /// First address and end of a chunk's contents.
    pub(super) fn contents(&self, place: ChunkRef) -> (u64, u64) {
        match (place, &self.glibc, &self.jemalloc) {
            (ChunkRef::Part(index, at), Some(heap), _) => {
                let part = &heap.parts[index as usize];
                let end = at + part.chunks.size(at) + BEHIND;
                (at + CONTENTS, end.min(part.end))
            }
            (ChunkRef::Mapped(index), Some(heap), _) => {
                let chunk = &heap.mmapped[index as usize];
                (chunk.at + CONTENTS, chunk.start + chunk.len)
            }
            (ChunkRef::Region(region), _, Some(heap)) => heap.regions.place(region),
            (ChunkRef::Span(region), ..) => self.spans.regions.place(region),
            _ => (0, 0),
        }
    }

    /// The kind of a chunk.
    pub(super) fn kind(&self, place: ChunkRef) -> ChunkKind {
        let kind = match (place, &self.glibc, &self.jemalloc) {
            (ChunkRef::Part(index, at), Some(heap), _) => {
                heap.parts[index as usize].chunks.kind_at(at)
            }
            (ChunkRef::Mapped(index), Some(heap), _) => Some(heap.mmapped[index as usize].kind),
            (ChunkRef::Region(region), _, Some(heap)) => Some(heap.regions.kind(region)),
            (ChunkRef::Span(region), ..) => Some(self.spans.regions.kind(region)),
            _ => None,
        };
        kind.unwrap_or(ChunkKind::Own)
    }

    /// Sets the kind of a chunk.
    pub(super) fn set(&mut self, place: ChunkRef, kind: ChunkKind) {
        match (place, &mut self.glibc, &mut self.jemalloc) {
            (ChunkRef::Part(index, at), Some(heap), _) => {
                heap.parts[index as usize].chunks.set(at, kind);
            }
            (ChunkRef::Mapped(index), Some(heap), _) => heap.mmapped[index as usize].kind = kind,
            (ChunkRef::Region(region), _, Some(heap)) => heap.regions.set(region, kind),
            (ChunkRef::Span(region), ..) => self.spans.regions.set(region, kind),
            _ => {}
        }
    }

    /// The first chunk of all heaps, in iteration order: glibc's parts, glibc's mapped chunks, jemalloc's regions, those of
    /// other allocators.
    pub(super) fn first(&self) -> Option<ChunkRef> {
        self.first_from(0)
    }

    /// The first chunk in glibc's parts from index `part` on, or the first chunk after all parts.
    fn first_from(&self, part: usize) -> Option<ChunkRef> {
        let parts = self.glibc.iter().flat_map(|heap| &heap.parts);
        let mut firsts = parts.enumerate().skip(part).filter_map(|(index, part)| {
            let at = part.chunks.start();
            part.chunks.kind_at(at)?;
            Some(ChunkRef::Part(index as u32, at))
        });
        firsts.next().or_else(|| self.mapped(0))
    }

    /// glibc's mapped chunk with this index, or the first region if there is none.
    fn mapped(&self, index: u32) -> Option<ChunkRef> {
        let count = self.glibc.as_ref().map_or(0, |heap| heap.mmapped.len());
        if (index as usize) < count {
            return Some(ChunkRef::Mapped(index));
        }
        let jemalloc = self.jemalloc.as_ref().and_then(|heap| heap.regions.first());
        jemalloc.map(ChunkRef::Region).or_else(|| self.first_span())
    }

    /// The first region of another allocator.
    fn first_span(&self) -> Option<ChunkRef> {
        self.spans.regions.first().map(ChunkRef::Span)
    }

    /// The next chunk in iteration order.
    pub(super) fn next(&self, place: ChunkRef) -> Option<ChunkRef> {
        match place {
            ChunkRef::Part(index, at) => {
                let part = &self.glibc.as_ref()?.parts[index as usize];
                match part.chunks.next(at) {
                    Some(at) => Some(ChunkRef::Part(index, at)),
                    None => self.first_from(index as usize + 1),
                }
            }
            ChunkRef::Mapped(index) => self.mapped(index + 1),
            ChunkRef::Region(region) => {
                let next = self.jemalloc.as_ref()?.regions.next(region);
                next.map(ChunkRef::Region).or_else(|| self.first_span())
            }
            ChunkRef::Span(region) => self.spans.regions.next(region).map(ChunkRef::Span),
        }
    }

    /// The contents of all chunks in use, as address ranges.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = std::iter::successors(self.first(), |place| self.next(*place));
        let live = all.filter(|place| self.kind(*place).is_live());
        live.map(|place| self.contents(place))
    }
}
