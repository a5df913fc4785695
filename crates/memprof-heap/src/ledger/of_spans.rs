//! Adds the bytes of the heaps of further allocators to the ledger, by kind.

use super::super::by_stack::Owner;
use super::super::chunks::ChunkKind;
use super::super::regions::{Extent, ExtentState};
use super::super::report::HeapRegion;
use super::super::spans::Spans;
use super::Ledger;

impl Ledger<'_> {
    /// Adds all extents, in address order.
    pub(super) fn add_spans(&mut self, spans: &Spans) {
        for extent in &spans.regions.extents {
            self.arenas.begin_allocator(spans.name(extent));
            self.add_span(extent, &spans.regions.kinds[extent.first..]);
        }
        self.finish_pages();
    }

    fn add_span(&mut self, extent: &Extent, kinds: &[ChunkKind]) {
        let whole = match extent.state {
            ExtentState::Active => None,
            ExtentState::Own => Some(HeapRegion::SpanOverhead),
            ExtentState::Dirty | ExtentState::Muzzy | ExtentState::Retained => {
                Some(HeapRegion::SpanPages)
            }
        };
        if let Some(what) = whole {
            self.add((extent.start, extent.end), what, None);
            return;
        }
        self.add((extent.start, extent.at), HeapRegion::SpanOverhead, None);
        let mut at = extent.at;
        for kind in &kinds[..extent.count as usize] {
            let what = match kind {
                ChunkKind::Small => HeapRegion::SpanFree,
                ChunkKind::Tcache => HeapRegion::SpanCache,
                ChunkKind::Own => HeapRegion::SpanOverhead,
                _ if extent.count == 1 => HeapRegion::SpanLarge,
                _ => HeapRegion::SpanLive,
            };
            let class = (!what.is_overhead()).then(|| self.sizes.add(extent.size, what.is_live()));
            self.rows[what as usize].0 += u64::from(class.is_some());
            self.arenas.add(what, u64::from(class.is_some()), 0, 0);
            let end = at + extent.size;
            if what.is_live() {
                self.begin_object(Owner::Spans, *kind, extent.size, (at, end));
            }
            let resident = self.add((at, end), what, class);
            self.end_object();
            if what.is_live() {
                self.rank(at, end, resident);
            }
            at = end;
        }
        self.add((at, extent.end), HeapRegion::SpanOverhead, None);
    }
}
