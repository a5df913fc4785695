//! Pages without a record of their own that take a neighbour's: what one fault maps around itself and, if not every
//! fault's stack was walked, the nearest recorded page of the mapping.

use std::ops::Range;

use super::{Gap, Join, Owner, PageLedger, Sink, add, recorded};
use crate::event::{Addr, StackId};
use crate::profile::MappedBytes;
use crate::residency::{PageKind, PageRun, Vma};
use crate::source::Totals;
use crate::wire::{CHUNK_PAGES, STACK_NONE, STACK_UNWALKED};

/// Pages that one fault on a file or on shared memory maps around itself (the default `fault_around_bytes`, 64 KiB).
const FAULT_AROUND_PAGES: usize = 16;

/// A page with a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) page: u64,
    pub(super) stack: u32,
}

impl<L: PageLedger> Join<'_, L> {
    /// Adds the pages of a mapping that waited for a record after them.
    pub fn end_mapping(&mut self, vma: &Vma, totals: &mut Totals, mapping: &mut MappedBytes) {
        let to = &mut Sink { totals, mapping };
        self.add_gap(None, PageKind::Anon, to);
        self.add_waiting(vma, None, to);
        self.last = None;
    }

    /// Notes the pages that wait between the last record and the next one, for the error of their owners.
    pub(super) fn add_gap(&mut self, next: Option<u32>, kind: PageKind, to: &mut Sink<'_>) {
        if !self.space.sampled || (self.last.is_none() && next.is_none()) {
            return;
        }
        let waiting: u64 = self.waiting.iter().map(|(run, _)| run.len()).sum();
        let gap = Gap {
            stacks: [self.last.map(|last| last.stack), next].map(|id| id.map(StackId)),
            kind: self.waiting.first().map_or(kind, |(run, _)| run.kind),
            pages: waiting / self.space.page_size,
        };
        match next {
            Some(_) => self.gaps.add(gap, &mut to.totals.borders),
            None => self.gaps.end(gap, &mut to.totals.borders),
        }
    }

    /// Notes recorded pages of one stack. (One fault brought in a whole huge page.)
    pub(super) fn add_same(&mut self, stack: u32, run: PageRun, to: &mut Sink<'_>) {
        if self.space.sampled && !run.huge {
            let more = run.len() / self.space.page_size - 1;
            let borders = &mut to.totals.borders;
            self.gaps.add_same(StackId(stack), run.kind, more, borders);
        }
    }

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
            let near = |window| self.nearest(vma, start, window);
            // A fault on a large folio of a file maps the whole folio, even beyond the fault-around window.
            let found = near(window).or_else(|| match run.kind {
                PageKind::File => near(CHUNK_PAGES),
                _ => None,
            });
            match found {
                Some(stack) => add(to, vma, recorded(stack), part),
                None if self.space.sampled => self.wait(part, fallback),
                None => add(to, vma, fallback, part),
            }
        }
    }

    /// The record nearest to a page, within its aligned window and its mapping.
    fn nearest(&self, vma: &Vma, addr: u64, window: usize) -> Option<u32> {
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
            [below, above]
                .into_iter()
                .flatten()
                .filter(|i| inside(*i))
                .map(|i| self.loaded.records[i])
                .find(|id| *id != STACK_NONE && *id != STACK_UNWALKED)
        })
    }

    /// Has a run wait for the next record of its mapping.
    pub(super) fn wait(&mut self, run: PageRun, fallback: Owner) {
        match self.waiting.last_mut() {
            Some((last, owner))
                if *owner == fallback
                    && last.end == run.start
                    && (last.kind, last.huge, last.maps) == (run.kind, run.huge, run.maps) =>
            {
                last.end = run.end;
            }
            _ => self.waiting.push((run, fallback)),
        }
    }

    /// Adds the runs that wait: each page to the nearer of the records before and after it.
    pub(super) fn add_waiting(&mut self, vma: &Vma, next: Option<Record>, to: &mut Sink<'_>) {
        let page = self.space.page_size;
        // The first address that is nearer to the next record.
        let border = match (self.last, next) {
            (Some(last), Some(next)) => {
                last.page + (next.page.saturating_sub(last.page) / page / 2 + 1) * page
            }
            (Some(_), None) => u64::MAX,
            (None, _) => 0,
        };
        for (run, fallback) in self.waiting.drain(..) {
            let border = Addr(border.clamp(run.start.0, run.end.0));
            let before = PageRun { end: border, ..run };
            let after = PageRun {
                start: border,
                ..run
            };
            for (part, record) in [(before, self.last), (after, next)] {
                if !part.is_empty() {
                    let owner = record.map_or(fallback, |record| recorded(record.stack));
                    add(to, vma, owner, part);
                }
            }
        }
    }
}

fn aligned(index: usize, window: usize) -> Range<usize> {
    let start = index - index % window;
    start..start + window
}

/// How many pages one fault can map: a huge page (also if khugepaged assembled it from small ones, and in hugetlbfs),
/// or the fault-around window of files and shared memory. Each small anonymous page has its own fault.
pub(super) fn neighbour_window(run: &PageRun) -> Option<usize> {
    match run.kind {
        _ if run.huge => Some(CHUNK_PAGES),
        PageKind::File | PageKind::Shmem => Some(FAULT_AROUND_PAGES),
        PageKind::Hugetlb => Some(CHUNK_PAGES),
        PageKind::Anon | PageKind::Swap => None,
    }
}
