//! jemalloc's heap, read from a copy of a process's memory without symbols.
//!
//! jemalloc divides all its memory into extents of consecutive pages: slabs with small regions of one size, large
//! regions, and free extents. A radix tree maps each page to the descriptor of its extent (`tree`, `extents`). The
//! tree is found by way of jemalloc's own blocks (`base`), which contain its tables and the descriptors.
//!
//! Every structure is verified: each page's entry in the tree matches the descriptor that it leads to, extents are
//! disjoint and lie in anonymous memory, and the number of free regions in each slab equals its counter. Then the
//! thread caches are read (`caches`): their regions must have the right size and be in no other cache. If a check
//! fails, the heap is refused with the reason.
//!
//! Layouts: jemalloc 5.2 and 5.3, according to their headers (`edata.h`, `rtree.h`, `cache_bin.h`), 64-bit with pages
//! of 4 KiB.

mod base;
mod caches;
mod classes;
mod extents;
mod layout;
mod report;
mod tree;

pub(crate) use base::Block;
pub use report::{JemallocFigures, JemallocHeap};

pub(crate) use super::regions::{Extent, ExtentState, Region, Regions};

use super::chunks::ChunkKind;
use super::glibc;
use super::memory::{Run, overlapping};
use super::snapshot::Snapshot;
use memprof_sys::residency::Vma;
use tree::Tree;

/// Size of jemalloc's pages, in bytes.
const PAGE: u64 = 4096;

/// Why jemalloc's heap could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The process has several jemalloc heaps, for example because a library contains its own.
    #[error("the process has {0} jemalloc heaps; memprof reads one")]
    SeveralHeaps(usize),
    /// The tree of extents was not found.
    #[error("its blocks were found, but not the tree of its extents")]
    NoTree,
    /// The tree's entry for a page contradicts the descriptor of its extent.
    #[error("the tree's entry for the page at {0:#x} contradicts the description of its extent")]
    Page(u64),
    /// The descriptor of an extent is impossible, or is being changed.
    #[error("the description of the extent at {0:#x} cannot be right")]
    Extent(u64),
    /// The number of free regions in a slab differs from its counter.
    #[error("the free regions of the slab that is described at {0:#x} do not add up")]
    Slab(u64),
    /// A thread cache contains something other than free regions.
    #[error("the thread's cache at {0:#x} does not fit the regions")]
    Cache(u64),
    /// An extent overlaps glibc's chunks.
    #[error("the extent at {0:#x} overlaps glibc's heap")]
    Overlap(u64),
}

/// jemalloc's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Name of the file that contains jemalloc.
    pub module: String,
    pub regions: Regions,
    /// The blocks with jemalloc's own structures, by address.
    pub blocks: Vec<Block>,
    /// Number of thread caches.
    pub caches: usize,
    /// Whether its statistics count muzzy pages as resident.
    pub counts_muzzy: bool,
}

impl Heap {
    /// The address ranges of extents and blocks, in address order.
    pub(crate) fn ranges(&self) -> Vec<Run> {
        let extents = self.regions.extents.iter().map(|e| (e.start, e.end));
        let blocks = self.blocks.iter().map(|block| (block.start, block.end));
        let mut ranges: Vec<Run> = Vec::new();
        let mut all: Vec<(u64, u64)> = extents.chain(blocks).collect();
        all.sort_unstable();
        for (start, end) in all {
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(Run {
                    start,
                    end,
                    resident: true,
                }),
            }
        }
        ranges
    }

    /// The figures of jemalloc's own statistics.
    pub(crate) fn figures(&self) -> JemallocFigures {
        let mut figures = JemallocFigures::default();
        for extent in &self.regions.extents {
            let size = extent.end - extent.start;
            *match extent.state {
                ExtentState::Active => &mut figures.active,
                ExtentState::Dirty => &mut figures.dirty,
                ExtentState::Muzzy => &mut figures.muzzy,
                ExtentState::Retained => &mut figures.retained,
                // Its own blocks are not among its extents.
                ExtentState::Own => continue,
            } += size;
            let kinds = &self.regions.kinds[extent.first..][..extent.count as usize];
            let taken = kinds
                .iter()
                .filter(|kind| **kind != ChunkKind::Small)
                .count() as u64;
            figures.allocated += taken * extent.size;
            let cached = kinds
                .iter()
                .filter(|kind| **kind == ChunkKind::Tcache)
                .count() as u64;
            figures.cached += cached * extent.size;
        }
        let metadata = self.blocks.iter();
        figures.metadata = metadata
            .map(|b| b.used.next_multiple_of(PAGE) - b.start)
            .sum();
        figures.resident = figures.active + figures.dirty + figures.metadata;
        if self.counts_muzzy {
            figures.resident += figures.muzzy;
        }
        figures
    }
}

