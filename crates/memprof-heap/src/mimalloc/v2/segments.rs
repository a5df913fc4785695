//! Finds mimalloc's segments by the shape of their descriptions.
//!
//! The end of a description is the same in all releases: number of slices, number of slices of the description itself,
//! kind, number of entries in the table of slices, thread, and the table, whose first entry is the description.

use super::layout::{Layout, SEGMENT, SLICE, SLICE_COUNT, SLICE_OFFSET, SLICES};
use crate::jemalloc::{is_anonymous, is_mapped};
use crate::memory::Memory;
use memprof_sys::residency::Vma;

/// Range of the offsets at which the number of slices may be, in words.
const AT: std::ops::Range<u64> = 8..96;
/// Maximum number of slices that a description takes.
const MAX_INFO: u64 = 16;
/// Maximum number of slices of a segment: 16 TiB.
const MAX_SLICES: u64 = 1 << 28;

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// First address.
    pub start: u64,
    /// Number of slices.
    pub slices: u64,
    /// Number of slices of its description.
    pub info: u64,
    /// Number of entries of the table of slices.
    pub entries: u64,
    /// Thread that owns it; 0 if none does.
    pub thread: u64,
    /// Address of the table.
    pub table: u64,
    /// Numbers of pages in use and cookies, according to releases before and after 2.1.9.
    pub used: [(u64, u64); 2],
}

impl Segment {
    /// End of the segment.
    pub(super) fn end(&self) -> u64 {
        self.start + self.slices * SLICE
    }

    /// Whether the slices fill the segment if descriptions have this layout. The first part of a check that `pages`
    /// completes.
    pub(super) fn fits(&self, memory: &Memory, layout: &Layout) -> bool {
        let mut index = 0;
        while index < self.entries {
            let at = self.table + index * layout.size;
            let (Some(count), Some(offset)) = (
                memory.half(at + SLICE_COUNT),
                memory.half(at + SLICE_OFFSET),
            ) else {
                return false;
            };
            let count = u64::from(count);
            if count == 0 || offset != 0 || count > self.slices - index {
                return false;
            }
            index += count;
        }
        // With `MI_SECURE`, the last slice is protected.
        index == self.slices || index + 1 == self.slices
    }
}

/// Finds all segments, in address order.
pub(super) fn find(memory: &Memory, vmas: &[Vma]) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    let anonymous = vmas.iter().filter(|vma| is_anonymous(vma));
    // Only what was copied is searched: a mapping may be much larger, in a damaged core as large as the address space.
    let copied = anonymous.flat_map(|vma| memory.runs_in(vma.start.0, vma.end.0));
    // The contents of a large segment may look like anything.
    let mut end = 0;
    for run in copied {
        let mut next = run.start.max(end).checked_next_multiple_of(SEGMENT);
        while let Some(at) = next.filter(|at| *at < run.end) {
            let segment = segment(memory, at).filter(|s| is_mapped(vmas, s.start, s.end()));
            end = segment.map_or(at + 1, |segment| segment.end());
            found.extend(segment);
            next = end.checked_next_multiple_of(SEGMENT);
        }
    }
    found
}

/// The segment at an address.
fn segment(memory: &Memory, start: u64) -> Option<Segment> {
    let word = |index: u64| memory.word(start + 8 * index);
    AT.filter_map(|at| {
        let (slices, info, kind, entries) =
            (word(at)?, word(at + 1)?, word(at + 2)?, word(at + 3)?);
        let fits = (entries == slices.min(SLICES) || slices.checked_sub(1) == Some(entries))
            && (1..=MAX_INFO).contains(&info)
            && info < slices
            && slices < MAX_SLICES
            && match kind as u32 {
                0 => slices == SLICES,
                1 => true,
                _ => false,
            };
        start.checked_add(slices.checked_mul(SLICE)?)?;
        let table = start + 8 * (at + 5);
        let first = memory.half(table + SLICE_COUNT)? == info as u32
            && memory.half(table + SLICE_OFFSET)? == 0;
        (fits && first).then_some(Segment {
            start,
            slices,
            info,
            entries,
            thread: word(at + 4)?,
            table,
            used: [
                (word(at - 2)?, word(at - 1)? ^ start),
                (word(at - 4)?, word(at - 3)? ^ start),
            ],
        })
    })
    .next()
}
