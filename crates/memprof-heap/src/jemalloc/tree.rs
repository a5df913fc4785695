//! The radix tree of all extents, by page address. Its root table is in the data of the module that contains
//! jemalloc; the other tables are in jemalloc's own blocks. Tables of the lowest level have one element per page.

use super::super::memory::Memory;
use super::super::module_data::module_data;
use super::base::{self, Block};
use super::layout::{ADDRESS, DESCRIPTION, Layout, Shape};
use memprof_sys::residency::Vma;

/// Maximum number of elements of a table to examine for the addresses that it covers.
const TRIED: usize = 64;
/// Maximum number of words to examine in search of the tree.
const MAX_WORDS: u64 = 1 << 28;
/// Alignment of tables, in bytes.
const TABLE_ALIGN: u64 = 64;
/// Maximum number of tables: covers all 48-bit addresses on the lowest level.
const MAX_TABLES: usize = 1 << 20;
/// Access to a tree in the memory copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree<'a> {
    pub memory: &'a Memory,
    pub layout: &'a Layout,
    pub shape: Shape,
    pub blocks: &'a [Block],
}

/// Finds the roots of all trees, each with the name of its module.
pub(super) fn find(tree: &Tree, vmas: &[Vma]) -> Vec<(u64, String)> {
    let mut found: Vec<(u64, String)> = Vec::new();
    let mut left = MAX_WORDS;
    let below = tree.shape.table(1);
    for (start, end, name) in module_data(vmas) {
        for run in tree.memory.runs_in(start, end) {
            let bytes = tree.memory.from(run.start).unwrap_or_default();
            let words = bytes[..bytes.len().min(run.len() as usize)]
                .as_chunks::<8>()
                .0;
            for (index, word) in words.iter().enumerate() {
                let word = u64::from_le_bytes(*word);
                if !base::contain(tree.blocks, word, below) {
                    continue;
                }
                let at = run.start + 8 * index as u64;
                let Some(example) = tree.example(1, word, &mut left) else {
                    continue;
                };
                let Some(root) = at.checked_sub(8 * tree.shape.index(0, example)) else {
                    continue;
                };
                let is_within = root >= start && root + tree.shape.table(0) <= end;
                if is_within
                    && found.iter().all(|(known, _)| *known != root)
                    && tree.tables(root).is_some()
                {
                    found.push((root, name.to_owned()));
                }
            }
        }
    }
    found
}

impl Tree<'_> {
    /// Address of an extent that a table below the root leads to. `None` if it is no table.
    fn example(&self, level: u32, table: u64, left: &mut u64) -> Option<u64> {
        let is_lowest = level + 1 == self.shape.levels;
        let mut tried = 0;
        let all: Vec<_> = {
            let some = self
                .entries(level, table)
                .inspect(|_| *left = left.saturating_sub(1));
            let filled = some.filter(|(_, word, _)| *word != 0);
            filled.take(TRIED).collect()
        };
        for (index, word, second) in all {
            if *left == 0 {
                return None;
            }
            let example = if is_lowest {
                let description = self.layout.element(&self.shape, word, second).description;
                if description == 0 {
                    continue;
                }
                if !base::contain(self.blocks, description, DESCRIPTION) {
                    return None;
                }
                self.memory.word(description + ADDRESS)
            } else {
                if !base::contain(self.blocks, word, self.shape.table(level + 1)) {
                    return None;
                }
                self.example(level + 1, word, left)
            };
            // The first page of an extent is in the table for its address; later pages may be in the next table.
            let fits = |addr: &u64| self.shape.index(level, *addr) == index;
            if let Some(example) = example.filter(fits) {
                return Some(example);
            }
            tried += 1;
            if tried > TRIED {
                return None;
            }
        }
        None
    }

    /// The copied entries of a table: index, first word, second word.
    pub(super) fn entries(&self, level: u32, table: u64) -> impl Iterator<Item = (u64, u64, u64)> {
        let (size, entry) = (self.shape.table(level), self.shape.entry(level));
        let memory = self.memory;
        let runs = memory.runs_in(table, table.saturating_add(size));
        runs.flat_map(move |run| {
            let bytes = memory.from(run.start).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(run.len() as usize)];
            let first = (run.start - table) / entry;
            let word = |bytes: &[u8]| {
                bytes
                    .first_chunk()
                    .map_or(0, |word| u64::from_le_bytes(*word))
            };
            let words = bytes.chunks_exact(entry as usize);
            let words = words.map(move |bytes| (word(bytes), bytes.get(8..).map_or(0, word)));
            (first..)
                .zip(words)
                .map(|(index, (word, second))| (index, word, second))
        })
    }

    /// The tables of the lowest level, each with the first address that it covers. `None` if an entry leads to no
    /// table.
    pub(super) fn tables(&self, root: u64) -> Option<Vec<(u64, u64)>> {
        let mut tables = vec![(0, root)];
        for level in 0..self.shape.levels - 1 {
            let mut below = Vec::new();
            for (first, table) in tables {
                for (index, word, _) in self.entries(level, table).filter(|entry| entry.1 != 0) {
                    let first = self.shape.address(level, first, index);
                    let size = self.shape.table(level + 1);
                    let fits = word.is_multiple_of(TABLE_ALIGN)
                        && first < self.shape.end()
                        && base::contain(self.blocks, word, size)
                        && below.len() < MAX_TABLES;
                    if !fits {
                        return None;
                    }
                    below.push((first, word));
                }
            }
            // Tables must not overlap: nothing is read twice.
            let size = self.shape.table(level + 1);
            let mut places: Vec<u64> = below.iter().map(|(_, table)| *table).collect();
            places.sort_unstable();
            if places.windows(2).any(|pair| pair[0] + size > pair[1]) {
                return None;
            }
            tables = below;
        }
        (!tables.is_empty()).then_some(tables)
    }
}
