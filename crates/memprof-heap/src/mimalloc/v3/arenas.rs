//! Reads the arenas: which of their slices are free, and which have mimalloc's own structures.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::SLICE;
use super::pages::Page;
use crate::jemalloc::is_mapped;
use crate::memory::Memory;
use crate::spans::{Refusal, SpanMap, refuse};
use memprof_sys::residency::Vma;

/// Offset of the address of an arena's subprocess, which has a list of arenas.
const SUBPROCESS: u64 = 24;
/// Offsets of the number of arenas in a subprocess: in releases from 3.2 on, and in earlier ones. The list follows.
const COUNTS: [u64; 2] = [24, 0];
/// Maximum number of slices of all arenas: 4 TiB.
const MAX_SLICES: u64 = 1 << 26;
/// Maximum number of arenas of a subprocess.
const MAX_ARENAS: u64 = 160;

/// Offsets of an arena's number of slices and of its first bitmap: 3.3 and later, 3.2, 3.0.3 to 3.1, 3.0.1.
const LAYOUTS: [(u64, u64); 4] = [(40, 104), (40, 88), (32, 80), (32, 64)];
/// Bits of a chunk of a bitmap, and its size in bytes.
const CHUNK_BITS: u64 = 512;
const CHUNK: u64 = CHUNK_BITS / 8;
/// Chunks in front of those with the bits, but for the bitmap of free slices, which has more.
const HEADER: u64 = 2;
/// Maximum number of chunks.
const MAX_CHUNKS: u64 = CHUNK_BITS;

/// An arena.
#[derive(Clone, Copy, Debug)]
struct Arena {
    start: u64,
    /// Number of slices, and of those that begin the arena and describe it.
    slices: u64,
    info: u64,
    /// Addresses of the bits of the free slices, and of those with the first slices of the main heap's pages.
    free: u64,
    pages: u64,
}

impl Arena {
    /// The arena at an address.
    fn read(memory: &Memory, vmas: &[Vma], start: u64) -> Option<Arena> {
        let read = |(slices, bitmaps)| Arena::with_layout(memory, start, slices, bitmaps);
        let arena = LAYOUTS.into_iter().find_map(read)?;
        let end = start.checked_add(arena.slices * SLICE)?;
        is_mapped(vmas, start, end).then_some(arena)
    }

    fn with_layout(memory: &Memory, start: u64, slices: u64, bitmaps: u64) -> Option<Arena> {
        let word = |offset| memory.word(start.checked_add(offset)?);
        let (slices, info) = (word(slices)?, word(slices + 8)?);
        let chunks = slices / CHUNK_BITS;
        if !(1..=MAX_CHUNKS).contains(&chunks)
            || !slices.is_multiple_of(CHUNK_BITS)
            || info >= slices
        {
            return None;
        }
        // The bitmaps are those of slices that are free, committed, dirty, to be purged, and of the first slices of pages.
        // Each begins with its number of chunks.
        let (free, committed) = (word(bitmaps)?, word(bitmaps + 8)?);
        let (dirty, purge) = (word(bitmaps + 16)?, word(bitmaps + 24)?);
        let stride = CHUNK * (HEADER + chunks);
        let pages = purge.checked_add(stride)?;
        let is_inside =
            free > start && pages.checked_add(stride)? <= start.checked_add(info * SLICE)?;
        let follow = free.checked_add(stride)? < committed
            && committed.checked_add(stride)? == dirty
            && dirty.checked_add(stride)? == purge;
        let mut all = [free, committed, dirty, purge, pages].into_iter();
        let fits = is_inside && follow && all.all(|at| memory.word(at) == Some(chunks));
        fits.then(|| Arena {
            start,
            slices,
            info,
            free: committed - CHUNK * chunks,
            pages: pages + CHUNK * HEADER,
        })
    }

    /// Whether a slice's bit is set.
    fn bit(memory: &Memory, bits: u64, slice: u64) -> bool {
        let word = memory.word(bits + slice / 64 * 8);
        word.is_some_and(|word| word >> (slice % 64) & 1 == 1)
    }

