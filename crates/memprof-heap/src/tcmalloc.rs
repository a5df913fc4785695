//! The tcmalloc of gperftools, read from a copy of a process's memory without symbols.
//!
//! It divides its memory into spans of pages of 8 KiB. A radix tree leads from the number of a page to the description
//! of its span (`spans`). A span is free, or one large block, or has blocks of one size class. Free blocks are in the
//! list of their span, in a class's transfer cache, or in a thread's cache (`caches`). The tables of sizes and the
//! central lists of all classes are in the module's data (`tables`).
//!
//! Every structure is verified: spans lie side by side, a span's free and used blocks add up, each list is as long as
//! its counter says, and no block is in two lists.
//!
//! Layout: gperftools 2.7 to 2.10, according to its headers, x86-64 with pages of 8 KiB, with or without its profiler.

mod caches;
mod spans;
mod tables;

use super::snapshot::Snapshot;
use super::spans::{Refusal, SpanMap, refuse};

/// Name of the allocator.
pub(crate) const NAME: &str = "tcmalloc";

/// Size of its pages, in bytes.
const PAGE: u64 = 8192;

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while tcmalloc changed them, they are damaged, or the
/// release has another layout.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<SpanMap>, Refusal> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
    let mut found = tables::find(memory, vmas);
    let Some(tables) = found.pop() else {
        return Ok(None);
    };
    if !found.is_empty() {
        return refuse!("the process has several copies of it; memprof reads one");
    }
    let mut heap = spans::read(memory, vmas, &tables)?;
    caches::central(memory, &tables, &mut heap)?;
    let caches = caches::threads(memory, vmas, &tables, &mut heap)?;
    let mut map = SpanMap::default();
    map.caches = caches;
    tables.module.clone_into(&mut map.module);
    heap.add_to(&mut map)?;
    Ok(Some(map))
}
