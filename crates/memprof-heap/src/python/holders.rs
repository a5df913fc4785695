//! Who holds Python's objects: the nearest object that is not a list, a dict or another collection, found by following references
//! backwards.
//!
//! Each block has one referrer: a module wins over other objects, and these over functions, frames and the like, which refer to
//! everything that their code can see. Among equals, the first one in memory wins.

use std::cmp::Reverse;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::super::memory::Memory;
use super::head::Head;
use super::objects::{Large, TYPED};
use super::types::Type;
use super::{Block, PythonMemory};

/// Maximum number of references to follow backwards.
const MAX_HOPS: u32 = 16;
/// Offsets in a list (`PyListObject`), after its head.
const LIST_SIZE: u64 = 0;
const LIST_ITEMS: u64 = 8;
/// Maximum number of holders to list for a row.
const LISTED: usize = 3;
/// Maximum number of sums.
const MAX_SUMS: usize = 1 << 18;
/// No referrer is known.
const NONE: u32 = u32::MAX;
/// Collections, whose own holder is more informative.
const COLLECTIONS: [&str; 9] = [
    "dict",
    "list",
    "tuple",
    "set",
    "frozenset",
    "cell",
    "collections.deque",
    "collections.defaultdict",
    "collections.OrderedDict",
];
/// Objects without references. Their blocks may have remains of earlier ones behind them.
const NO_REFERENCES: [&str; 6] = ["int", "str", "bytes", "float", "complex", "bool"];
/// Objects that refer to whatever their code can see.
const INFORM_LITTLE: [&str; 8] = [
    "function",
    "frame",
    "code",
    "method",
    "generator",
    "coroutine",
    "traceback",
    "weakref",
];

/// A type whose objects hold those of a row.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "PyHolder")]
pub struct PyHolder {
    /// Name of the type.
    #[serde(rename = "type")]
    pub name: String,
    /// Number of blocks of the row that its objects hold, directly or in collections.
    pub count: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// Number and bytes of blocks, by their kind and by the index of the type that holds them.
pub(super) type Holders = HashMap<(Block, u32), (u64, u64)>;

/// Finds who holds the blocks of pymalloc, and those of malloc in `large`.
pub(super) fn find(
    memory: &Memory,
    head: Head,
    types: &[Type],
    pymalloc: &PythonMemory,
    large: &[Large],
) -> Holders {
    let mut search = Search {
        memory,
        head,
        types,
        pymalloc,
        large,
        ranks: types.iter().map(rank).collect(),
        referrers: vec![NONE; pymalloc.blocks.len() + large.len()],
    };
    search.refer();
    search.sums()
}

/// The holders with the most bytes of blocks of these kinds, as names with their sums.
pub(super) fn largest(holders: &Holders, types: &[Type], kinds: &[Block]) -> Vec<PyHolder> {
    let mut sums: HashMap<&str, (u64, u64)> = HashMap::new();
    for ((_, holder), (count, bytes)) in
        holders.iter().filter(|((kind, _), _)| kinds.contains(kind))
    {
        let name = types.get(*holder as usize).map_or("", |of| &of.name);
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + count, sum.1 + bytes);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(name, (count, bytes))| (Reverse((*bytes, *count)), *name));
    let row = |(name, (count, bytes)): (&str, _)| PyHolder {
        name: name.to_owned(),
        count,
        bytes,
    };
    rows.into_iter().map(row).take(LISTED).collect()
}

/// How much it says that objects of a type refer to something.
fn rank(of: &Type) -> u8 {
    match of.name.as_str() {
        "module" => 3,
        name if NO_REFERENCES.contains(&name) => 0,
        name if INFORM_LITTLE.contains(&name) => 1,
        _ => 2,
    }
}

/// Blocks have indexes: first pymalloc's, then malloc's.
struct Search<'a> {
    memory: &'a Memory,
    head: Head,
    types: &'a [Type],
    pymalloc: &'a PythonMemory,
    large: &'a [Large],
    /// The rank of each type.
    ranks: Vec<u8>,
    /// For each block, the index of the block that refers to it.
    referrers: Vec<u32>,
}

