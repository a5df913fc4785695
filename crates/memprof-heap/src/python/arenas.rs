//! Finds pymalloc's tables by their structure: the pools in use by size class, and the arenas.

use super::super::glibc::written_data;
use super::super::memory::Memory;
use super::{Arena, CLASSES, Refusal, STEP};
use memprof_sys::residency::{Vma, page_size};

/// Offsets in a pool's header.
const NEXT_POOL: u64 = 16;
const PREVIOUS_POOL: u64 = 24;
pub(super) const ARENA_INDEX: u64 = 32;
pub(super) const CLASS: u64 = 36;
pub(super) const MAX_OFFSET: u64 = 44;

/// Sizes of pools with the corresponding size of arenas: up to 3.9, and since 3.10.
const SIZES: [(u64, u64); 2] = [(4 << 10, 256 << 10), (16 << 10, 1 << 20)];

/// Size of an arena's descriptor (`arena_object`), and offsets in it.
const ARENA_OBJECT: u64 = 48;
const POOL_ADDRESS: u64 = 8;
const FREE_POOLS: u64 = 16;
const TOTAL_POOLS: u64 = 20;
const FREE_LIST: u64 = 24;
const NEXT_ARENA: u64 = 32;
/// Initial number of entries in the table of arenas. The table doubles when full.
const FIRST_ARENAS: u64 = 16;
/// Maximum number of table entries to read.
const MAX_ARENAS: u64 = 1 << 22;
/// Maximum number of bytes to search for the tables.
const SEARCHED: u64 = 256 << 20;

/// pymalloc's tables.
#[derive(Debug)]
pub(super) struct Table {
    /// Address of the lists of pools in use (`usedpools`).
    pub used: u64,
    /// Size of a pool, in bytes.
    pub pool_size: u64,
    /// The arenas, by address.
    pub arenas: Vec<FoundArena>,
}

/// An arena with the fields of its descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundArena {
    /// Index in the table.
    pub index: u64,
    pub arena: Arena,
    /// Number of free pools.
    pub free: u64,
    /// Address of the first free pool that was used before; 0 if there is none.
    pub free_list: u64,
}

impl Table {
    /// The head of the list of pools of a size class, as if it were a pool.
    pub(super) fn head(&self, class: u64) -> u64 {
        self.used + 16 * class - NEXT_POOL
    }
}

/// The next pool of a list.
pub(super) fn next(memory: &Memory, pool: u64) -> Option<u64> {
    memory.word(pool.wrapping_add(NEXT_POOL))
}

/// Ranges of the process's written data, in which an interpreter has its tables and types; at most [`SEARCHED`] bytes.
pub(super) fn data(memory: &Memory, vmas: &[Vma]) -> Vec<(u64, u64)> {
    let mut left = SEARCHED;
    let mut ranges = Vec::new();
    for (start, end) in written_data(vmas) {
        for run in memory.runs_in(start, end.min(start.saturating_add(left))) {
            left = left.saturating_sub(run.len());
            ranges.push((run.start, run.end));
        }
    }
    ranges
}

/// Finds the tables. `Ok(None)` if there are none, or no pool is in use.
pub(super) fn find(memory: &Memory, vmas: &[Vma]) -> Result<Option<Table>, Refusal> {
    let places = data(memory, vmas);
    let places = || {
        places
            .iter()
            .flat_map(|(start, end)| (*start..*end).step_by(8))
    };
    let found: Vec<(u64, u64)> = places().filter_map(|at| used_pools(memory, at)).collect();
    let (used, pool) = match found[..] {
        [] => return Ok(None),
        [found] => found,
        _ => return Err(Refusal::SeveralTables(found.len())),
    };
    let (pool_size, arena_size) = sizes(memory, pool).ok_or(Refusal::PoolSize(pool))?;
    let index = u64::from(memory.half(pool + ARENA_INDEX).unwrap_or(u32::MAX));
    // The variable that points to the table of arenas is the one whose entry for this pool's arena contains the pool.
    let array = places().filter_map(|at| memory.word(at)).find(|array| {
        let entry = array.wrapping_add(index * ARENA_OBJECT);
        let arena = memory.word(entry).filter(|arena| *arena > 0);
        array.is_multiple_of(8)
            && arena.is_some_and(|arena| pool.wrapping_sub(arena) < arena_size)
            && describe(memory, entry, index, pool_size, arena_size).is_some()
    });
    let array = array.ok_or(Refusal::NoArenas)?;
    let mut arenas = entries(memory, array, pool_size, arena_size).ok_or(Refusal::NoArenas)?;
    arenas.sort_by_key(|found| found.arena.start);
    if let Some(pair) = arenas
        .windows(2)
        .find(|p| p[0].arena.end > p[1].arena.start)
    {
        return Err(Refusal::Arena(pair[1].arena.start));
    }
    Ok(Some(Table {
        used,
        pool_size,
        arenas,
    }))
}

