//! Classifies blocks: Python objects by type, memory of such objects, and neither.
//!
//! A block is an object if its type field is the address of a type, and the type's flags say that its objects begin
//! there: at the beginning of the block, or after the 16-byte header of the garbage collector (not in free-threaded
//! builds), the 16-byte header with an instance's dict and weak references (3.11 and later), or both. The reference count
//! must be plausible, and the type's size must fit.
//!
//! Memory of objects is any block that is not an object and that an object refers to: a list's items, a dict's keys,
//! the data of an array. It is attributed to the first object that refers to it; lists and dicts come first, texts last.

use std::collections::HashMap;

use super::super::all_heaps::AllHeaps;
use super::super::memory::{Memory, Run};
use super::super::snapshot::Snapshot;
use super::super::source::Source;
use super::head::Head;
use super::holders::{self, Holders};
use super::types::{Turn, Type, Types};
use super::{Block, FREE, LIVE, PythonMemory};

/// Offsets of objects in their blocks, in bytes.
const POSITIONS: [u64; 3] = [0, 16, 32];
/// Maximum size of pymalloc's blocks, in bytes. Larger blocks come from malloc.
const LARGEST: u64 = 512;
/// A freed object that the interpreter retains for the next one of its type.
pub(super) const KEPT: Block = 2;
/// First of the values that encode a type: an even offset from here is an object of type offset / 2, an odd one is
/// memory of such objects.
pub(super) const TYPED: Block = 16;

/// A block of malloc that is larger than pymalloc's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Large {
    pub at: u64,
    pub bytes: u64,
    pub block: Block,
}

/// The result of the classification.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(super) types: Vec<Type>,
    /// Blocks of malloc that are objects or memory of objects, by address.
    large: Vec<Large>,
    /// Who holds the blocks.
    pub(super) holders: Holders,
}

impl Objects {
    /// The blocks in use of pymalloc, followed by `large`: address, bytes, kind.
    pub(crate) fn all<'a>(
        &'a self,
        pymalloc: &'a PythonMemory,
    ) -> impl Iterator<Item = (u64, u64, Block)> + 'a {
        let small = pymalloc
            .live()
            .map(|(at, bytes, i)| (at, bytes, pymalloc.blocks[i]));
        small.chain(
            self.large
                .iter()
                .map(|large| (large.at, large.bytes, large.block)),
        )
    }
}

/// What a census of malloc's chunks needs of Python: the arenas, and the types of its blocks on malloc's heap.
#[derive(Debug, Default)]
pub(crate) struct PythonBlocks<'a> {
    /// The arenas, by address.
    pub arenas: Vec<Run>,
    /// The blocks of mimalloc, if Python's are there.
    mimalloc: Option<&'a PythonMemory>,
    /// Index of the type by the address of another chunk's contents.
    types: HashMap<u64, u32>,
    names: Vec<String>,
}