/// Reads the heap and checks that it does not overlap glibc's. `None` if there is none.
///
/// # Errors
/// The errors of [`read`], and [`Refusal::Overlap`].
pub(crate) fn measure(
    snapshot: &Snapshot,
    glibc: Option<&glibc::Heap>,
) -> Result<Option<Heap>, Refusal> {
    let heap = read(snapshot)?;
    let theirs = glibc.map_or_else(Vec::new, glibc::Heap::ranges);
    let overlaps = |range: &Run| {
        overlapping(&theirs, range.start, range.end)
            .next()
            .is_some()
    };
    match heap.iter().flat_map(Heap::ranges).find(overlaps) {
        Some(range) => Err(Refusal::Overlap(range.start)),
        None => Ok(heap),
    }
}

/// Reads the heap. `None` if there is none.
///
/// # Errors
/// The structures are inconsistent: the process was stopped while jemalloc changed them, they are damaged, or the
/// release has another layout.
pub(crate) fn read(snapshot: &Snapshot) -> Result<Option<Heap>, Refusal> {
    let (memory, vmas) = (&snapshot.memory, &snapshot.vmas);
    let (mut trees, mut any) = (Vec::new(), false);
    for layout in layout::ALL {
        let blocks = base::find(memory, vmas, &layout);
        if blocks.is_empty() {
            continue;
        }
        any = true;
        for shape in layout::SHAPES {
            let tree = Tree {
                memory,
                layout: &layout,
                shape,
                blocks: &blocks,
            };
            let found = tree::find(&tree, vmas).into_iter();
            trees.extend(found.map(|found| (layout, shape, blocks.clone(), found)));
        }
    }
    let count = trees.len();
    let Some((layout, shape, blocks, (root, module))) = trees.pop() else {
        return if any { Err(Refusal::NoTree) } else { Ok(None) };
    };
    if count > 1 {
        return Err(Refusal::SeveralHeaps(count));
    }
    let tree = Tree {
        memory,
        layout: &layout,
        shape,
        blocks: &blocks,
    };
    let mut regions = extents::read(&tree, vmas, root)?;
    let in_block = |extent: &&Extent| {
        let index = blocks.partition_point(|block| block.end <= extent.start);
        blocks
            .get(index)
            .is_some_and(|block| block.start < extent.end)
    };
    if let Some(extent) = regions.extents.iter().find(in_block) {
        return Err(Refusal::Extent(extent.start));
    }
    regions.index();
    let caches = caches::read(memory, &snapshot.threads, &layout, &mut regions)?;
    Ok(Some(Heap {
        module,
        regions,
        blocks,
        caches,
        counts_muzzy: layout.caches == layout::Caches::Counts,
    }))
}

/// Whether a mapping may belong to an allocator.
pub(crate) fn is_anonymous(vma: &Vma) -> bool {
    vma.ino == 0 && !vma.perms.shared && !vma.name.starts_with("[stack")
}

/// Whether a whole range lies in anonymous memory.
pub(crate) fn is_mapped(vmas: &[Vma], start: u64, end: u64) -> bool {
    let first = vmas.partition_point(|vma| vma.end.0 <= start);
    let mut at = start;
    for vma in &vmas[first..] {
        if at >= end || vma.start.0 > at || !is_anonymous(vma) {
            break;
        }
        at = vma.end.0;
    }
    at >= end
}
