//! CPython's own allocator and the objects in it by type, read from a copy of a process's memory without symbols.
//!
//! pymalloc serves blocks of up to 512 bytes from pools, and takes pools from arenas, which are anonymous mappings.
//! It is found by its table of pools in use, whose lists are rings (`arenas`). Every structure is verified: the
//! blocks of each pool and the pools of each arena add up, and each list contains the right pools (`pools`).
//! Otherwise the blocks are refused, with the reason. `objects` then determines which blocks begin with a Python
//! object, according to `types` and `head`.
//!
//! Free-threaded builds, and others with `PYTHONMALLOC=mimalloc`, have a mimalloc of their own in place of pymalloc. Its
//! heap is read like that of any other mimalloc; here its blocks are classified.
//!
//! Layouts: CPython 3.8 to 3.14 (`Objects/obmalloc.c`), 64-bit: pools of 4 KiB in arenas of 256 KiB up to 3.9, pools
//! of 16 KiB in arenas of 1 MiB since 3.10. Subinterpreters with an allocator of their own (3.12 and later) have its tables in memory that is not searched; their arenas are reported
//! as anonymous memory of unknown use.

mod arenas;
mod head;
mod held;
mod holders;
mod objects;
mod pools;
mod report;
mod rows;
mod text;
mod types;

use head::Head;
pub use holders::PyHolder;
use objects::Objects;
pub(crate) use objects::PythonBlocks;
pub use report::{BlockRole, PoolClass, PyType, PythonHeap, PythonRead};

use super::all_heaps::AllHeaps;
use super::memory::{Run, overlapping};
use super::mimalloc;
use super::snapshot::Snapshot;
use super::source::Source;

/// Number of size classes. Sizes are multiples of [`STEP`].
const CLASSES: usize = 32;
/// Minimum size of a block, and step between sizes, in bytes.
const STEP: u64 = 16;
/// Size of a pool's header, in bytes.
const POOL_HEADER: u64 = 48;

/// Why the blocks of Python's allocator could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The process has several tables, for example because of two interpreters.
    #[error("the process has {0} tables of pools; memprof reads one")]
    SeveralTables(usize),
    /// The pools have a size that CPython does not use.
    #[error("the pool at {0:#x} has an unknown size")]
    PoolSize(u64),
    /// The table of arenas was not found.
    #[error("the table of arenas was not found")]
    NoArenas,
    /// The descriptor of an arena is impossible.
    #[error("the description of the arena at {0:#x} cannot be right")]
    Arena(u64),
    /// The fields of a pool's header contradict each other.
    #[error("the numbers of the pool at {0:#x} do not add up")]
    Pool(u64),
    /// A pool's list of free blocks is broken.
    #[error("the free blocks of the pool at {0:#x} do not add up")]
    FreeBlocks(u64),
    /// A list of pools contains something other than the right pools, or lacks some.
    #[error("the list of pools with blocks of {0} bytes does not add up")]
    Lists(u64),
    /// An arena overlaps malloc's blocks.
    #[error("the arena at {0:#x} overlaps malloc's memory")]
    Overlap(u64),
    /// A free-threaded build has no other allocator.
    #[error("this free-threaded build has its blocks in mimalloc's heap, which was not read")]
    NoMimalloc,
}

/// Python's memory: its allocator's blocks, and which of them are objects.
pub(crate) type Python = Result<(PythonMemory, Objects), Refusal>;

/// An arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    /// First address.
    pub start: u64,
    /// End of the arena.
    pub end: u64,
    /// Address of its first pool.
    pools: u64,
    /// Address of the first pool that was never used. All pools from there on are free.
    unused: u64,
    /// Number of pools.
    count: u64,
}

/// A pool that was used at least once, or a page of mimalloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Address of the pool.
    pub at: u64,
    /// Address of its first block.
    start: u64,
    /// Size of its blocks, in bytes; 0 if the pool is free.
    pub block: u64,
    /// Number of its blocks.
    count: usize,
    /// Index of its first block in [`PythonMemory::blocks`].
    first: usize,
}

/// The kind of a block: [`FREE`], [`LIVE`], or a value that [`Objects`] assigns.
pub(crate) type Block = u32;
/// Not in use.
pub(crate) const FREE: Block = 0;
/// In use.
pub(crate) const LIVE: Block = 1;

/// The memory of Python's allocator: pymalloc's, or the blocks of mimalloc, which has no arenas here.
#[derive(Debug, Default)]
pub(crate) struct PythonMemory {
    /// Size of a pool, in bytes.
    pool_size: u64,
    /// The arenas, by address.
    pub arenas: Vec<Arena>,
    /// The pools, by address.
    pub pools: Vec<Pool>,
    /// The kind of each block of these pools.
    pub blocks: Vec<Block>,
}

