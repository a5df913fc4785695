//! mimalloc's heap, read from a copy of a process's memory without symbols.
//!
//! Release 2 takes memory in segments, which are aligned to 32 MiB and begin with a description of their slices of
//! 64 KiB (`segments`). Consecutive slices are a page with blocks of one size (`pages`), or free.
//!
//! Every structure is verified: the slices of a segment fill it, the number of pages in use equals the segment's
//! counter, all segments have the same cookie, and in each page the blocks in use and the lists of free blocks add up
//! to the blocks that were handed out. Blocks that another thread has freed count as in use until their owner collects
//! them; here they are free.
//!
//! Layouts: 2.0 to 2.3, according to `types.h`, 64-bit. Builds with encoded
//! free lists (`MI_SECURE`, `MI_DEBUG`) are not read.

mod layout;
mod pages;
mod segments;

use super::snapshot::Snapshot;
use super::spans::{Refusal, SpanMap, refuse};

/// Name of the allocator.
pub(crate) const NAME: &str = "mimalloc";

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while mimalloc changed them, they are damaged, or the
/// release has another layout.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<SpanMap>, Refusal> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
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
