//! Summary of jemalloc's heap in a snapshot, beside the rows of its memory.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::super::other_allocators::Seen;
use super::super::text_table::Kib;
use super::{Heap, Refusal};
use memprof_sys::text::printable;

/// Figures with the names and meaning of jemalloc's own statistics (`stats.*`), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct JemallocFigures {
    /// Regions in use, including regions in thread caches.
    pub allocated: u64,
    /// Regions in thread caches.
    pub cached: u64,
    /// Pages with regions in use.
    pub active: u64,
    /// Free pages that were written to.
    pub dirty: u64,
    /// Free pages that the kernel may reclaim.
    pub muzzy: u64,
    /// Free pages that were returned to the kernel; jemalloc retains the address range.
    pub retained: u64,
    /// Used pages of jemalloc's own blocks.
    pub metadata: u64,
    /// Pages that jemalloc counts as resident: `active`, `dirty` and `metadata`, before 5.3 also `muzzy`.
    pub resident: u64,
}

/// jemalloc in a process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JemallocHeap {
    /// Its heap was read.
    Read {
        /// Name of the file that contains jemalloc.
        module: String,
        /// Version of jemalloc, if the file contains it.
        version: Option<String>,
        /// Number of extents.
        extents: u64,
        /// Number of thread caches.
        thread_caches: u64,
        /// The figures that jemalloc's own statistics would have.
        figures: JemallocFigures,
    },
    /// Its heap was not read.
    Refused {
        /// The reason.
        reason: String,
    },
}

impl JemallocHeap {
    /// Summarizes the result of a read. Takes the version from `seen` and removes jemalloc from it: `seen` lists
    /// allocators that were not read.
    pub(crate) fn from_read(
        read: &Result<Option<Heap>, Refusal>,
        seen: &mut Vec<Seen>,
    ) -> Option<Self> {
        match read {
            Ok(None) => None,
            Ok(Some(heap)) => {
                let index = seen.iter().position(Seen::is_jemalloc);
                let seen = index.map(|index| seen.remove(index));
                Some(JemallocHeap::Read {
                    module: heap.module.clone(),
                    version: seen.and_then(|seen| seen.version),
                    extents: heap.regions.extents.len() as u64,
                    thread_caches: heap.caches as u64,
                    figures: heap.figures(),
                })
            }
            Err(refusal) => Some(JemallocHeap::Refused {
                reason: refusal.to_string(),
            }),
        }
    }

    /// Writes the summary as text.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (module, version, extents, thread_caches, figures) = match self {
            JemallocHeap::Refused { reason } => {
                return writeln!(out, "Allocator: jemalloc, which was not read: {reason}");
            }
            JemallocHeap::Read {
                module,
                version,
                extents,
                thread_caches,
                figures,
            } => (module, version, extents, thread_caches, figures),
        };
        let version = version.as_deref().unwrap_or_default();
        let space = if version.is_empty() { "" } else { " " };
        writeln!(
            out,
            "Allocator: jemalloc{space}{} ({}); extents: {extents}, threads' caches: {thread_caches}",
            printable(version),
            printable(module)
        )?;
        writeln!(
            out,
            "    Its own figures (stats.*), in KiB: allocated {} (threads' caches included), active {}, resident {}, \
             retained {}",
            Kib(figures.allocated),
            Kib(figures.active),
            Kib(figures.resident),
            Kib(figures.retained)
        )?;
        match thread_caches {
            0 => writeln!(
                out,
                "    No thread's cache was found: what caches have counts as live."
            ),
            _ => Ok(()),
        }
    }
}
