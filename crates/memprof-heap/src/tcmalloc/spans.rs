//! Reads all spans by way of the tree of pages.

use std::collections::BTreeSet;

use super::super::chunks::ChunkKind;
use super::super::jemalloc::is_mapped;
use super::super::memory::Memory;
use super::super::spans::{Refusal, SpanMap, refuse};
use super::PAGE;
use super::tables::Tables;
use memprof_sys::residency::Vma;

/// Bits of a page's number that a leaf of the tree decodes, and the root.
const LEAF: u32 = 18;
const ROOT: u32 = 17;
/// Sizes of a leaf and of the root, in bytes.
const LEAF_BYTES: u64 = 8 << LEAF;
const ROOT_BYTES: u64 = 8 << ROOT;
/// Maximum number of entries of a leaf to examine for the addresses that it covers.
const TRIED: usize = 64;
/// Maximum number of candidates for a leaf.
const MAX_TRIES: usize = 1 << 16;

/// Offsets in the description of a span.
const LENGTH: u64 = 8;
const OBJECTS: u64 = 32;
const BITS: u64 = 40;
/// Size of a description, in bytes.
const DESCRIPTION: u64 = 48;
/// Size of the kernel's pages, in bytes: what is known of memory that contains descriptions.
const SMALL_PAGE: u64 = 4096;

/// A span.
#[derive(Debug)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
    /// Class of its blocks; 0 for a large block.
    class: usize,
    /// Size of its blocks, in bytes.
    pub size: u64,
    /// Its blocks; empty if the span is free.
    pub kinds: Vec<ChunkKind>,
}

/// All spans, by address.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub spans: Vec<Span>,
    /// Number of free blocks in the lists of spans, by class.
    pub free: Vec<u64>,
    /// Pages with the allocator's own structures.
    own: BTreeSet<u64>,
    /// The leaves, in no order.
    leaves: Vec<u64>,
}

/// Reads all spans.
pub(super) fn read(memory: &Memory, vmas: &[Vma], tables: &Tables) -> Result<Spans, Refusal> {
    let Some(root) = root(memory, tables) else {
        return refuse!("its tables were found, but not the tree of its pages");
    };
    let leaves: Vec<(u64, u64)> = entries(memory, root).collect();
    let mut read = Spans {
        free: vec![0; tables.sizes.len()],
        leaves: leaves.iter().map(|(_, leaf)| *leaf).collect(),
        ..Spans::default()
    };
    let mut next = 0;
    for (at, leaf) in leaves {
        let (first, end) = (((at - root) / 8) << LEAF, leaf + LEAF_BYTES);
        for (at, description) in memory.words_in(leaf, end).filter(|(_, word)| *word != 0) {
            let page = first + (at - leaf) / 8;
            // Pages within a span may have the description of an earlier one.
            if page < next {
                continue;
            }
            next = read.add(memory, tables, page, description)?;
        }
    }
    let outside = |span: &&Span| !is_mapped(vmas, span.start, span.end);
    match read.spans.iter().find(outside) {
        Some(span) => refuse!("the span at {:#x} is not mapped", span.start),
        None => Ok(read),
    }
}

/// The entries of a root that are in use: the address of each, and that of its leaf.
fn entries(memory: &Memory, root: u64) -> impl Iterator<Item = (u64, u64)> {
    memory
        .words_in(root, root + ROOT_BYTES)
        .filter(|(_, leaf)| *leaf != 0)
}

/// Whether all entries of a root may be leaves. Other data is easily taken for a root, and a damaged one may lead to the same memory
/// again and again.
fn has_leaves(memory: &Memory, root: u64) -> bool {
    let mut leaves: Vec<u64> = entries(memory, root).map(|(_, leaf)| leaf).collect();
    leaves.sort_unstable();
    let mut pairs = leaves.windows(2);
    leaves
        .iter()
        .all(|leaf| leaf % 8 == 0 && leaf.checked_add(LEAF_BYTES).is_some())
        && pairs.all(|pair| pair[1] - pair[0] >= LEAF_BYTES)
}

/// Address of the tree's root.
fn root(memory: &Memory, tables: &Tables) -> Option<u64> {
    let (start, end) = tables.data;
    let pointers = memory
        .words_in(start, end)
        .filter(|(_, word)| *word != 0 && word % 8 == 0);
    let leaves = pointers.filter(|(_, leaf)| {
        leaf.checked_add(LEAF_BYTES).is_some()
            && memory.runs_in(*leaf, leaf + LEAF_BYTES).next().is_some()
    });
    leaves.take(MAX_TRIES).find_map(|(at, leaf)| {
        let entries = memory.words_in(leaf, leaf + LEAF_BYTES).take(1 << LEAF);
        let mut pages = entries.filter(|(_, word)| *word != 0).take(TRIED);
        pages.find_map(|(entry, description)| {
            let page = memory.word(description)?;
            let is_its = page & ((1 << LEAF) - 1) == (entry - leaf) / 8 && page >> LEAF < 1 << ROOT;
            let length = memory.word(description.checked_add(LENGTH)?)?;
            let root = at.checked_sub(8 * (page >> LEAF))?;
            let is_within = root >= start && root + ROOT_BYTES <= end;
            let mapped = length > 0 && length < 1 << 35;
            (is_its && is_within && mapped && has_leaves(memory, root)).then_some(root)
        })
    })
}