impl Search<'_> {
    /// The kind of a block.
    fn kind(&self, index: u32) -> Option<Block> {
        let small = self.pymalloc.blocks.len();
        match (index as usize).checked_sub(small) {
            None => self.pymalloc.blocks.get(index as usize).copied(),
            Some(index) => self.large.get(index).map(|large| large.block),
        }
    }

    /// The index of a block's type, and whether it is an object rather than memory of one.
    fn type_of(&self, index: u32) -> Option<(u32, bool)> {
        let of = self.kind(index)?.checked_sub(TYPED)?;
        Some((of / 2, of.is_multiple_of(2)))
    }

    /// Index and start of the block that contains an address.
    fn containing(&self, address: u64) -> Option<(u32, u64)> {
        if let Some(index) = self.pymalloc.containing(address) {
            return Some((index as u32, self.pymalloc.place(index).0));
        }
        let end = |large: &Large| large.at + large.bytes;
        let index = self.large.partition_point(|large| end(large) <= address);
        let at = self.large.get(index)?.at;
        let index = (self.pymalloc.blocks.len() + index) as u32;
        (at <= address).then_some((index, at))
    }

    /// The size of a block, in bytes.
    fn bytes(&self, index: u32) -> u64 {
        match (index as usize).checked_sub(self.pymalloc.blocks.len()) {
            None => self.pymalloc.place(index as usize).1,
            Some(index) => self.large.get(index).map_or(0, |large| large.bytes),
        }
    }

    /// Finds the referrer of each block.
    fn refer(&mut self) {
        let pymalloc = self.pymalloc;
        for pool in &pymalloc.pools {
            for index in pool.first..pool.first + pool.count {
                self.block(index as u32, pool.block_at(index), pool.block);
            }
        }
        let first = pymalloc.blocks.len();
        for (index, large) in self.large.iter().enumerate() {
            self.block((first + index) as u32, large.at, large.bytes);
        }
    }

    fn block(&mut self, index: u32, at: u64, bytes: u64) {
        let Some((of, is_object)) = self.type_of(index) else {
            return;
        };
        let Some(of) = self.types.get(of as usize) else {
            return;
        };
        let is_list = of.name == "list";
        let (before, links) = match is_object {
            true => (of.before, of.links),
            // Behind the items of a list may be remains of earlier ones, so they are read from the list.
            false if is_list => return,
            false => (0, 0),
        };
        // Skip the garbage collector's links in front of an object: they lead to other objects.
        let (own, end) = (at.saturating_add(before), at.saturating_add(bytes));
        for (start, end) in [(at, own.saturating_sub(links)), (own, end)] {
            self.words(index, start, end);
        }
        if is_list {
            self.items(own);
        }
    }

    /// Reads the items of a list.
    fn items(&mut self, list: u64) {
        let field = |at| self.memory.word(list.checked_add(self.head.size() + at)?);
        let (Some(count), Some(items)) = (field(LIST_SIZE), field(LIST_ITEMS)) else {
            return;
        };
        let end = count.checked_mul(8).and_then(|len| items.checked_add(len));
        let block = self.containing(items).filter(|(_, at)| *at == items);
        let is_memory = |(index, _): &(u32, u64)| self.type_of(*index).is_some_and(|(_, own)| !own);
        if let (Some((index, _)), Some(end)) = (block.filter(is_memory), end) {
            self.words(
                index,
                items,
                end.min(items.saturating_add(self.bytes(index))),
            );
        }
    }

    fn words(&mut self, index: u32, start: u64, end: u64) {
        let memory = self.memory;
        for (_, word) in memory.words_in(start, end.max(start)) {
            self.word(word, index);
        }
    }

    /// Notes a reference, if it leads to an object, or to memory of the object that has it.
    fn word(&mut self, word: u64, from: u32) {
        let Some((to, at)) = self.containing(word).filter(|(to, _)| *to != from) else {
            return;
        };
        let (Some((of, is_object)), Some((own, _))) = (self.type_of(to), self.type_of(from)) else {
            return;
        };
        let before = self.types.get(of as usize).map_or(0, |of| of.before);
        let known = self.referrers[to as usize];
        let refers = match is_object {
            true => word == at + before && self.ranks[own as usize] > self.rank_of(known),
            false => of == own && known == NONE,
        };
        if refers {
            self.referrers[to as usize] = from;
        }
    }

    fn rank_of(&self, index: u32) -> u8 {
        let of = self.type_of(index);
        of.map_or(0, |(of, _)| self.ranks[of as usize])
    }

    /// The type of the nearest object that is not a collection.
    fn holder(&self, index: u32) -> Option<u32> {
        let mut at = index;
        for _ in 0..MAX_HOPS {
            let from = *self.referrers.get(at as usize)?;
            let (of, is_object) = self.type_of(from)?;
            // Memory of an object is held by the holder of the object.
            let is_own = at == index && !self.type_of(at)?.1;
            let name = self.types.get(of as usize)?.name.as_str();
            if is_object && !is_own && !COLLECTIONS.contains(&name) {
                return Some(of);
            }
            at = from;
        }
        None
    }

    fn sums(&self) -> Holders {
        let mut sums = Holders::new();
        let small = self.pymalloc.live().map(|(_, bytes, index)| (index, bytes));
        let first = self.pymalloc.blocks.len();
        let large = self.large.iter().enumerate();
        let large = large.map(|(index, large)| (first + index, large.bytes));
        for (index, bytes) in small.chain(large) {
            let index = index as u32;
            let (Some(kind), Some(holder)) = (self.kind(index), self.holder(index)) else {
                continue;
            };
            if sums.len() < MAX_SUMS || sums.contains_key(&(kind, holder)) {
                let sum = sums.entry((kind, holder)).or_default();
                *sum = (sum.0 + 1, sum.1 + bytes);
            }
        }
        sums
    }
}
