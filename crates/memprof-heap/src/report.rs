//! A heap snapshot, added up: what `memprof heap` shows. Sizes are in bytes.

use serde::Serialize;

use super::address_map::AddressMap;
use super::arenas::ArenaRow;
use super::chunks::Kind;
use super::glibc::Mallinfo;
use super::jemalloc::JemallocHeap;
use super::python::PythonHeap;
use super::reach::Unreachable;
use super::retained::Retained;
use super::seen::Seen;
use super::snapshot::Taken;
use super::types::Types;
use super::whole::{Agreement, Missing};
use memprof_sys::residency::Category;

/// What the bytes of a heap are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Contents of chunks in use.
    Live,
    /// Contents of chunks in use that have mappings of their own.
    LiveMapped,
    /// Freed, in a thread's cache.
    ThreadCache,
    /// Freed, in a fast bin.
    Fast,
    /// Freed, not sorted yet.
    Unsorted,
    /// Freed, in a small bin.
    Small,
    /// Freed, in a large bin.
    Large,
    /// The end of an arena, which new chunks are cut from.
    Top,
    /// The allocator's own: headers, arenas, marks, alignment.
    Overhead,
    /// jemalloc: regions in use in slabs.
    JemallocLive,
    /// jemalloc: large regions in use.
    JemallocLarge,
    /// jemalloc: freed, in a thread's cache.
    JemallocCache,
    /// jemalloc: free regions in slabs.
    JemallocFree,
    /// jemalloc: free pages that were written to.
    JemallocDirty,
    /// jemalloc: free pages that the system may take.
    JemallocMuzzy,
    /// jemalloc: free pages that were returned to the system, and what was never used.
    JemallocRetained,
    /// jemalloc's own: its blocks, the stacks of threads' caches, alignment.
    JemallocOverhead,
    /// Python's allocator: blocks in use.
    PythonLive,
    /// Python's allocator: free blocks of pools in use.
    PythonFree,
    /// Python's allocator: free pools.
    PythonPools,
    /// Python's allocator: headers of pools, alignment.
    PythonOverhead,
}

impl What {
    /// All of them, in display order.
    pub const ALL: [What; 21] = [
        What::Live,
        What::LiveMapped,
        What::ThreadCache,
        What::Fast,
        What::Unsorted,
        What::Small,
        What::Large,
        What::Top,
        What::Overhead,
        What::JemallocLive,
        What::JemallocLarge,
        What::JemallocCache,
        What::JemallocFree,
        What::JemallocDirty,
        What::JemallocMuzzy,
        What::JemallocRetained,
        What::JemallocOverhead,
        What::PythonLive,
        What::PythonFree,
        What::PythonPools,
        What::PythonOverhead,
    ];

    pub(super) fn of(kind: Kind) -> What {
        match kind {
            kind if kind.is_live() => What::Live,
            Kind::Tcache => What::ThreadCache,
            Kind::Fast => What::Fast,
            Kind::Unsorted => What::Unsorted,
            Kind::Small => What::Small,
            Kind::Large => What::Large,
            Kind::Top => What::Top,
            _ => What::Overhead,
        }
    }

    /// Whether the program uses these bytes.
    pub fn is_live(self) -> bool {
        use What::*;
        matches!(
            self,
            Live | LiveMapped | JemallocLive | JemallocLarge | PythonLive
        )
    }

    /// Whether they are an allocator's own.
    pub fn is_overhead(self) -> bool {
        use What::*;
        matches!(self, Overhead | JemallocOverhead | PythonOverhead)
    }
}

/// Bytes of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What they are.
    pub what: What,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes, resident or not.
    pub bytes: u64,
    /// Those in memory.
    pub resident: u64,
}

/// Anonymous memory outside the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OtherRow {
    /// What kind of memory it is.
    pub category: Category,
    /// Bytes in memory.
    pub resident: u64,
}