impl Spans {
    /// Adds the span that begins with a page. Returns the number of the page behind it.
    fn add(
        &mut self,
        memory: &Memory,
        tables: &Tables,
        page: u64,
        description: u64,
    ) -> Result<u64, Refusal> {
        let start = page * PAGE;
        let wrong = || {
            Refusal(format!(
                "the description of the span at {start:#x} cannot be right"
            ))
        };
        description.checked_add(DESCRIPTION).ok_or_else(wrong)?;
        let word = |offset| memory.word(description + offset).ok_or_else(wrong);
        let bits = memory.half(description + BITS).ok_or_else(wrong)?;
        let (used, class, location) = (bits & 0xffff, (bits >> 16 & 0xff) as usize, bits >> 24 & 3);
        let next = word(LENGTH)?
            .checked_add(page)
            .filter(|next| *next > page && next >> (LEAF + ROOT) == 0);
        let next = next.ok_or_else(wrong)?;
        if word(0)? != page {
            return Err(wrong());
        }
        let end = next * PAGE;
        let mut span = Span {
            start,
            end,
            class,
            size: end - start,
            kinds: Vec::new(),
        };
        match (location, class) {
            (0, 0) => span.kinds.push(ChunkKind::Live),
            (0, _) => {
                let size = tables.sizes.get(class).copied().ok_or_else(wrong)?;
                if tables.pages.get(class) != Some(&(next - page)) {
                    return Err(wrong());
                }
                span.size = size;
                span.kinds
                    .resize(((end - start) / size) as usize, ChunkKind::Live);
                let free = span.mark(memory, word(OBJECTS)?, None, ChunkKind::Small)?;
                if free + u64::from(used) != span.kinds.len() as u64 {
                    return refuse!("the free blocks of the span at {start:#x} do not add up");
                }
                self.free[class] += free;
            }
            (1 | 2, _) => {}
            _ => return Err(wrong()),
        }
        self.spans.push(span);
        self.owns(description, DESCRIPTION);
        Ok(next)
    }

    /// Notes that a range has structures of the allocator.
    pub(super) fn owns(&mut self, start: u64, len: u64) {
        let first = start / SMALL_PAGE;
        self.own.extend(first..=(start + len - 1) / SMALL_PAGE);
    }

    /// Marks a block of a class, which must not be marked yet.
    pub(super) fn mark(&mut self, block: u64, class: usize, kind: ChunkKind) -> Option<()> {
        let index = self.spans.partition_point(|span| span.end <= block);
        let span = self
            .spans
            .get_mut(index)
            .filter(|span| span.start <= block && span.class == class)?;
        let index = span.index(block)?;
        let old = &mut span.kinds[index];
        (*old == ChunkKind::Live).then(|| *old = kind)
    }

    /// Whether an address lies in a span.
    pub(super) fn contain(&self, addr: u64) -> bool {
        let index = self.spans.partition_point(|span| span.end <= addr);
        self.spans.get(index).is_some_and(|span| span.start <= addr)
    }

    /// Describes all spans, and the memory with the allocator's own structures.
    pub(super) fn add_to(mut self, map: &mut SpanMap) -> Result<(), Refusal> {
        for leaf in std::mem::take(&mut self.leaves) {
            self.owns(leaf, LEAF_BYTES);
        }
        for page in &self.own {
            let at = page * SMALL_PAGE;
            if !self.contain(at) {
                map.add_own(at, at + SMALL_PAGE);
            }
        }
        map.spans = self.spans.len() as u64;
        for span in self.spans {
            match span.kinds.is_empty() {
                true => map.add_free(span.start, span.end),
                false => map.add(
                    (span.start, span.end),
                    span.start,
                    span.size,
                    span.kinds.into_iter(),
                )?,
            }
        }
        Ok(())
    }
}

impl Span {
    /// Index of the block that begins at an address.
    fn index(&self, block: u64) -> Option<usize> {
        let inside = block.checked_sub(self.start)?;
        let index = (inside / self.size) as usize;
        (inside.is_multiple_of(self.size) && index < self.kinds.len()).then_some(index)
    }

    /// Marks the blocks of the span's own list. Returns their number.
    fn mark(
        &mut self,
        memory: &Memory,
        head: u64,
        last: Option<u64>,
        kind: ChunkKind,
    ) -> Result<u64, Refusal> {
        let (mut block, mut count) = (head, 0);
        while block != 0 {
            let index = self
                .index(block)
                .filter(|index| self.kinds[*index] == ChunkKind::Live);
            let next = memory.word(block);
            let (Some(index), Some(next)) = (index, next) else {
                return refuse!(
                    "the list of free blocks of the span at {:#x} contains {block:#x}",
                    self.start
                );
            };
            self.kinds[index] = kind;
            count += 1;
            if last == Some(block) {
                break;
            }
            block = next;
        }
        Ok(count)
    }
}
