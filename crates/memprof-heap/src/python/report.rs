//! Python's memory in a report. Sizes are in bytes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::mimalloc;
use super::holders::{self, PyHolder};
use super::objects::{KEPT, TYPED};
use super::{Block, FREE, LIVE, Objects, Python, PythonMemory};

/// The role of blocks of Python's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockRole {
    /// Objects.
    Object,
    /// Memory that objects of the type refer to and that is not an object itself: items, keys, data.
    Memory,
    /// Freed objects of any type that the interpreter retains for reuse.
    Kept,
    /// None of these.
    Unknown,
}

/// The blocks of one type: in the memory of Python's allocator, or in malloc's if they are larger than 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PyType {
    /// Name of the type; empty if the role has no type. Types of the same name share a row.
    #[serde(rename = "type")]
    pub name: String,
    /// Role of the blocks.
    pub role: BlockRole,
    /// Number of blocks.
    pub count: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Bytes of the blocks in pymalloc's arenas.
    pub arena_bytes: u64,
    /// Address of one of the blocks.
    pub example: u64,
    /// The types whose objects hold the most bytes of the blocks, directly or in lists, dicts and other collections.
    pub held_by: Vec<PyHolder>,
}

/// pymalloc's blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PoolClass {
    /// Size of a block.
    pub size: u64,
    /// Number of pools in use.
    pub pools: u64,
    /// Number of blocks in use.
    pub live: u64,
    /// Number of free blocks in these pools.
    pub free: u64,
}

/// Python's memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum PythonHeap {
    /// The memory was read.
    Read(PythonRead),
    /// The memory could not be read.
    Refused {
        /// The reason.
        reason: String,
    },
}

/// Summary of Python's memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PythonRead {
    /// Python's allocator: `pymalloc`, or `mimalloc` in free-threaded builds and with `PYTHONMALLOC=mimalloc`. The arenas and pools
    /// are pymalloc's.
    pub allocator: &'static str,
    /// Number of arenas.
    pub arenas: u64,
    /// Bytes of all arenas.
    pub arena_bytes: u64,
    /// Size of a pool.
    pub pool_size: u64,
    /// Number of free pools.
    pub free_pools: u64,
    /// The blocks by size.
    pub classes: Vec<PoolClass>,
    /// Bytes of the allocator's blocks in use.
    pub live_bytes: u64,
    /// Bytes of these blocks that are objects or memory of objects.
    pub typed_bytes: u64,
    /// The blocks by type, in descending order of bytes.
    pub types: Vec<PyType>,
    /// Number of rows that are not listed.
    pub types_left_out: u64,
}

impl PythonHeap {
    /// Summarizes Python's memory, with the `top` largest rows of types.
    pub(crate) fn summarize(python: &Python, top: usize) -> PythonHeap {
        match python {
            Ok((pymalloc, objects)) => PythonHeap::Read(read(pymalloc, objects, top)),
            Err(refusal) => PythonHeap::Refused {
                reason: refusal.to_string(),
            },
        }
    }
}

fn read(pymalloc: &PythonMemory, objects: &Objects, top: usize) -> PythonRead {
    let mut classes: BTreeMap<u64, PoolClass> = BTreeMap::new();
    let is_pymalloc = pymalloc.is_pymalloc();
    let pools = pymalloc.pools.iter();
    for pool in pools.filter(|pool| is_pymalloc && pool.block > 0) {
        let blocks = &pymalloc.blocks[pool.first..pool.first + pool.count];
        let free = blocks.iter().filter(|block| **block == FREE).count() as u64;
        let class = classes.entry(pool.block).or_default();
        class.size = pool.block;
        class.pools += 1;
        class.live += blocks.len() as u64 - free;
        class.free += free;
    }
    let classes: Vec<PoolClass> = classes.into_values().collect();
    let pools: u64 = pymalloc.arenas.iter().map(|arena| arena.count).sum();
    let used: u64 = classes.iter().map(|class| class.pools).sum();
    let (mut live_bytes, mut typed_bytes) = (0, 0);
    for (_, bytes, index) in pymalloc.live() {
        live_bytes += bytes;
        typed_bytes += if pymalloc.blocks[index] >= TYPED {
            bytes
        } else {
            0
        };
    }
    let mut types = types(pymalloc, objects);
    let types_left_out = types.len().saturating_sub(top) as u64;
    types.truncate(top);
    PythonRead {
        allocator: if is_pymalloc {
            "pymalloc"
        } else {
            mimalloc::NAME
        },
        arenas: pymalloc.arenas.len() as u64,
        arena_bytes: pymalloc.ranges().map(|range| range.len()).sum(),
        pool_size: pymalloc.pool_size,
        free_pools: pools.saturating_sub(used),
        live_bytes,
        typed_bytes,
        classes,
        types,
        types_left_out,
    }
}

/// Number, bytes, bytes in arenas, example, and the kinds of blocks.
type Sum = (u64, u64, u64, u64, Vec<Block>);

fn types(pymalloc: &PythonMemory, objects: &Objects) -> Vec<PyType> {
    let mut sums = vec![(0, 0, 0, 0); TYPED as usize + 2 * objects.types.len()];
    // pymalloc's blocks come first, so their number tells them apart.
    let small = match pymalloc.is_pymalloc() {
        true => pymalloc.live().count(),
        false => 0,
    };
    for (number, (at, bytes, block)) in objects.all(pymalloc).enumerate() {
        if let Some((count, sum, in_arenas, example)) = sums.get_mut(block as usize) {
            *count += 1;
            *sum += bytes;
            *in_arenas += if number < small { bytes } else { 0 };
            *example = if *example == 0 { at } else { *example };
        }
    }
    let mut rows: BTreeMap<(&str, BlockRole), Sum> = BTreeMap::new();
    for (block, (count, bytes, in_arenas, example)) in sums.into_iter().enumerate() {
        if count == 0 {
            continue;
        }
        let key = match block as u32 {
            LIVE => ("", BlockRole::Unknown),
            KEPT => ("", BlockRole::Kept),
            block => {
                let of = block.saturating_sub(TYPED);
                let role = if of % 2 == 0 {
                    BlockRole::Object
                } else {
                    BlockRole::Memory
                };
                let found = objects.types.get(of as usize / 2);
                (found.map_or("", |of| of.name.as_str()), role)
            }
        };
        let row = rows.entry(key);
        let row = row.or_insert((0, 0, 0, example, Vec::new()));
        (row.0, row.1, row.2) = (row.0 + count, row.1 + bytes, row.2 + in_arenas);
        row.4.push(block as Block);
    }
    let rows = rows.into_iter();
    let mut rows: Vec<PyType> = rows
        .map(
            |((name, role), (count, bytes, arena_bytes, example, blocks))| PyType {
                name: name.to_owned(),
                role,
                count,
                bytes,
                arena_bytes,
                example,
                held_by: holders::largest(&objects.holders, &objects.types, &blocks),
            },
        )
        .collect();
    rows.sort_by_key(|row| Reverse((row.bytes, row.count)));
    rows
}
