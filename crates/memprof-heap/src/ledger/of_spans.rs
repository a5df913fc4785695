//! Adds the bytes of the heaps of further allocators to the ledger, by kind.

use super::super::by_stack::Owner;
use super::super::chunks::ChunkKind;
use super::super::memory::overlapping;
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

    /// Adds the extents of managed heaps, which are not part of the heap that is searched.
    pub(super) fn add_managed(&mut self, spans: &Spans) {
        self.next = 0;
        for extent in &spans.regions.extents {
            self.arenas.begin_allocator(spans.name(extent));
            let kinds = &spans.regions.kinds[extent.first..][..extent.count as usize];
            let rest = match extent.state {
                ExtentState::Active | ExtentState::Own => HeapRegion::ManagedOverhead,
                _ => HeapRegion::ManagedPages,
            };
            let mut at = extent.at;
            for alike in kinds.chunk_by(|a, b| a.is_live() == b.is_live()) {
                let what = match alike[0].is_live() {
                    true => HeapRegion::ManagedLive,
                    false => HeapRegion::ManagedFree,
                };
                let count = alike.len() as u64;
                let end = at + extent.size * count;
                self.add_outside((at, end), what, count);
                at = end;
            }
            self.add_outside((at, extent.end), rest, 0);
        }
        self.ranges.extend(spans.ranges());
        self.ranges.sort_by_key(|range| range.start);
    }

    /// Adds bytes that are in no size class and on no page of the heap. Addresses must ascend.
    fn add_outside(&mut self, (start, end): (u64, u64), what: HeapRegion, count: u64) {
        let behind = self.pages[self.next..]
            .iter()
            .take_while(|run| run.end <= start);
        self.next += behind.count();
        let runs = || overlapping(&self.pages[self.next..], start, end);
        let resident = runs().map(|run| run.len()).sum();
        self.cells.add((start, end), what, runs());
        self.zero.add((start, end), what);
        let row = &mut self.rows[what as usize];
        *row = (row.0 + count, row.1 + (end - start), row.2 + resident);
        self.arenas.add(what, count, end - start, resident);
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
