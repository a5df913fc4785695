//! What a snapshot says of jemalloc, beside the rows of its memory.

use std::io::{self, Write};

use serde::Serialize;

use super::super::seen::Seen;
use super::super::text::kib;
use super::{Heap, Refusal};
use memprof_sys::text::printable;

/// Figures with the names and the meaning of jemalloc's own statistics (`stats.*`), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JemallocFigures {
    /// Regions in use, with those in threads' caches.
    pub allocated: u64,
    /// Those of them in threads' caches.
    pub cached: u64,
    /// Pages with regions in use.
    pub active: u64,
    /// Free pages that were written to.
    pub dirty: u64,
    /// Free pages that the system may take.
    pub muzzy: u64,
    /// Free pages that were returned to the system; their addresses are kept.
    pub retained: u64,
    /// Pages of jemalloc's own blocks that it has used.
    pub metadata: u64,
    /// What jemalloc takes for resident: `active`, `dirty` and `metadata`.
    pub resident: u64,
}

/// jemalloc in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JemallocHeap {
    /// Its heap was read.
    Read {
        /// The file that contains it.
        module: String,
        /// Its version, if the file says it.
        version: Option<String>,
        /// Number of extents.
        extents: u64,
        /// Number of threads' caches.
        thread_caches: u64,
        /// What its own statistics would be.
        figures: JemallocFigures,
    },
    /// Its heap was not read.
    Refused {
        /// The reason.
        reason: String,
    },
}

impl JemallocHeap {
    /// What was read. Takes the version from `seen`, which then no longer lists jemalloc as not read.
    pub(crate) fn of(read: &Result<Option<Heap>, Refusal>, seen: &mut Vec<Seen>) -> Option<Self> {
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

    /// Writes it as text.
    ///
    /// # Errors
    /// Those of `out`.
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
            "    Its own figures (stats.*), in KiB: allocated {:.1} (threads' caches included), active {:.1}, resident {:.1}, \
             retained {:.1}",
            kib(figures.allocated),
            kib(figures.active),
            kib(figures.resident),
            kib(figures.retained)
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
