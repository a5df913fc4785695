//! Summary of the heap of a further allocator in a snapshot, beside the rows of its memory.

use std::collections::BTreeMap;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::super::chunks::ChunkKind;
use super::super::other_allocators::Seen;
use super::super::regions::ExtentState;
use super::super::text_table::Kib;
use super::SpanMap;
use memprof_sys::text::printable;

/// Maximum size of blocks that are listed by size, in bytes.
const MAX_LISTED: u64 = 32 << 10;

/// Sums of a heap, in bytes if the field does not say otherwise. Blocks count with their whole size, resident or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SpanFigures {
    /// Number of blocks in use.
    pub live_blocks: u64,
    /// Blocks in use.
    pub live: u64,
    /// Blocks in threads' caches, or freed by threads that do not own them. Some allocators count them as in use.
    pub cached: u64,
    /// Other free blocks.
    pub free: u64,
    /// Free pages.
    pub pages: u64,
    /// The allocator's own structures, headers and alignment.
    pub overhead: u64,
}

/// The blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SpanSize {
    /// Size of the blocks, in bytes; 0 for all blocks of more than 32 KiB.
    pub bytes: u64,
    /// Number of spans.
    pub spans: u64,
    /// Number of blocks in use.
    pub live: u64,
    /// Number of free blocks, also in caches.
    pub free: u64,
}

/// The heap of a further allocator.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SpanHeap {
    /// It was read.
    Read {
        /// Name of the allocator.
        name: &'static str,
        /// Name of the file that contains it; empty if not known.
        module: String,
        /// Its version, or the releases that have its layout.
        version: Option<String>,
        /// Number of spans: runs of pages with blocks of one size.
        spans: u64,
        /// Whether it is the heap of a managed runtime, whose collector frees objects.
        managed: bool,
        /// A command of the runtime's own tools that shows more.
        tool: Option<String>,
        /// Number of threads' heaps or caches found.
        caches: u64,
        /// What the figures leave out or count differently.
        note: Option<&'static str>,
        /// The sums.
        figures: SpanFigures,
        /// The blocks by size, in ascending order.
        sizes: Vec<SpanSize>,
    },
    /// It was found and not read.
    Refused {
        /// Name of the allocator.
        name: &'static str,
        /// The reason.
        reason: String,
    },
}

impl SpanHeap {
    /// Summarizes a heap.
    pub(super) fn read(name: &'static str, managed: bool, map: &SpanMap) -> SpanHeap {
        let mut figures = SpanFigures::default();
        let mut sizes: BTreeMap<u64, SpanSize> = BTreeMap::new();
        for extent in &map.extents {
            let mut rest = extent.end - extent.start;
            let kinds = &map.kinds[extent.first..][..extent.count as usize];
            if extent.count > 0 {
                let bytes = match extent.size {
                    size @ ..=MAX_LISTED => size,
                    _ => 0,
                };
                let live = kinds.iter().filter(|kind| kind.is_live()).count() as u64;
                // Larger blocks come last.
                let size = sizes.entry(bytes.wrapping_sub(1)).or_default();
                size.bytes = bytes;
                size.spans += 1;
                size.live += live;
                size.free += kinds.len() as u64 - live;
            }
            for kind in kinds {
                rest -= extent.size;
                *match kind {
                    ChunkKind::Tcache => &mut figures.cached,
                    ChunkKind::Small => &mut figures.free,
                    ChunkKind::Own => &mut figures.overhead,
                    _ => {
                        figures.live_blocks += 1;
                        &mut figures.live
                    }
                } += extent.size;
            }
            *match extent.state {
                ExtentState::Active | ExtentState::Own => &mut figures.overhead,
                _ => &mut figures.pages,
            } += rest;
        }
        SpanHeap::Read {
            name,
            module: map.module.clone(),
            version: map.version.clone(),
            spans: map.spans,
            caches: map.caches,
            note: map.note,
            managed,
            tool: None,
            figures,
            sizes: sizes.into_values().collect(),
        }
    }

    /// Adds what the evidence for the allocator says.
    pub(super) fn with(mut self, seen: Option<Seen>) -> SpanHeap {
        if let (
            SpanHeap::Read {
                module,
                version,
                tool,
                ..
            },
            Some(seen),
        ) = (&mut self, seen)
        {
            *tool = seen.tool;
            if module.is_empty() {
                *module = seen.module;
            }
            *version = version.take().or(seen.version);
        }
        self
    }

    /// Name of the allocator.
    pub fn name(&self) -> &'static str {
        match self {
            SpanHeap::Read { name, .. } | SpanHeap::Refused { name, .. } => name,
        }
    }

    /// Why it was not read.
    pub fn refused(&self) -> Option<&str> {
        match self {
            SpanHeap::Read { .. } => None,
            SpanHeap::Refused { reason, .. } => Some(reason),
        }
    }

    /// The blocks by size.
    pub fn sizes(&self) -> &[SpanSize] {
        match self {
            SpanHeap::Read { sizes, .. } => sizes,
            SpanHeap::Refused { .. } => &[],
        }
    }

    /// The sums, if it was read.
    pub fn figures(&self) -> Option<SpanFigures> {
        match self {
            SpanHeap::Read { figures, .. } => Some(*figures),
            SpanHeap::Refused { .. } => None,
        }
    }

    /// Writes the summary as text.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, module, version, spans, caches, note, tool, figures) = match self {
            SpanHeap::Refused { name, reason } => {
                let reason = printable(reason);
                return writeln!(out, "Allocator: {name}, which was not read: {reason}");
            }
            SpanHeap::Read {
                name,
                module,
                version,
                spans,
                caches,
                note,
                tool,
                figures,
                ..
            } => (name, module, version, spans, caches, note, tool, figures),
        };
        write!(out, "Allocator: {name}")?;
        if let Some(version) = version {
            write!(out, " {}", printable(version))?;
        }
        if !module.is_empty() {
            write!(out, " ({})", printable(module))?;
        }
        writeln!(out, "; spans: {spans}, threads' heaps or caches: {caches}")?;
        writeln!(
            out,
            "    In KiB: live {} in {} blocks, free in threads' caches or freed by other threads {}, other free blocks {}, \
             free pages {}",
            Kib(figures.live),
            figures.live_blocks,
            Kib(figures.cached),
            Kib(figures.free),
            Kib(figures.pages)
        )?;
        if let Some(note) = note {
            writeln!(out, "    {note}")?;
        }
        match tool {
            Some(tool) => writeln!(out, "    Its own tool shows more: {tool}"),
            None => Ok(()),
        }
    }
}
