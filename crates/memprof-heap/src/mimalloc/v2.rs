//! Release 2 of mimalloc.
//!
//! It takes memory in segments, which are aligned to 32 MiB and begin with a description of their slices of
//! 64 KiB (`segments`). Consecutive slices are a page with blocks of one size (`pages`), or free.
//!
//! Every structure is verified: the slices of a segment fill it, the number of pages in use equals the segment's
//! counter, all segments have the same cookie, and in each page the blocks in use and the lists of free blocks add up
//! to the blocks that were handed out.
//!
//! Layouts: 2.0 to 2.4, according to `types.h`, 64-bit.

mod layout;
mod pages;
mod segments;

use crate::memory::Memory;
use crate::spans::{Refusal, SpanMap, refuse};
use memprof_sys::residency::Vma;

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent.
pub(super) fn read(memory: &Memory, vmas: &[Vma]) -> Result<Option<SpanMap>, Refusal> {
    let segments = segments::find(memory, vmas);
    if segments.is_empty() {
        return Ok(None);
    }
    // The first layout that fits has the likeliest reason.
    let mut first = None;
    for layout in layout::ALL {
        if !segments.iter().all(|segment| segment.fits(memory, &layout)) {
            continue;
        }
        match pages::read(memory, &segments, &layout) {
            Ok(map) => return Ok(Some(map)),
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    match first {
        Some(refusal) => Err(refusal),
        None => refuse!("its segments were found, but their layout is not known"),
    }
}