/// Checks whether the lists of pools in use are at this address: for each size class, a ring of pools of that class.
/// Returns the address and the first pool. glibc's bins have the same structure, but their chunks are not pools.
fn used_pools(memory: &Memory, at: u64) -> Option<(u64, u64)> {
    let mut first = None;
    for class in 0..CLASSES as u64 {
        let links = at + 16 * class;
        let head = links.wrapping_sub(NEXT_POOL);
        let (next, previous) = (memory.word(links)?, memory.word(links + 8)?);
        if next == head && previous == head {
            continue;
        }
        let is_pool = |pool: u64| {
            pool.is_multiple_of(SIZES[0].0)
                && memory.half(pool.wrapping_add(CLASS)).map(u64::from) == Some(class)
        };
        let ring = is_pool(next)
            && is_pool(previous)
            && memory.word(next + PREVIOUS_POOL) == Some(head)
            && memory.word(previous + NEXT_POOL) == Some(head);
        if !ring {
            return None;
        }
        first = first.or(Some(next));
    }
    first.map(|pool| (at, pool))
}

/// Sizes of pools and arenas, derived from one pool.
fn sizes(memory: &Memory, pool: u64) -> Option<(u64, u64)> {
    let class = u64::from(memory.half(pool + CLASS)?);
    let size = u64::from(memory.half(pool + MAX_OFFSET)?) + (class + 1) * STEP;
    SIZES.into_iter().find(|(pool_size, _)| *pool_size == size)
}

/// All arenas of the table at this address. The size of the table is the largest with which the unused entries form a
/// single list.
fn entries(
    memory: &Memory,
    array: u64,
    pool_size: u64,
    arena_size: u64,
) -> Option<Vec<FoundArena>> {
    let mut arenas = Vec::new();
    // For the unused entries: their number, the number of list ends, and the sum of their addresses minus the sum of
    // their links.
    let (mut unused, mut last, mut sum) = (0_u64, 0_u64, 0_u64);
    let mut best = None;
    let mut places = FIRST_ARENAS;
    for index in 0..MAX_ARENAS {
        let entry = array.checked_add(index * ARENA_OBJECT)?;
        match memory.word(entry) {
            Some(0) => {
                unused += 1;
                sum = sum.wrapping_add(entry);
                match memory.word(entry + NEXT_ARENA) {
                    Some(0) => last += 1,
                    Some(next) => {
                        let inside = next.wrapping_sub(array);
                        if !inside.is_multiple_of(ARENA_OBJECT)
                            || inside / ARENA_OBJECT >= MAX_ARENAS
                        {
                            break;
                        }
                        sum = sum.wrapping_sub(next);
                    }
                    None => break,
                }
            }
            Some(_) => match describe(memory, entry, index, pool_size, arena_size) {
                Some(arena) => arenas.push(arena),
                None => break,
            },
            None => break,
        }
        if index + 1 == places {
            // The difference is the address of the first entry of the list, which no link points to.
            let first = sum.wrapping_sub(array);
            let is_list =
                last == 1 && first.is_multiple_of(ARENA_OBJECT) && first / ARENA_OBJECT < places;
            if (unused == 0 && last == 0) || is_list {
                best = Some(arenas.len());
            }
            places *= 2;
        }
    }
    arenas.truncate(best?);
    Some(arenas)
}

/// Decodes and checks the arena of a table entry.
fn describe(
    memory: &Memory,
    entry: u64,
    index: u64,
    pool_size: u64,
    arena_size: u64,
) -> Option<FoundArena> {
    let start = memory.word(entry)?;
    let end = start.checked_add(arena_size)?;
    let pools = start.checked_next_multiple_of(pool_size)?;
    let count = (end - pools) / pool_size;
    let unused = memory.word(entry + POOL_ADDRESS)?;
    let free = u64::from(memory.half(entry + FREE_POOLS)?);
    let total = u64::from(memory.half(entry + TOTAL_POOLS)?);
    let free_list = memory.word(entry + FREE_LIST)?;
    let fits = start.is_multiple_of(page_size())
        && unused >= pools
        && unused <= pools + count * pool_size
        && unused.is_multiple_of(pool_size)
        && total == count
        && free <= total
        && (free_list == 0 || (free_list >= pools && free_list < unused));
    fits.then_some(FoundArena {
        index,
        arena: Arena {
            start,
            end,
            pools,
            unused,
            count,
        },
        free,
        free_list,
    })
}
