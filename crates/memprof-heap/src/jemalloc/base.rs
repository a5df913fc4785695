//! The blocks with jemalloc's own structures. Each begins with its size and a descriptor of the unused space at its
//! end; both must end at the same address.

use super::super::memory::Memory;
use super::layout::{ADDRESS, Layout, SIZE};
use super::{classes, is_anonymous};
use memprof_sys::residency::Vma;

/// Alignment of blocks, in bytes.
const ALIGN: u64 = 2 << 20;
/// Offset of that descriptor, and size of a block's header, in bytes.
const UNUSED: u64 = 16;
const HEADER: u64 = 144;
/// Arena index of blocks, which belong to no arena.
const NO_ARENA: u16 = 0xfff;

/// A block of jemalloc's own structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First address.
    pub start: u64,
    /// End of the block.
    pub end: u64,
    /// Start of the unused space.
    pub used: u64,
}

/// Finds all blocks, by address.
pub(super) fn find(memory: &Memory, vmas: &[Vma], layout: &Layout) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    for vma in vmas.iter().filter(|vma| is_anonymous(vma)) {
        for run in memory.runs_in(vma.start.0, vma.end.0) {
            let mut at = run.start.next_multiple_of(ALIGN);
            while at < run.end {
                let block = block(memory, layout, at);
                if let Some(block) = block.filter(|b| super::is_mapped(vmas, b.start, b.end)) {
                    found.push(block);
                    at = block.end;
                } else {
                    at += ALIGN;
                }
            }
        }
    }
    // A block may span several mappings, and is found in each.
    found.dedup_by(|next, block| next.start < block.end);
    found
}

fn block(memory: &Memory, layout: &Layout, at: u64) -> Option<Block> {
    let size = memory.word(at)?;
    let bits = memory.word(at + UNUSED)?;
    let unused = memory.word(at + UNUSED + ADDRESS)?;
    let end = at.checked_add(size)?;
    let fits = size > 0
        && size.is_multiple_of(ALIGN)
        && layout.arena(bits) == NO_ARENA
        && layout.class(bits) == classes::COUNT
        && !layout.is_slab(bits)
        && layout.state(bits) == 0
        && unused >= at + HEADER
        && unused.checked_add(memory.word(at + UNUSED + SIZE)?)? == end;
    fits.then_some(Block {
        start: at,
        end,
        used: unused,
    })
}

/// Whether `len` bytes at an address lie in a block, after its header.
pub(super) fn contain(blocks: &[Block], addr: u64, len: u64) -> bool {
    let index = blocks.partition_point(|block| block.end <= addr);
    blocks.get(index).is_some_and(|block| {
        let inside = addr.checked_sub(block.start);
        inside.is_some_and(|at| at >= HEADER) && len <= block.end - addr
    })
}
