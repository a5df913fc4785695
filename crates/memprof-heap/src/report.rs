//! The report of a heap snapshot, as `memprof heap` prints it. Sizes are in bytes.

use schemars::JsonSchema;
use serde::Serialize;

use super::address_map::AddressMap;
use super::arenas::ArenaRow;
use super::chunks::ChunkKind;
use super::core_file::{CoreReport, SavedCore};
use super::glibc::Mallinfo;
use super::how_read::ReadRow;
use super::jemalloc::JemallocHeap;
use super::other_allocators::Seen;
use super::python::PythonHeap;
use super::reach::Unreachable;
use super::roots::Retained;
use super::snapshot::Taken;
use super::spans::SpanHeap;
use super::types::Types;
use super::whole::{Agreement, Missing};
use super::zero_pages::ZeroPages;
use memprof_sys::residency::Category;

/// The kind of heap bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeapRegion {
    /// Contents of chunks in use.
    Live,
    /// Contents of chunks in use that have mappings of their own.
    LiveMapped,
    /// Free, in a thread's cache.
    ThreadCache,
    /// Free, in a fast bin.
    Fast,
    /// Free, not sorted into a bin yet.
    Unsorted,
    /// Free, in a small bin.
    Small,
    /// Free, in a large bin.
    Large,
    /// Top chunk: the end of an arena, from which new chunks are split.
    Top,
    /// The allocator's own: headers, arenas, end markers, alignment.
    Overhead,
    /// jemalloc: regions in use in slabs.
    JemallocLive,
    /// jemalloc: large regions in use.
    JemallocLarge,
    /// jemalloc: free regions in thread caches.
    JemallocCache,
    /// jemalloc: free regions in slabs.
    JemallocFree,
    /// jemalloc: free pages that were written to.
    JemallocDirty,
    /// jemalloc: free pages that the kernel may reclaim.
    JemallocMuzzy,
    /// jemalloc: free pages that were returned to the kernel, and pages that were never used.
    JemallocRetained,
    /// jemalloc's own: its blocks, the stacks of thread caches, alignment.
    JemallocOverhead,
    /// Another allocator (`other_heaps`): blocks in use that share their pages.
    SpanLive,
    /// Another allocator: blocks in use with pages of their own.
    SpanLarge,
    /// Another allocator: free blocks in thread caches, or freed by threads that do not own them.
    SpanCache,
    /// Another allocator: free blocks.
    SpanFree,
    /// Another allocator: free pages, and pages that were never used.
    SpanPages,
    /// Another allocator's own: descriptors, headers, alignment.
    SpanOverhead,
    /// A managed heap: objects in use, or not freed by its collector yet.
    ManagedLive,
    /// A managed heap: free objects.
    ManagedFree,
    /// A managed heap: free pages.
    ManagedPages,
    /// A managed heap's runtime: stacks, headers, alignment.
    ManagedOverhead,
    /// Python's allocator: blocks in use.
    PythonLive,
    /// Python's allocator: free blocks of pools in use.
    PythonFree,
    /// Python's allocator: free pools.
    PythonPools,
    /// Python's allocator: headers of pools, alignment.
    PythonOverhead,
}

impl HeapRegion {
    /// All kinds, in display order.
    pub const ALL: [HeapRegion; 31] = [
        HeapRegion::Live,
        HeapRegion::LiveMapped,
        HeapRegion::ThreadCache,
        HeapRegion::Fast,
        HeapRegion::Unsorted,
        HeapRegion::Small,
        HeapRegion::Large,
        HeapRegion::Top,
        HeapRegion::Overhead,
        HeapRegion::JemallocLive,
        HeapRegion::JemallocLarge,
        HeapRegion::JemallocCache,
        HeapRegion::JemallocFree,
        HeapRegion::JemallocDirty,
        HeapRegion::JemallocMuzzy,
        HeapRegion::JemallocRetained,
        HeapRegion::JemallocOverhead,
        HeapRegion::SpanLive,
        HeapRegion::SpanLarge,
        HeapRegion::SpanCache,
        HeapRegion::SpanFree,
        HeapRegion::SpanPages,
        HeapRegion::SpanOverhead,
        HeapRegion::ManagedLive,
        HeapRegion::ManagedFree,
        HeapRegion::ManagedPages,
        HeapRegion::ManagedOverhead,
        HeapRegion::PythonLive,
        HeapRegion::PythonFree,
        HeapRegion::PythonPools,
        HeapRegion::PythonOverhead,
    ];

    pub(super) fn from_kind(kind: ChunkKind) -> HeapRegion {
        match kind {
            kind if kind.is_live() => HeapRegion::Live,
            ChunkKind::Tcache => HeapRegion::ThreadCache,
            ChunkKind::Fast => HeapRegion::Fast,
            ChunkKind::Unsorted => HeapRegion::Unsorted,
            ChunkKind::Small => HeapRegion::Small,
            ChunkKind::Large => HeapRegion::Large,
            ChunkKind::Top => HeapRegion::Top,
            _ => HeapRegion::Overhead,
        }
    }

    /// Whether the program uses these bytes.
    pub fn is_live(self) -> bool {
        use HeapRegion::*;
        matches!(
            self,
            Live | LiveMapped
                | JemallocLive
                | JemallocLarge
                | SpanLive
                | SpanLarge
                | ManagedLive
                | PythonLive
        )
    }

    /// Whether these bytes are an allocator's own.
    pub fn is_overhead(self) -> bool {
        use HeapRegion::*;
        matches!(
            self,
            Overhead | JemallocOverhead | SpanOverhead | ManagedOverhead | PythonOverhead
        )
    }
}