    /// Adds the slices that have no pages. `pages` are the arena's, in address order.
    fn add_to(&self, memory: &Memory, pages: &[&Page], map: &mut SpanMap) -> Result<(), Refusal> {
        let slice = |address: u64| (address - self.start) / SLICE;
        let is_free = |slice: &u64| Arena::bit(memory, self.free, *slice);
        map.add_own(self.start, self.start + self.info * SLICE);
        let mut at = self.info;
        for page in pages {
            let (first, end) = (slice(page.blocks.start), slice(page.blocks.end));
            let mut slices = first..end;
            if first < at || end > self.slices || slices.any(|slice| is_free(&slice)) {
                return refuse!(
                    "the page at {:#x} is not alone on its slices",
                    page.blocks.start
                );
            }
            self.add_gap(memory, at..first, map)?;
            at = end;
        }
        self.add_gap(memory, at..self.slices, map)
    }

    /// Adds slices without pages: free ones, and those with mimalloc's own structures.
    fn add_gap(&self, memory: &Memory, gap: Range<u64>, map: &mut SpanMap) -> Result<(), Refusal> {
        let is_free = |slice| Arena::bit(memory, self.free, slice);
        let Range { start: mut at, end } = gap;
        if let Some(slice) = gap
            .clone()
            .find(|slice| Arena::bit(memory, self.pages, *slice))
        {
            return refuse!(
                "slice {slice} of the arena at {:#x} has a page that the map of pages lacks",
                self.start
            );
        }
        while at < end {
            let free = is_free(at);
            let next = (at..end)
                .find(|slice| is_free(*slice) != free)
                .unwrap_or(end);
            let (start, last) = (self.start + at * SLICE, self.start + next * SLICE);
            match free {
                true => map.add_free(start, last),
                false => map.add_own(start, last),
            }
            at = next;
        }
        Ok(())
    }
}

/// Adds what the arenas have beside the pages, which are in address order.
pub(super) fn read(
    memory: &Memory,
    vmas: &[Vma],
    pages: &[Page],
    map: &mut SpanMap,
) -> Result<(), Refusal> {
    let mut arenas: BTreeMap<u64, Vec<&Page>> = BTreeMap::new();
    for page in pages {
        if let Some(arena) = page.arena {
            arenas.entry(arena).or_default().push(page);
        }
    }
    let subprocess = |arena: &u64| memory.word(arena.checked_add(SUBPROCESS)?);
    let subprocesses: BTreeSet<u64> = arenas.keys().filter_map(subprocess).collect();
    for subprocess in subprocesses {
        for arena in listed(memory, subprocess, &arenas)? {
            arenas.entry(arena).or_default();
        }
    }
    let (mut end, mut left) = (0, MAX_SLICES);
    for (start, pages) in arenas {
        let arena =
            Arena::read(memory, vmas, start).filter(|arena| start >= end && arena.slices <= left);
        let Some(arena) = arena else {
            return refuse!("the arena at {start:#x} is damaged, or its layout is not known");
        };
        end = start + arena.slices * SLICE;
        left -= arena.slices;
        arena.add_to(memory, &pages, map)?;
    }
    Ok(())
}

/// The arenas of a subprocess. Some of them are `known`.
fn listed<T>(
    memory: &Memory,
    subprocess: u64,
    known: &BTreeMap<u64, T>,
) -> Result<Vec<u64>, Refusal> {
    let list = |offset| {
        let at = subprocess.checked_add(offset)?;
        let count = memory.word(at).filter(|count| *count <= MAX_ARENAS)?;
        let arenas = (1..=count).map(|index| memory.word(at.checked_add(8 * index)?));
        let arenas: Vec<u64> = arenas.collect::<Option<_>>()?;
        let fits = arenas.iter().any(|arena| known.contains_key(arena));
        // (An arena that was released leaves a gap.)
        fits.then(|| arenas.into_iter().filter(|arena| *arena != 0).collect())
    };
    match COUNTS.into_iter().find_map(list) {
        Some(arenas) => Ok(arenas),
        None => {
            refuse!("the list of arenas at {subprocess:#x} is damaged, or its layout is not known")
        }
    }
}
