//! The figures of a snapshot that fit on one line.

use schemars::JsonSchema;
use serde::Serialize;

use super::jemalloc::JemallocHeap;
use super::report::{Allocator, Heap, HeapRegion};
use super::spans::SpanHeap;

/// Summary of a snapshot. Heap figures are resident bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapFigures")]
pub struct SnapshotFigures {
    /// Contents of chunks in use.
    pub live: u64,
    /// Free bytes.
    pub free: u64,
    /// The allocator's own structures.
    pub overhead: u64,
    /// Free bytes that trimming would return to the kernel now.
    pub trimmable: u64,
    /// Contents of unreachable chunks, resident or not; `None` if no search was made.
    pub unreachable: Option<u64>,
    /// All resident anonymous memory of the process.
    pub anonymous: u64,
    /// Anonymous memory that is swapped out.
    pub swapped: u64,
}

impl From<&Heap> for SnapshotFigures {
    fn from(heap: &Heap) -> SnapshotFigures {
        let sum = |wanted: fn(HeapRegion) -> bool| {
            let rows = heap.rows.iter().filter(|row| wanted(row.what));
            rows.map(|row| row.resident).sum()
        };
        SnapshotFigures {
            live: sum(HeapRegion::is_live),
            free: sum(|what| !what.is_live() && !what.is_overhead()),
            overhead: sum(HeapRegion::is_overhead),
            trimmable: heap.trimmable,
            unreachable: heap.unreachable.as_ref().map(|lost| lost.bytes),
            anonymous: heap.anonymous,
            swapped: heap.swapped,
        }
    }
}

impl Heap {
    /// Name of the allocator in the HTTP API. With several allocators, the one with more bytes in use.
    pub fn allocator_name(&self) -> &'static str {
        let jemalloc = self.live_of(&[HeapRegion::JemallocLive, HeapRegion::JemallocLarge]);
        let glibc = self.live_of(&[HeapRegion::Live, HeapRegion::LiveMapped]);
        let spans = self.live_of(&[HeapRegion::SpanLive, HeapRegion::SpanLarge]);
        let other = self.other_heaps.first().map(SpanHeap::name);
        if let Some(name) = other.filter(|_| spans > jemalloc.max(glibc)) {
            return name;
        }
        match (&self.allocator, &self.jemalloc) {
            (_, Some(JemallocHeap::Read { .. })) if jemalloc > glibc => "jemalloc",
            (Allocator::Glibc { .. }, _) => "glibc",
            (Allocator::Refused { .. }, _) | (_, Some(JemallocHeap::Refused { .. })) => "refused",
            (Allocator::Unknown, None) if self.refused().is_some() => "refused",
            (_, Some(_)) => "jemalloc",
            _ => other.unwrap_or("unknown"),
        }
    }

    fn live_of(&self, whats: &[HeapRegion]) -> u64 {
        let rows = self.rows.iter().filter(|row| whats.contains(&row.what));
        rows.map(|row| row.bytes).sum()
    }
}
