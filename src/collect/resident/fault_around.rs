//! Pages without a record of their own that one fault mapped around itself. They get the stack of the nearest record.

use std::ops::Range;

use super::{Join, Owner, Record, Sink, recorded};
use crate::probe::source::resident_pages::PageLedger;
use crate::probe::wire::{CHUNK_PAGES, STACK_NONE, STACK_UNRECORDED, STACK_UNWALKED};
use memprof_sys::ids::Addr;
use memprof_sys::residency::{PageKind, PageRun, Vma};

/// Number of pages that one fault on a file or on shared memory maps around itself (the default `fault_around_bytes`, 64 KiB).
const FAULT_AROUND_PAGES: usize = 16;

impl<L: PageLedger> Join<'_, L> {
    pub(super) fn add_each(
        &mut self,
        vma: &Vma,
        run: PageRun,
        window: usize,
        fallback: Owner,
        to: &mut Sink<'_>,
    ) {
        let page = self.space.page_size;
        for n in 0..run.len() / page {
            let start = run.start.0 + n * page;
            let part = PageRun {
                start: Addr(start),
                end: Addr(start + page),
                ..run
            };
            let near = self.nearest(vma, start, window);
            if let Some((record, origin)) = near.filter(|(record, _)| self.brought_in(run, *record))
            {
                self.add_walked(part, (record, origin), (0, 1));
                to.add(vma, recorded(record.stack), part);
                continue;
            }
            // A fault on a large folio of a file maps the whole folio, even beyond the fault-around window.
            let near = near.or_else(|| match run.kind {
                PageKind::File => self.nearest(vma, start, CHUNK_PAGES),
                _ => None,
            });
            let owner = near.map_or(fallback, |(record, _)| recorded(record.stack));
            match self.space.sampled {
                true => self.add_unwalked(part, owner, to),
                false => to.add(vma, owner, part),
            }
        }
    }

    /// Whether pages without a record came in by a neighbour's fault. If some faults were not walked, the pages may have had faults
    /// of their own.
    fn brought_in(&self, run: PageRun, by: Record) -> bool {
        match (run.huge, run.kind) {
            _ if !self.space.sampled => true,
            // khugepaged may have assembled the huge page from small pages.
            (true, PageKind::Anon) => false,
            (true, _) | (_, PageKind::Hugetlb) => true,
            (false, _) => !by.write,
        }
    }

    /// The record nearest to a page, within its aligned window and its mapping, and its origin.
    fn nearest(&self, vma: &Vma, addr: u64, window: usize) -> Option<(Record, u8)> {
        let page = self.space.page_size;
        let index = (addr / page) as usize % CHUNK_PAGES;
        let chunk_start = addr - index as u64 * page;
        let inside = |i: usize| {
            let a = chunk_start + i as u64 * page;
            a >= vma.start.0 && a < vma.end.0
        };
        let Range { start, end } = aligned(index, window);
        (1..window).find_map(|distance| {
            let below = index.checked_sub(distance).filter(|i| *i >= start);
            let above = Some(index + distance).filter(|i| *i < end);
            let near = [below, above].into_iter().flatten();
            let mut near = near
                .filter(|i| inside(*i))
                .map(|i| (self.loaded.records[i], self.loaded.origins[i]));
            let has_stack =
                |entry: u32| !matches!(entry, STACK_NONE | STACK_UNWALKED | STACK_UNRECORDED);
            let found = near.find(|(entry, _)| has_stack(*entry));
            found.map(|(entry, origin)| (Record::from_entry(entry), origin))
        })
    }
}

fn aligned(index: usize, window: usize) -> Range<usize> {
    let start = index - index % window;
    start..start + window
}

/// Number of pages that one fault can map: a huge page (even if khugepaged assembled it from small pages, and in hugetlbfs), or the
/// fault-around window of files and shared memory. Each small anonymous page has its own fault.
pub(super) fn neighbour_window(run: &PageRun) -> Option<usize> {
    match run.kind {
        _ if run.huge => Some(CHUNK_PAGES),
        PageKind::File | PageKind::Shmem => Some(FAULT_AROUND_PAGES),
        PageKind::Hugetlb => Some(CHUNK_PAGES),
        PageKind::Anon | PageKind::Swap => None,
    }
}
