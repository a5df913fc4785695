//! jemalloc's heap, read from a copy of a process's memory without symbols.
//!
//! jemalloc knows all its memory as extents, consecutive pages: slabs with small regions of one size, large regions,
//! and those that are free. A tree has the description of each (`extents`) by its address (`tree`). It is found by
//! jemalloc's own blocks (`base`), in which its tables and descriptions are. Everything is checked: each page of the
//! tree leads to a description that says the same of it, extents are disjoint and lie in anonymous memory, the free
//! regions of each slab are as many as it counts. Then the caches of threads are looked for (`caches`), whose regions
//! must be of the right size and in no other cache. If a check fails, the heap is refused with the reason.
//!
//! Layouts: jemalloc 5.2 and 5.3, as its headers have them (`edata.h`, `rtree.h`, `cache_bin.h`), 64-bit with pages of
//! 4 KiB.

mod base;
mod caches;
mod classes;
mod extents;
mod layout;
mod regions;
mod report;
mod tree;

pub(crate) use base::Block;
pub(crate) use regions::{Extent, Region, Regions, State};
pub use report::{JemallocFigures, JemallocHeap};

use super::chunks::Kind;
use super::glibc;
use super::memory::{Run, overlapping};
use super::snapshot::Snapshot;
use memprof_sys::residency::Vma;
use tree::Tree;

/// Size of jemalloc's pages, in bytes.
const PAGE: u64 = 4096;

/// Why jemalloc's heap was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There are several, as when a library brings its own.
    #[error("the process has {0} jemalloc heaps; memprof reads one")]
    SeveralHeaps(usize),
    /// The tree was not found.
    #[error("its blocks were found, but not the tree of its extents")]
    NoTree,
    /// The tree says something else of a page than the description of its extent.
    #[error("the tree's entry for the page at {0:#x} contradicts the description of its extent")]
    Page(u64),
    /// An extent is described impossibly, or is just being changed.
    #[error("the description of the extent at {0:#x} cannot be right")]
    Extent(u64),
    /// A slab's free regions are not as many as it counts.
    #[error("the free regions of the slab that is described at {0:#x} do not add up")]
    Slab(u64),
    /// A thread's cache has something else than free regions.
    #[error("the thread's cache at {0:#x} does not fit the regions")]
    Cache(u64),
    /// An extent lies where glibc has chunks.
    #[error("the extent at {0:#x} overlaps glibc's heap")]
    Overlap(u64),
}

/// jemalloc's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    /// The name of the file that contains jemalloc.
    pub module: String,
    /// Extents and regions.
    pub regions: Regions,
    /// The blocks with jemalloc's own structures, by address.
    pub blocks: Vec<Block>,
    /// Number of threads' caches.
    pub caches: usize,
}

impl Heap {
    /// The ranges of extents and blocks, in address order.
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
                State::Active => &mut figures.active,
                State::Dirty => &mut figures.dirty,
                State::Muzzy => &mut figures.muzzy,
                State::Retained => &mut figures.retained,
            } += size;
            let kinds = &self.regions.kinds[extent.first..][..extent.count as usize];
            let taken = kinds.iter().filter(|kind| **kind != Kind::Small).count() as u64;
            figures.allocated += taken * extent.size;
            let cached = kinds.iter().filter(|kind| **kind == Kind::Tcache).count() as u64;
            figures.cached += cached * extent.size;
        }
        let metadata = self.blocks.iter();
        figures.metadata = metadata
            .map(|b| b.used.next_multiple_of(PAGE) - b.start)
            .sum();
        figures.resident = figures.active + figures.dirty + figures.metadata;
        figures
    }
}

/// Reads the heap, which must not overlap glibc's. `None` if there is none.
///
/// # Errors
/// Those of [`read`], and [`Refusal::Overlap`].
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
/// Something does not fit together: the process was stopped while jemalloc changed it, it is damaged, or it is of a
/// release with another layout.
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
    }))
}

/// Whether a mapping may be an allocator's.
fn is_anonymous(vma: &Vma) -> bool {
    vma.ino == 0 && !vma.perms.shared && !vma.name.starts_with("[stack")
}

/// Whether a range lies in anonymous memory as a whole.
fn is_mapped(vmas: &[Vma], start: u64, end: u64) -> bool {
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
