//! The blocks that jemalloc keeps its own structures in. Each begins with its size and a description of what is unused
//! at its end: where that ends, the block does.

use super::super::memory::Memory;
use super::layout::{ADDRESS, Layout, SIZE};
use super::{classes, is_anonymous};
use memprof_sys::residency::Vma;

/// Alignment of blocks, in bytes.
const ALIGN: u64 = 2 << 20;
/// Offset of the description, and the size of a block's header.
const UNUSED: u64 = 16;
const HEADER: u64 = 144;
/// The arena of what belongs to none.
const NO_ARENA: u16 = 0xfff;

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The first address that is unused.
    pub used: u64,
}

/// All blocks, by address.
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
    // (A block may extend over several mappings.)
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

/// Whether `len` bytes at an address lie in a block, behind its header.
pub(super) fn contain(blocks: &[Block], addr: u64, len: u64) -> bool {
    let index = blocks.partition_point(|block| block.end <= addr);
    blocks.get(index).is_some_and(|block| {
        let inside = addr.checked_sub(block.start);
        inside.is_some_and(|at| at >= HEADER) && len <= block.end - addr
    })
}
