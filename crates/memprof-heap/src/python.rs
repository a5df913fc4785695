//! CPython's own allocator (pymalloc), and the objects in it by their types, read from a copy of a process's memory
//! without symbols.
//!
//! pymalloc serves blocks of up to 512 bytes from pools, and takes pools from arenas, which are anonymous mappings. It is
//! found by its table of pools in use, whose lists are rings (`arenas`). Everything is checked: each pool's blocks add up,
//! each arena's pools do, and each list contains the pools that it must (`pools`). Otherwise the blocks are refused, with
//! the reason. `objects` then asks which blocks begin with a Python object, by `types`.
//!
//! Layouts: CPython 3.8 to 3.14 (`Objects/obmalloc.c`), 64-bit: pools of 4 KiB in arenas of 256 KiB until 3.9, of 16 KiB in
//! 1 MiB from 3.10 on. Free-threaded builds have mimalloc instead. Subinterpreters with an allocator of their own (3.12 and
//! later) keep its tables in memory that is not searched: their arenas stay anonymous memory of no known use.

mod arenas;
mod objects;
mod pools;
mod report;
mod rows;
mod text;
mod types;

use objects::Objects;
pub use report::{PoolClass, PyType, PythonHeap, PythonRead, Role};

use super::all_heaps::AllHeaps;
use super::memory::{Run, overlapping};
use super::snapshot::Snapshot;
use memprof_sys::ids::Pid;

/// Number of size classes; their sizes are multiples of [`STEP`].
const CLASSES: usize = 32;
/// Smallest block, and distance of sizes, in bytes.
const STEP: u64 = 16;
/// Size of a pool's header, in bytes.
const POOL_HEADER: u64 = 48;

/// Why pymalloc's blocks were not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There are several tables, as with two interpreters in one process.
    #[error("the process has {0} tables of pools; memprof reads one")]
    SeveralTables(usize),
    /// The pools' size is none that CPython has.
    #[error("the pool at {0:#x} has an unknown size")]
    PoolSize(u64),
    /// The table of arenas was not found.
    #[error("the table of arenas was not found")]
    NoArenas,
    /// An arena is described impossibly.
    #[error("the description of the arena at {0:#x} cannot be right")]
    Arena(u64),
    /// A pool's numbers contradict each other.
    #[error("the numbers of the pool at {0:#x} do not add up")]
    Pool(u64),
    /// A pool's list of free blocks is broken.
    #[error("the free blocks of the pool at {0:#x} do not add up")]
    FreeBlocks(u64),
    /// A list of pools contains something else, or lacks some.
    #[error("the list of pools with blocks of {0} bytes does not add up")]
    Lists(u64),
    /// An arena lies where malloc has blocks.
    #[error("the arena at {0:#x} overlaps malloc's memory")]
    Overlap(u64),
}

/// Python's memory: its allocator's blocks, and which of them are objects.
pub(crate) type Python = Result<(Pymalloc, Objects), Refusal>;

/// An arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Its first pool.
    pools: u64,
    /// The first pool that was never used; those from there on are free.
    unused: u64,
    /// Number of its pools.
    count: u64,
}

/// A pool that was used at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Its address.
    pub at: u64,
    /// Size of its blocks in bytes; 0 if the pool is free.
    pub block: u64,
    /// Its first block in [`Pymalloc::blocks`].
    first: usize,
}

/// What a block is: [`FREE`], [`LIVE`], or what [`Objects`] found.
pub(crate) type Block = u32;
/// Not in use.
pub(crate) const FREE: Block = 0;
/// In use.
pub(crate) const LIVE: Block = 1;

/// pymalloc's memory.
#[derive(Debug)]
pub(crate) struct Pymalloc {
    /// Size of a pool in bytes.
    pool_size: u64,
    /// The arenas, by address.
    pub arenas: Vec<Arena>,
    /// The pools, by address.
    pub pools: Vec<Pool>,
    /// Their blocks.
    pub blocks: Vec<Block>,
}

impl Pymalloc {
    /// The ranges of the arenas, in address order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Run> {
        self.arenas.iter().map(|arena| Run {
            start: arena.start,
            end: arena.end,
            resident: true,
        })
    }

    /// Number of blocks of a pool.
    fn capacity(&self, pool: &Pool) -> usize {
        match pool.block {
            0 => 0,
            block => ((self.pool_size - POOL_HEADER) / block) as usize,
        }
    }

    /// The blocks in use: address, size in bytes, position in [`Pymalloc::blocks`].
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, u64, usize)> {
        self.pools.iter().flat_map(|pool| {
            let blocks = pool.first..pool.first + self.capacity(pool);
            blocks
                .filter(|index| self.blocks[*index] != FREE)
                .map(move |index| {
                    let number = (index - pool.first) as u64;
                    (
                        pool.at + POOL_HEADER + number * pool.block,
                        pool.block,
                        index,
                    )
                })
        })
    }

    /// The block that contains an address: its position in [`Pymalloc::blocks`].
    pub(crate) fn containing(&self, addr: u64) -> Option<usize> {
        let index = self
            .pools
            .partition_point(|pool| pool.at + self.pool_size <= addr);
        let pool = self
            .pools
            .get(index)
            .filter(|pool| pool.at <= addr && pool.block > 0)?;
        let inside = (addr - pool.at).checked_sub(POOL_HEADER)?;
        let number = (inside / pool.block) as usize;
        (number < self.capacity(pool)).then_some(pool.first + number)
    }

    /// The address and the size of the block at a position.
    pub(crate) fn place(&self, index: usize) -> (u64, u64) {
        // (A free pool has no blocks: the next one begins where it does.)
        let pool = self.pools.partition_point(|pool| pool.first <= index);
        let pool = self.pools[..pool].last().filter(|pool| pool.block > 0);
        pool.map_or((0, 0), |pool| {
            let number = (index - pool.first) as u64;
            (pool.at + POOL_HEADER + number * pool.block, pool.block)
        })
    }
}

/// Reads Python's memory. `heaps` are malloc's, which has the larger objects. `None` if there is no CPython, or one that was
/// told to use malloc.
pub(crate) fn measure(pid: Pid, snapshot: &Snapshot, heaps: &AllHeaps) -> Option<Python> {
    let malloc = heaps.ranges();
    let overlaps = |arena: &&Arena| {
        overlapping(&malloc, arena.start, arena.end)
            .next()
            .is_some()
    };
    let read = read(snapshot).transpose()?;
    Some(read.and_then(|mut pymalloc| {
        if let Some(arena) = pymalloc.arenas.iter().find(overlaps) {
            return Err(Refusal::Overlap(arena.start));
        }
        let objects = objects::find(pid, snapshot, &mut pymalloc, heaps);
        Ok((pymalloc, objects))
    }))
}

/// Reads pymalloc's memory. `None` if there is none: no CPython, or one that was told to use malloc.
///
/// # Errors
/// Something does not fit together: the process was stopped while it changed its lists, or its memory is damaged.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<Pymalloc>, Refusal> {
    let Some(table) = arenas::find(&snapshot.memory, &snapshot.vmas)? else {
        return Ok(None);
    };
    pools::read(&snapshot.memory, &table).map(Some)
}
