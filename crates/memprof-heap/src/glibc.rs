//! glibc's heap (ptmalloc), read from a copy of a process's memory without symbols.
//!
//! Every structure is verified. The free lists of an arena must be rings. A walk over its chunks must end at the top
//! chunk and add up to the size that glibc counts. Every free chunk must be one that the walk found. The chunks with
//! mappings of their own must match glibc's counters in number and size. Otherwise the heap is refused, with the
//! reason.
//!
//! Layouts: glibc 2.31 to 2.43 (`malloc/malloc.c`, `malloc/arena.c`), 64-bit. The layout is detected from the heap
//! itself: the checks hold for one layout only.

mod free;
mod mmapped;
mod state;
mod walk;

use super::memory::{Memory, Run};
use super::snapshot::Snapshot;
use free::Lists;
pub(crate) use mmapped::Mmapped;
pub(super) use state::written_data;
pub(crate) use walk::ArenaPart;

/// The figures of `mallinfo2`, under its names.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    schemars::JsonSchema,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Mallinfo {
    /// Bytes of the arenas.
    pub arena: u64,
    /// Number of free chunks: chunks in bins, and the top chunk of each arena.
    pub ordblks: u64,
    /// Number of chunks in fast bins.
    pub smblks: u64,
    /// Number of chunks with mappings of their own.
    pub hblks: u64,
    /// Bytes of chunks with mappings of their own.
    pub hblkhd: u64,
    /// Bytes in fast bins.
    pub fsmblks: u64,
    /// Bytes in use in the arenas, including chunks in thread caches.
    pub uordblks: u64,
    /// Free bytes of the arenas.
    pub fordblks: u64,
    /// Bytes of the main arena's top chunk.
    pub keepcost: u64,
}

/// Why a heap could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There are several sets of arenas, as with `dlmopen`.
    #[error("the process has {0} glibc heaps; memprof reads one")]
    SeveralHeaps(usize),
    /// The list of arenas is not a ring.
    #[error("the list of arenas does not end where it begins")]
    Arenas,
    /// malloc's parameters (`mp_`) were not found.
    #[error("malloc's parameters were not found: {0}")]
    Parameters(&'static str),
    /// A chunk's size is impossible, or its header is not in memory.
    #[error("the header of the chunk at {0:#x} cannot be right")]
    Chunk(u64),
    /// A free list contains something other than free chunks.
    #[error("a list of free chunks is broken at {0:#x}")]
    FreeLists(u64),
    /// The walk and glibc's counter disagree about an arena's size.
    #[error("the chunks of the arena at {arena:#x} have {walked} bytes; glibc counts {counted}")]
    Size {
        /// Address of the arena.
        arena: u64,
        /// Bytes of the chunks in the walk.
        walked: u64,
        /// Bytes that glibc counts.
        counted: u64,
    },
    /// The search and glibc's counters disagree about chunks with mappings of their own.
    #[error(
        "{found} chunks with mappings of their own have {bytes} bytes; glibc counts {counted} with {counted_bytes}"
    )]
    Mmapped {
        /// Number of chunks found.
        found: u64,
        /// Bytes of the chunks found.
        bytes: u64,
        /// Number that glibc counts.
        counted: u64,
        /// Bytes that glibc counts.
        counted_bytes: u64,
    },
}

/// glibc's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Number of arenas.
    pub arenas: usize,
    /// Addresses of the arenas, the main arena first.
    pub addresses: Vec<u64>,
    /// Start and end of the main arena's `malloc_state`, which lies in the program's data.
    pub main_arena: (u64, u64),
    /// The parts of all arenas, by address.
    pub parts: Vec<ArenaPart>,
    /// Chunks with mappings of their own, by address.
    pub mmapped: Vec<Mmapped>,
    /// Number of thread caches that contain chunks.
    pub tcaches: usize,
    /// The figures that `mallinfo2` would return.
    pub mallinfo: Mallinfo,
}

impl Heap {
    /// The address ranges of the heap, in address order.
    pub(crate) fn ranges(&self) -> Vec<Run> {
        let parts = self.parts.iter().map(|part| (part.start, part.end));
        let mapped = self
            .mmapped
            .iter()
            .map(|chunk| (chunk.start, chunk.start + chunk.len));
        let mut ranges: Vec<Run> = parts
            .chain(mapped)
            .map(|(start, end)| Run {
                start,
                end,
                resident: true,
            })
            .collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }
}

/// Reads the heap. `None` if the process has none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while it changed its lists, or its heap is damaged.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<Heap>, Refusal> {
    let memory: &Memory = &snapshot.memory;
    let Some(state) = state::find(memory, &snapshot.vmas)? else {
        return Ok(None);
    };
    let mut parts = walk::walk(memory, &state)?;
    let mmapped = mmapped::find(snapshot, &parts, state.parameters.as_ref())?;
    let mut lists = Lists::new(memory, &mut parts);
    let mut mallinfo = lists.arenas(&state)?;
    mallinfo.hblks = mmapped.len() as u64;
    mallinfo.hblkhd = mmapped.iter().map(|chunk| chunk.len).sum();
    let tcaches = match &state.parameters {
        Some(parameters) => lists.tcaches(parameters)?,
        None => 0,
    };
    Ok(Some(Heap {
        arenas: state.arenas.len(),
        addresses: state.arenas.iter().map(|arena| arena.at).collect(),
        main_arena: (state.arenas[0].at, state.arenas[0].end()),
        parts,
        mmapped,
        tcaches,
        mallinfo,
    }))
}