impl Pool {
    /// Address of the block with an index in [`PythonMemory::blocks`].
    fn block_at(&self, index: usize) -> u64 {
        self.start + (index - self.first) as u64 * self.block
    }
}

impl PythonMemory {
    /// The blocks of mimalloc. `None` if its heap was not read.
    fn of_mimalloc(heaps: &AllHeaps) -> Option<PythonMemory> {
        let spans = &heaps.spans;
        let mut all = PythonMemory {
            blocks: Vec::with_capacity(spans.regions.kinds.len()),
            ..PythonMemory::default()
        };
        let extents = spans.regions.extents.iter();
        for extent in extents.filter(|extent| spans.name(extent) == mimalloc::NAME) {
            let count = extent.count as usize;
            let kinds = &spans.regions.kinds[extent.first..][..count];
            all.pools.push(Pool {
                at: extent.start,
                start: extent.at,
                block: if count == 0 { 0 } else { extent.size },
                count,
                first: all.blocks.len(),
            });
            let blocks = kinds.iter().map(|kind| match kind.is_live() {
                true => LIVE,
                false => FREE,
            });
            all.blocks.extend(blocks);
        }
        (!all.pools.is_empty()).then_some(all)
    }

    /// Whether the blocks are pymalloc's, not mimalloc's.
    fn is_pymalloc(&self) -> bool {
        !self.arenas.is_empty()
    }

    /// The address ranges of the arenas, in address order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Run> {
        self.arenas.iter().map(|arena| Run {
            start: arena.start,
            end: arena.end,
            resident: true,
        })
    }

    /// The blocks in use: address, size in bytes, index in [`PythonMemory::blocks`].
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64, usize)> {
        self.pools.iter().flat_map(|pool| {
            let blocks = pool.first..pool.first + pool.count;
            blocks
                .filter(|index| self.blocks[*index] != FREE)
                .map(move |index| (pool.block_at(index), pool.block, index))
        })
    }

    /// First address and end of the block in use that contains an address.
    pub(crate) fn live_block(&self, addr: u64) -> Option<(u64, u64)> {
        let index = self.containing(addr)?;
        let (start, size) = self.place(index);
        (self.blocks[index] != FREE).then_some((start, start + size))
    }

    /// Index in [`PythonMemory::blocks`] of the block that contains an address.
    pub(crate) fn containing(&self, addr: u64) -> Option<usize> {
        let index = self.pools.partition_point(|pool| pool.at <= addr);
        let pool = self.pools[..index].last().filter(|pool| pool.block > 0)?;
        let inside = addr.checked_sub(pool.start)?;
        let number = (inside / pool.block) as usize;
        (number < pool.count).then_some(pool.first + number)
    }

    /// Address and size of the block with an index.
    pub(crate) fn place(&self, index: usize) -> (u64, u64) {
        // A free pool has no blocks, so that the next pool has the same first index.
        let pool = self.pools.partition_point(|pool| pool.first <= index);
        let pool = self.pools[..pool].last().filter(|pool| pool.block > 0);
        pool.map_or((0, 0), |pool| (pool.block_at(index), pool.block))
    }
}

/// Reads Python's memory. `heaps` are malloc's heaps, which contain the larger objects, and mimalloc's. `None` without
/// CPython, or if CPython is configured to use malloc.
pub(crate) fn measure(source: Source<'_>, snapshot: &Snapshot, heaps: &AllHeaps) -> Option<Python> {
    let malloc = heaps.ranges();
    let overlaps = |arena: &&Arena| {
        overlapping(&malloc, arena.start, arena.end)
            .next()
            .is_some()
    };
    let (head, read) = match read(snapshot).transpose() {
        Some(read) => (Head::WithLock, read),
        None => {
            let head = types::head(source, snapshot)?;
            let read = PythonMemory::of_mimalloc(heaps);
            (head == Head::FreeThreaded || read.is_some()).then_some(())?;
            (head, read.ok_or(Refusal::NoMimalloc))
        }
    };
    Some(read.and_then(|mut python| {
        if let Some(arena) = python.arenas.iter().find(overlaps) {
            return Err(Refusal::Overlap(arena.start));
        }
        let objects = objects::find(source, snapshot, head, &mut python, heaps);
        Ok((python, objects))
    }))
}

/// Reads pymalloc's memory. `None` without CPython, or if CPython is configured to use malloc.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while it changed its lists, or its memory is damaged.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<PythonMemory>, Refusal> {
    let Some(table) = arenas::find(&snapshot.memory, &snapshot.vmas)? else {
        return Ok(None);
    };
    pools::read(&snapshot.memory, &table).map(Some)
}
