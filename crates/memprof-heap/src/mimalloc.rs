//! mimalloc's heap, read from a copy of a process's memory without symbols.
//!
//! Release 2 describes its pages in segments (`v2`), release 3 in arenas that a map of all pages leads to (`v3`). In
//! both, a page has blocks of one size and lists of free blocks (`blocks`). Blocks that another thread has freed count as
//! in use until their owner collects them; here they are free.
//!
//! Builds with encoded lists of free blocks (`MI_SECURE` of 3 and more, `MI_DEBUG`) have the keys in each page.

mod blocks;
mod v2;
mod v3;

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
    match (v2::read(memory, vmas)?, v3::read(memory, vmas)?) {
        (Some(_), Some(_)) => refuse!("the process has releases 2 and 3 of it; memprof reads one"),
        (second, third) => Ok(second.or(third)),
    }
}
