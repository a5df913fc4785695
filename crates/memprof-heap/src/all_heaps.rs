//! The heaps of all allocators that were read, as one: what finds and counts chunks does not need to know whose they
//! are.

use super::chunks::{BEHIND, CONTENTS, Kind};
use super::glibc;
use super::jemalloc::{self, Region};
use super::memory::Run;

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In the part of glibc's heap with this index, at this address.
    Part(u32, u64),
    /// glibc's chunk with a mapping of its own with this index.
    Mapped(u32),
    /// A region of jemalloc's.
    Region(Region),
}

/// The heaps.
#[derive(Debug, Default)]
pub(crate) struct AllHeaps {
    /// glibc's.
    pub glibc: Option<glibc::Heap>,
    /// jemalloc's.
    pub jemalloc: Option<jemalloc::Heap>,
    /// First address of each, and first one behind it.
    bounds: [(u64, u64); 2],
}

impl AllHeaps {
    /// Those that were read.
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
            bounds: [of_glibc, of_jemalloc].map(Option::unwrap_or_default),
            glibc,
            jemalloc,
        }
    }

    /// Whether none was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.glibc.is_none() && self.jemalloc.is_none()
    }

    /// First address of all, and first one behind all.
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
        let mut ranges: Vec<Run> = glibc.chain(jemalloc).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// The chunk in whose contents an address lies.
    pub(super) fn place(&self, addr: u64) -> Option<(Place, Kind)> {
        let [of_glibc, of_jemalloc] = self.bounds;
        if let Some(heap) = &self.jemalloc
            && (of_jemalloc.0..of_jemalloc.1).contains(&addr)
            && let Some(region) = heap.regions.containing(addr)
        {
            return Some((Place::Region(region), heap.regions.kind(region)));
        }
        let heap = self.glibc.as_ref()?;
        if !(of_glibc.0..of_glibc.1).contains(&addr) {
            return None;
        }
        let index = heap.parts.partition_point(|part| part.end <= addr);
        if let Some(part) = heap.parts.get(index).filter(|part| part.start <= addr) {
            let (at, kind) = part.chunks.containing(addr - BEHIND)?;
            return (addr >= at + CONTENTS).then_some((Place::Part(index as u32, at), kind));
        }
        let index = heap.mmapped.partition_point(|c| c.start + c.len <= addr);
        let chunk = heap.mmapped.get(index)?;
        (addr >= chunk.at + CONTENTS).then_some((Place::Mapped(index as u32), chunk.kind))
    }

    /// Prepares for a look at the chunk of glibc's in whose contents an address lies.
    pub(super) fn prefetch(&self, addr: u64) {
        let Some(heap) = &self.glibc else { return };
        let index = heap.parts.partition_point(|part| part.end <= addr);
        if let Some(part) = heap.parts.get(index) {
            part.chunks.prefetch(addr.wrapping_sub(BEHIND));
        }
    }

    /// First address of a chunk's contents, if it is known without reading anything.
    pub(super) fn start(place: Place) -> Option<u64> {
        match place {
            Place::Part(_, at) => Some(at + CONTENTS),
            _ => None,
        }
    }

    /// First address of a chunk's contents, and the first one behind them.
    pub(super) fn contents(&self, place: Place) -> (u64, u64) {
        match (place, &self.glibc, &self.jemalloc) {
            (Place::Part(index, at), Some(heap), _) => {
                let part = &heap.parts[index as usize];
                let end = at + part.chunks.size(at) + BEHIND;
                (at + CONTENTS, end.min(part.end))
            }
            (Place::Mapped(index), Some(heap), _) => {
                let chunk = &heap.mmapped[index as usize];
                (chunk.at + CONTENTS, chunk.start + chunk.len)
            }
            (Place::Region(region), _, Some(heap)) => heap.regions.place(region),
            _ => (0, 0),
        }
    }

    /// What a chunk is.
    pub(super) fn kind(&self, place: Place) -> Kind {
        let kind = match (place, &self.glibc, &self.jemalloc) {
            (Place::Part(index, at), Some(heap), _) => {
                heap.parts[index as usize].chunks.kind_at(at)
            }
            (Place::Mapped(index), Some(heap), _) => Some(heap.mmapped[index as usize].kind),
            (Place::Region(region), _, Some(heap)) => Some(heap.regions.kind(region)),
            _ => None,
        };
        kind.unwrap_or(Kind::Own)
    }

    /// Changes what a chunk is.
    pub(super) fn set(&mut self, place: Place, kind: Kind) {
        match (place, &mut self.glibc, &mut self.jemalloc) {
            (Place::Part(index, at), Some(heap), _) => {
                heap.parts[index as usize].chunks.set(at, kind);
            }
            (Place::Mapped(index), Some(heap), _) => heap.mmapped[index as usize].kind = kind,
            (Place::Region(region), _, Some(heap)) => heap.regions.set(region, kind),
            _ => {}
        }
    }

    /// The first chunk of all.
    pub(super) fn first(&self) -> Option<Place> {
        self.first_from(0)
    }

    /// The first chunk of glibc's parts from this one on, or of what follows them.
    fn first_from(&self, part: usize) -> Option<Place> {
        let parts = self.glibc.iter().flat_map(|heap| &heap.parts);
        let mut firsts = parts.enumerate().skip(part).filter_map(|(index, part)| {
            let at = part.chunks.start();
            part.chunks.kind_at(at)?;
            Some(Place::Part(index as u32, at))
        });
        firsts.next().or_else(|| self.mapped(0))
    }

    /// glibc's chunk with a mapping of its own with this index, or the first one of what follows them.
    fn mapped(&self, index: u32) -> Option<Place> {
        let count = self.glibc.as_ref().map_or(0, |heap| heap.mmapped.len());
        if (index as usize) < count {
            return Some(Place::Mapped(index));
        }
        let first = self.jemalloc.as_ref()?.regions.first()?;
        Some(Place::Region(first))
    }

    /// The chunk that follows this one.
    pub(super) fn next(&self, place: Place) -> Option<Place> {
        match place {
            Place::Part(index, at) => {
                let part = &self.glibc.as_ref()?.parts[index as usize];
                match part.chunks.next(at) {
                    Some(at) => Some(Place::Part(index, at)),
                    None => self.first_from(index as usize + 1),
                }
            }
            Place::Mapped(index) => self.mapped(index + 1),
            Place::Region(region) => {
                let next = self.jemalloc.as_ref()?.regions.next(region)?;
                Some(Place::Region(next))
            }
        }
    }

    /// The contents of all chunks in use.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = std::iter::successors(self.first(), |place| self.next(*place));
        let live = all.filter(|place| self.kind(*place).is_live());
        live.map(|place| self.contents(place))
    }
}
