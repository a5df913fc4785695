//! Reads all pools and their blocks, and verifies them; see [`Refusal`].

use super::super::memory::Memory;
use super::arenas::{ARENA_INDEX, CLASS, FoundArena, MAX_OFFSET, Table, next};
use super::{CLASSES, FREE, LIVE, POOL_HEADER, Pool, PythonMemory, Refusal, STEP};

/// Offsets in a pool's header.
const COUNT: u64 = 0;
const FREE_BLOCK: u64 = 8;
const NEXT_OFFSET: u64 = 40;

/// Reads all pools.
pub(super) fn read(memory: &Memory, table: &Table) -> Result<PythonMemory, Refusal> {
    let mut all = PythonMemory {
        pool_size: table.pool_size,
        arenas: table.arenas.iter().map(|found| found.arena).collect(),
        pools: Vec::new(),
        blocks: Vec::new(),
    };
    // Number of pools that have both free blocks and blocks in use, by size class. Exactly these must be in the
    // lists.
    let mut listed = [0; CLASSES];
    for found in &table.arenas {
        let first = all.pools.len();
        let mut at = found.arena.pools;
        while at < found.arena.unused {
            let class = pool(memory, at, found.index, &mut all)?;
            if let Some(class) = class {
                listed[class] += 1;
            }
            at += table.pool_size;
        }
        free_pools(memory, found, table.pool_size, &all.pools[first..])?;
    }
    for (class, expected) in listed.into_iter().enumerate() {
        list(memory, table, class, expected, &all)?;
    }
    Ok(all)
}

/// Reads a pool. Returns its size class if the pool must be in the list of that class.
fn pool(
    memory: &Memory,
    at: u64,
    arena: u64,
    all: &mut PythonMemory,
) -> Result<Option<usize>, Refusal> {
    let wrong = || Refusal::Pool(at);
    let number = |offset| memory.half(at + offset).map(u64::from).ok_or_else(wrong);
    let (count, class) = (number(COUNT)?, number(CLASS)?);
    let block = (class + 1) * STEP;
    let (next_offset, max_offset) = (number(NEXT_OFFSET)?, number(MAX_OFFSET)?);
    let fits = class < CLASSES as u64
        && number(ARENA_INDEX)? == arena
        && max_offset == all.pool_size - block
        && next_offset <= all.pool_size
        && next_offset >= POOL_HEADER + block
        && (next_offset - POOL_HEADER).is_multiple_of(block);
    if !fits {
        return Err(wrong());
    }
    // Blocks beyond the offset were never allocated.
    let used = (next_offset - POOL_HEADER) / block;
    let (first, capacity) = (
        all.blocks.len(),
        ((all.pool_size - POOL_HEADER) / block) as usize,
    );
    let mut pool = Pool {
        at,
        start: at + POOL_HEADER,
        block,
        count: capacity,
        first,
    };
    all.blocks.resize(first + used as usize, LIVE);
    all.blocks.resize(first + capacity, FREE);
    let broken = || Refusal::FreeBlocks(at);
    let mut free = memory.word(at + FREE_BLOCK).ok_or_else(broken)?;
    let mut freed = 0;
    while free != 0 {
        let inside = free.checked_sub(at + POOL_HEADER).ok_or_else(broken)?;
        let index = first + (inside / block) as usize;
        if !inside.is_multiple_of(block)
            || inside / block >= used
            || all.blocks.get(index) != Some(&LIVE)
        {
            return Err(broken());
        }
        all.blocks[index] = FREE;
        freed += 1;
        free = memory.word(free).ok_or_else(broken)?;
    }
    if count + freed != used {
        return Err(broken());
    }
    if count == 0 {
        // An empty pool can be reused for another size class.
        all.blocks.truncate(first);
        (pool.block, pool.count) = (0, 0);
    }
    all.pools.push(pool);
    let listed = count > 0 && (count as usize) < capacity;
    Ok(listed.then_some(class as usize))
}

/// Checks an arena's free pools: all are in its list, and their number equals its counter.
fn free_pools(
    memory: &Memory,
    found: &FoundArena,
    pool_size: u64,
    pools: &[Pool],
) -> Result<(), Refusal> {
    let wrong = || Refusal::Arena(found.arena.start);
    let free = pools.iter().filter(|pool| pool.block == 0).count() as u64;
    let used = (found.arena.unused - found.arena.pools) / pool_size;
    let never_used = found.arena.count - used;
    let mut at = found.free_list;
    for _ in 0..free {
        let index = at.checked_sub(found.arena.pools).ok_or_else(wrong)? / pool_size;
        let pool = pools.get(index as usize).filter(|pool| pool.at == at);
        pool.filter(|pool| pool.block == 0).ok_or_else(wrong)?;
        at = next(memory, at).ok_or_else(wrong)?;
    }
    // The list must end after all free pools. A ring would not end.
    match at == 0 && free + never_used == found.free {
        true => Ok(()),
        false => Err(wrong()),
    }
}

/// Checks the list of a size class: all its pools are of that class, and none is missing.
fn list(
    memory: &Memory,
    table: &Table,
    class: usize,
    expected: u64,
    all: &PythonMemory,
) -> Result<(), Refusal> {
    let block = (class as u64 + 1) * STEP;
    let head = table.head(class as u64);
    let mut at = next(memory, head).ok_or(Refusal::Lists(block))?;
    for _ in 0..expected {
        let pool = all.pools.binary_search_by_key(&at, |pool| pool.at);
        let pool = pool.ok().map(|index| all.pools[index]);
        if pool.is_none_or(|pool| pool.block != block) {
            return Err(Refusal::Lists(block));
        }
        at = next(memory, at).ok_or(Refusal::Lists(block))?;
    }
    match at == head {
        true => Ok(()),
        false => Err(Refusal::Lists(block)),
    }
}