impl<'a> PythonBlocks<'a> {
    pub(crate) fn new(python: &'a PythonMemory, objects: &Objects) -> PythonBlocks<'a> {
        let name = |number: usize| {
            let name = objects.types.get(number / 2).map_or("", |of| &of.name);
            match number % 2 {
                0 => name.to_owned(),
                _ => format!("{name} (memory)"),
            }
        };
        let large = objects.large.iter();
        PythonBlocks {
            arenas: python.ranges().collect(),
            mimalloc: (!python.is_pymalloc()).then_some(python),
            types: large.map(|large| (large.at, large.block - TYPED)).collect(),
            names: (0..2 * objects.types.len()).map(name).collect(),
        }
    }

    /// Number of the type of the block with these contents.
    pub(crate) fn type_at(&self, start: u64) -> Option<u32> {
        let block = self.mimalloc.and_then(|python| {
            let index = python.containing(start)?;
            python.blocks[index].checked_sub(TYPED)
        });
        block.or_else(|| self.types.get(&start).copied())
    }

    /// Name of a type by its number; of memory of its objects, with a remark.
    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}

/// Finds the objects, and records the kind of each block in `pymalloc`.
pub(super) fn find(
    source: Source<'_>,
    snapshot: &Snapshot,
    head: Head,
    pymalloc: &mut PythonMemory,
    heaps: &AllHeaps,
) -> Objects {
    let memory = &snapshot.memory;
    let mut types = Types::new(memory, &snapshot.vmas, source, head);
    for pool in &pymalloc.pools {
        for index in pool.first..pool.first + pool.count {
            if pymalloc.blocks[index] != FREE {
                let at = pool.block_at(index);
                pymalloc.blocks[index] = what(memory, &mut types, at, pool.block);
            }
        }
    }
    let mut large: Vec<Large> = large_blocks(heaps, pymalloc);
    for block in &mut large {
        block.block = what(memory, &mut types, block.at, block.bytes);
    }
    let mut owners = Owners {
        memory,
        types: &types,
        pymalloc,
        large: &mut large,
        left: Vec::new(),
    };
    Turn::ALL.into_iter().for_each(|turn| owners.find(turn));
    owners.find_in_memory();
    // Drop blocks that have nothing to do with Python.
    large.retain(|block| block.block >= TYPED);
    let types = types.into_types();
    Objects {
        holders: holders::find(memory, head, &types, pymalloc, &large),
        types,
        large,
    }
}

/// Blocks of malloc in use that are larger than pymalloc's, by address.
fn large_blocks(heaps: &AllHeaps, pymalloc: &PythonMemory) -> Vec<Large> {
    let all = heaps.live().map(|(at, end)| Large {
        at,
        bytes: end.saturating_sub(at),
        block: LIVE,
    });
    let all = all.filter(|block| block.bytes > LARGEST);
    // Those of mimalloc are known already.
    let mut all: Vec<Large> = all
        .filter(|block| pymalloc.containing(block.at).is_none())
        .collect();
    all.sort_unstable_by_key(|block| block.at);
    all
}

/// Classifies the block at an address as an object, a freed object, or neither.
fn what(memory: &Memory, types: &mut Types, block: u64, size: u64) -> Block {
    let found = POSITIONS.into_iter().find_map(|position| {
        let at = block + position;
        let is_referenced = types.head.is_referenced(memory, at)?;
        let index = types.at(types.head.type_of(memory, at)?)?;
        let of = types.get(index)?;
        let fits = of.before == position && position + of.least_size <= size;
        fits.then_some(match is_referenced {
            false => KEPT,
            true => TYPED + 2 * index,
        })
    });
    found.unwrap_or(LIVE)
}

/// Location of memory of objects: index of a block in pymalloc or in `large`.
#[derive(Clone, Copy, Debug)]
enum BlockIndex {
    Small(usize),
    Large(usize),
}

/// The search for memory of objects.
struct Owners<'a, 't> {
    memory: &'a Memory,
    types: &'t Types<'a>,
    pymalloc: &'a mut PythonMemory,
    large: &'a mut Vec<Large>,
    /// Memory of objects whose contents are yet to be read, with its kind.
    left: Vec<(BlockIndex, Block)>,
}

impl Owners<'_, '_> {
    /// Reads the objects whose type has this turn.
    fn find(&mut self, turn: Turn) {
        for index in 0..self.pymalloc.pools.len() {
            let pool = self.pymalloc.pools[index];
            for index in pool.first..pool.first + pool.count {
                let block = self.pymalloc.blocks[index];
                self.object(block, pool.block_at(index), pool.block, turn);
            }
        }
        for index in 0..self.large.len() {
            let Large { at, bytes, block } = self.large[index];
            self.object(block, at, bytes, turn);
        }
    }

    fn object(&mut self, block: Block, at: u64, bytes: u64, turn: Turn) {
        let Some(of) = block.checked_sub(TYPED) else {
            return;
        };
        let of_type = self.types.get(of / 2);
        if of % 2 == 1 || of_type.is_none_or(|found| found.turn != turn) {
            return;
        }
        // Skip the garbage collector's links in front of an object: they lead to other objects.
        let (before, links) = of_type.map_or((0, 0), |found| (found.before, found.links));
        self.words(at, before - links, block + 1);
        self.words(at + before, bytes.saturating_sub(before), block + 1);
    }

    /// Reads the memory of objects. It comes last: unlike objects, it may have remains of earlier contents in it.
    fn find_in_memory(&mut self) {
        while let Some((place, block)) = self.left.pop() {
            let (at, bytes) = match place {
                BlockIndex::Small(index) => self.pymalloc.place(index),
                BlockIndex::Large(index) => (self.large[index].at, self.large[index].bytes),
            };
            self.words(at, bytes, block);
        }
    }

    /// Marks blocks that these words refer to as memory of objects, unless they are objects themselves.
    fn words(&mut self, at: u64, bytes: u64, becomes: Block) {
        let memory = self.memory;
        for (_, word) in memory.words_in(at, at.saturating_add(bytes)) {
            self.word(word, becomes);
        }
    }

    fn word(&mut self, word: u64, becomes: Block) {
        if let Some(index) = self.pymalloc.containing(word) {
            if self.pymalloc.blocks[index] == LIVE {
                self.pymalloc.blocks[index] = becomes;
                self.left.push((BlockIndex::Small(index), becomes));
            }
            return;
        }
        let index = self
            .large
            .partition_point(|block| block.at + block.bytes <= word);
        if let Some(block) = self.large.get_mut(index)
            && block.at <= word
            && block.block == LIVE
        {
            block.block = becomes;
            self.left.push((BlockIndex::Large(index), becomes));
        }
    }
}
