//! Adds the bytes of jemalloc's heap to the ledger, by kind.

use super::super::by_stack::Owner;
use super::super::chunks::ChunkKind;
use super::super::jemalloc::{Block, Extent, ExtentState, Heap};
use super::super::report::HeapRegion;
use super::Ledger;

impl Ledger<'_> {
    /// Adds jemalloc's extents and blocks, in address order.
    pub(super) fn add_jemalloc(&mut self, heap: &Heap) {
        let mut blocks = heap.blocks.iter().peekable();
        for extent in &heap.regions.extents {
            while let Some(block) = blocks.next_if(|block| block.start < extent.start) {
                self.add_block(block);
            }
            self.arenas.begin_jemalloc(extent.arena);
            self.add_extent(extent, &heap.regions.kinds[extent.first..]);
        }
        blocks.for_each(|block| self.add_block(block));
        self.finish_pages();
    }

    fn add_block(&mut self, block: &Block) {
        self.arenas.begin_jemalloc_own();
        self.add((block.start, block.end), HeapRegion::JemallocOverhead, None);
    }

    fn add_extent(&mut self, extent: &Extent, kinds: &[ChunkKind]) {
        let free = match extent.state {
            ExtentState::Active => None,
            ExtentState::Dirty => Some(HeapRegion::JemallocDirty),
            ExtentState::Muzzy => Some(HeapRegion::JemallocMuzzy),
            ExtentState::Retained => Some(HeapRegion::JemallocRetained),
            ExtentState::Own => Some(HeapRegion::JemallocOverhead),
        };
        if let Some(what) = free {
            self.add((extent.start, extent.end), what, None);
            return;
        }
        self.add(
            (extent.start, extent.at),
            HeapRegion::JemallocOverhead,
            None,
        );
        let mut at = extent.at;
        for kind in &kinds[..extent.count as usize] {
            let what = match kind {
                ChunkKind::Small => HeapRegion::JemallocFree,
                ChunkKind::Tcache => HeapRegion::JemallocCache,
                ChunkKind::Own => HeapRegion::JemallocOverhead,
                _ if extent.count == 1 => HeapRegion::JemallocLarge,
                _ => HeapRegion::JemallocLive,
            };
            let class = (!what.is_overhead()).then(|| self.sizes.add(extent.size, what.is_live()));
            self.rows[what as usize].0 += u64::from(class.is_some());
            self.arenas.add(what, u64::from(class.is_some()), 0, 0);
            let end = at + extent.size;
            if what.is_live() {
                self.begin_object(Owner::Jemalloc, *kind, extent.size, (at, end));
            }
            let resident = self.add((at, end), what, class);
            self.end_object();
            if what.is_live() {
                self.rank(at, end, resident);
            }
            at = end;
        }
        self.add((at, extent.end), HeapRegion::JemallocOverhead, None);
    }
}