/// The chunks of similar size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SizeClass {
    /// Smallest size of such a chunk with its header, in bytes.
    pub from: u64,
    /// Largest size, in bytes.
    pub to: u64,
    /// Number of chunks in use.
    pub live: u64,
    /// Their bytes, with headers.
    pub live_bytes: u64,
    /// Number of free chunks, without the arenas' ends.
    pub free: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Free bytes on the pages that chunks of this class keep in memory. A page's free bytes are divided among the
    /// chunks in use on it, by their bytes there.
    pub pinned: u64,
}

/// A chunk in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Address of its contents.
    pub address: u64,
    /// Size of its contents, in bytes.
    pub bytes: u64,
    /// Bytes in memory.
    pub resident: u64,
}

/// The allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum Allocator {
    /// glibc's.
    Glibc {
        /// Number of arenas.
        arenas: usize,
        /// Number of threads' caches that hold chunks.
        thread_caches: usize,
        /// What `mallinfo2` would have returned.
        mallinfo2: Mallinfo,
    },
    /// glibc's, which was not read.
    Refused {
        /// The reason.
        reason: String,
    },
    /// None that memprof reads.
    #[default]
    Unknown,
}

/// A heap snapshot, added up. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heap {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// How the snapshot was taken, and for how long the process was stopped.
    pub taken: Taken,
    /// Number of snapshots that were taken: further ones if the heap did not fit together, or if the process or its child did
    /// not let one be finished.
    pub attempts: u32,
    /// Why the one before the last was not finished.
    pub disturbed: Option<String>,
    /// Bytes that were copied meanwhile.
    pub copied: u64,
    /// Bytes that could not be copied, and are in no row of the heap.
    pub unread: u64,
    /// The allocator.
    pub allocator: Allocator,
    /// The heap by what its bytes are.
    pub rows: Vec<Row>,
    /// The heap by arena: the same bytes, those with the most resident ones first.
    pub arenas: Vec<ArenaRow>,
    /// Anonymous memory outside the heap.
    pub others: Vec<OtherRow>,
    /// All resident anonymous memory: the sum of both.
    pub anonymous: u64,
    /// The kernel's figure for it (`Anonymous` of `smaps`) before and after the stop.
    pub kernel: [u64; 2],
    /// The kernel's figure for it (`RssAnon`) while the process was stopped; `None` where that is not exact.
    pub kernel_at_stop: Option<u64>,
    /// How it compares with the kernel's figures.
    pub agreement: Agreement,
    /// Private memory that is not in the snapshot.
    pub missing: Vec<Missing>,
    /// Anonymous memory that is swapped out.
    pub swapped: u64,
    /// Number of the heap's resident pages by how much of them is live: none, then up to 10 %, up to 20 %, and so on.
    pub occupancy: [u64; 11],
    /// The heap by address.
    pub map: AddressMap,
    /// Bytes that `malloc_trim(0)` would return to the system now.
    pub trimmable: u64,
    /// Chunks by size.
    pub sizes: Vec<SizeClass>,
    /// The largest chunks in use.
    pub largest: Vec<Object>,
    /// The chunks that nothing refers to, if the heap was read and the snapshot has all that may refer to them.
    pub unreachable: Option<Unreachable>,
    /// Why no chunk is called unreachable, although the heap was read.
    pub not_called_unreachable: Option<String>,
    /// Objects by type, if the heap was read.
    pub types: Option<Types>,
    /// What leads to them, if the heap was read.
    pub retained: Option<Retained>,
    /// Other allocators and managed heaps of which there is evidence.
    pub seen: Vec<Seen>,
    /// jemalloc's heap, if the process has one.
    pub jemalloc: Option<JemallocHeap>,
    /// Python's own allocator and its objects, if the process has one.
    pub python: Option<PythonHeap>,
}

impl Heap {
    /// Why an allocator was refused.
    pub fn refused(&self) -> Option<&str> {
        match (&self.allocator, &self.jemalloc) {
            (Allocator::Refused { reason }, _) | (_, Some(JemallocHeap::Refused { reason })) => {
                Some(reason)
            }
            _ => None,
        }
    }
}