/// Sums of one kind of heap bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapRow")]
pub struct RegionRow {
    /// The kind of bytes.
    pub what: HeapRegion,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes, resident or not.
    pub bytes: u64,
    /// Resident bytes.
    pub resident: u64,
}

/// Anonymous memory outside the heap, of one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapOtherRow")]
pub struct OtherRow {
    /// Category of the memory.
    #[schemars(with = "String")]
    pub category: Category,
    /// Resident bytes.
    pub resident: u64,
}

/// The chunks of similar size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapSizeClass")]
pub struct SizeClass {
    /// Minimum size of these chunks with header, in bytes.
    pub from: u64,
    /// Maximum size, in bytes.
    pub to: u64,
    /// Number of chunks in use.
    pub live: u64,
    /// Bytes of the chunks in use, with headers.
    pub live_bytes: u64,
    /// Number of free chunks, without top chunks.
    pub free: u64,
    /// Bytes of the free chunks.
    pub free_bytes: u64,
    /// Free bytes on the pages that chunks of this class keep in memory. The free bytes of a page are divided among
    /// the chunks in use on it, in proportion to their bytes there.
    pub pinned: u64,
}

/// A chunk in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapObject")]
pub struct Object {
    /// Address of its contents.
    pub address: u64,
    /// Size of its contents, in bytes.
    pub bytes: u64,
    /// Resident bytes.
    pub resident: u64,
}

/// The state of glibc's allocator in the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "name")]
#[schemars(rename = "HeapAllocator")]
pub enum Allocator {
    /// glibc's heap was read.
    Glibc {
        /// Number of arenas.
        arenas: usize,
        /// Number of thread caches that contain chunks.
        thread_caches: usize,
        /// The figures that `mallinfo2` would have returned.
        mallinfo2: Mallinfo,
    },
    /// glibc's heap was found but could not be read.
    Refused {
        /// The reason.
        reason: String,
    },
    /// No glibc heap was found.
    #[default]
    Unknown,
}

/// The report of a heap snapshot. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Heap {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process (`comm`).
    pub comm: String,
    /// How the snapshot was taken, and for how long the process was stopped.
    pub taken: Taken,
    /// Number of snapshots taken. Another one is taken if the heap is inconsistent, or if the process or its child
    /// disturbs a snapshot.
    pub attempts: u32,
    /// Why the last disturbed snapshot was abandoned.
    pub disturbed: Option<String>,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes that could not be copied. They are in no row of the heap.
    pub unread: u64,
    /// State of glibc's allocator.
    pub allocator: Allocator,
    /// The heap by kind of bytes.
    pub rows: Vec<RegionRow>,
    /// The same bytes by arena, in descending order of resident bytes.
    pub arenas: Vec<ArenaRow>,
    /// Anonymous memory outside the heap.
    pub others: Vec<OtherRow>,
    /// All resident anonymous memory: the sum of `rows` and `others`.
    pub anonymous: u64,
    /// The kernel's figure for `anonymous` (`Anonymous` of `smaps`) before and after the stop.
    pub kernel: [u64; 2],
    /// The kernel's figure for `anonymous` (`RssAnon`) while the process was stopped; `None` where that is not exact.
    pub kernel_at_stop: Option<u64>,
    /// Comparison of `anonymous` with the kernel's figures.
    pub agreement: Agreement,
    /// How the memory of each kind of mapping was read.
    pub read: Vec<ReadRow>,
    /// Private memory that is not in the snapshot.
    pub missing: Vec<Missing>,
    /// Anonymous memory that is swapped out.
    pub swapped: u64,
    /// Resident pages that contain only zeroes, and the unused part of huge pages; null for a core that does not say which pages
    /// were resident.
    pub zero_pages: Option<ZeroPages>,
    /// Number of the heap's resident pages by live share: none, up to 10 %, up to 20 %, and so on.
    pub occupancy: [u64; 11],
    /// The heap by address.
    pub map: AddressMap,
    /// Bytes that `malloc_trim(0)` would return to the kernel now.
    pub trimmable: u64,
    /// Chunks by size.
    pub sizes: Vec<SizeClass>,
    /// The largest chunks in use.
    pub largest: Vec<Object>,
    /// The unreachable chunks, if the heap was read and the snapshot contains all memory that may refer to them.
    pub unreachable: Option<Unreachable>,
    /// Why no chunk is reported as unreachable although the heap was read.
    pub not_called_unreachable: Option<String>,
    /// Objects by type, if the heap was read.
    pub types: Option<Types>,
    /// The roots that the objects are reachable from, if the heap was read.
    pub retained: Option<Retained>,
    /// Other allocators and managed heaps that were detected but not read.
    pub seen: Vec<Seen>,
    /// jemalloc's heap, if the process has one.
    pub jemalloc: Option<JemallocHeap>,
    /// Heaps of further allocators that the process has.
    pub other_heaps: Vec<SpanHeap>,
    /// Python's own allocator and its objects, if the process has it.
    pub python: Option<PythonHeap>,
    /// The core that the snapshot was read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreReport>,
    /// The core that the snapshot was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedCore>,
}

impl Heap {
    /// Why an allocator's heap could not be read.
    pub fn refused(&self) -> Option<&str> {
        let others = self.other_heaps.iter();
        match (&self.allocator, &self.jemalloc) {
            (Allocator::Refused { reason }, _) | (_, Some(JemallocHeap::Refused { reason })) => {
                Some(reason)
            }
            _ => others.filter_map(SpanHeap::refused).next(),
        }
    }
}
