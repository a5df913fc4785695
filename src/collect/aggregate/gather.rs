//! Gathers the pages of a frozen process and copies of their records, in bounded memory. Pages that do not fit are joined while the
//! process is frozen.

use std::cell::RefCell;

use anyhow::Result;

use super::tally::{Tallied, Tally};
use crate::collect::resident::{Copier, Copies, Join, SpaceView, parts};
use crate::collect::stack::StackTable;
use crate::probe::source::resident_pages::PageLedger;
use memprof_sys::residency::{PageRun, Vma};

/// Maximum number of stored runs of pages (40 bytes each), and maximum size of the stored records in bytes.
const MAX_RUNS: usize = 1 << 18;
const MAX_BYTES: usize = 16 << 20;

/// The gathered pages and their records.
pub(super) struct Gather<'a, L> {
    copier: Copier<'a, L>,
    copies: &'a RefCell<Copies>,
    /// The runs, each with the index of its mapping.
    runs: Vec<(u32, PageRun)>,
    /// The pages that came before `runs`, if not all pages fit.
    tally: Option<Tally<'a, RefCell<Copies>>>,
    space: SpaceView<'a>,
    vmas: &'a [Vma],
    stacks: &'a StackTable,
    most: (usize, usize),
    copied: Result<()>,
}

/// The gathered pages.
pub(super) enum Gathered {
    /// All runs, to be joined with the copies.
    Runs(Vec<(u32, PageRun)>),
    /// Totals, because not all pages fit.
    Joined(Box<Tallied>),
}

impl<'a, L: PageLedger> Gather<'a, L> {
    /// Copies records of `ledger` to `copies`.
    pub(super) fn new(
        ledger: &'a L,
        space: SpaceView<'a>,
        copies: &'a RefCell<Copies>,
        vmas: &'a [Vma],
        stacks: &'a StackTable,
    ) -> Self {
        Gather {
            copier: Copier::new(ledger, space, copies),
            copies,
            runs: Vec::new(),
            tally: None,
            space,
            vmas,
            stacks,
            most: (MAX_RUNS, MAX_BYTES),
            copied: Ok(()),
        }
    }

    /// Adds a run of pages of the mapping with this index. Runs must come in address order.
    pub(super) fn add(&mut self, index: usize, run: PageRun) {
        for part in parts(run) {
            if self.copied.is_err() {
                return;
            }
            self.copied = self.copier.add(part);
            self.runs.push((index as u32, part));
            if self.runs.len() >= self.most.0 || self.copies.borrow().bytes() >= self.most.1 {
                self.join();
            }
        }
    }

    /// Joins the gathered pages, and removes them.
    fn join(&mut self) {
        let new = || Tally::new(Join::new(self.copies, self.space), self.vmas, self.stacks);
        let tally = self.tally.get_or_insert_with(new);
        for (index, run) in self.runs.drain(..) {
            tally.add(index as usize, run);
        }
        // The join has a copy of the last chunk, of which more pages may follow.
        self.copies.borrow_mut().clear();
    }

    /// Returns the gathered pages.
    ///
    /// # Errors
    /// If the ledger could not be read.
    pub(super) fn finish(mut self) -> Result<Gathered> {
        self.copied?;
        self.copied = Ok(());
        if self.tally.is_some() {
            self.join();
        }
        match self.tally {
            Some(tally) => Ok(Gathered::Joined(Box::new(tally.finish()?))),
            None => Ok(Gathered::Runs(self.runs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::aggregate::tally::tests::Pages;
    use memprof_sys::ids::{Addr, MmId};
    use memprof_sys::residency::{PageKind, RangeMap, RangeSet, proc_maps};

    const PAGE: u64 = 4096;

    /// Whatever the limits, the result equals a join of all pages with the ledger itself.
    #[test]
    fn what_does_not_fit_is_joined_at_once() {
        let maps =
            b"10000000-58000000 rw-p 00000000 00:00 0\n90000000-a0000000 rw-p 00000000 00:00 0\n";
        let vmas = proc_maps::parse(maps).unwrap();
        // Alternating stacks, long runs of one, and pages without a record.
        let stack = |page: u64| match page % 7000 {
            0..2000 => 20 + (page % 3) as u32,
            2000..5000 => 30,
            5000..6000 if page.is_multiple_of(5) => 40,
            _ => 0,
        };
        let first = 0x1000_0000 / PAGE;
        let pages = (first..first + 40_000).chain(0x9000_0000 / PAGE..0x9000_0000 / PAGE + 9000);
        let pages = pages
            .map(|page| (page, stack(page)))
            .filter(|(_, stack)| *stack > 0);
        let ledger = Pages(pages.collect());
        let run = |start: u64, end: u64| PageRun {
            start: Addr(start),
            end: Addr(end),
            kind: PageKind::Anon,
            huge: false,
            maps: None,
        };
        let runs = [
            (0, run(0x1000_0000, 0x1000_5000)),
            (0, run(0x1000_6000, 0x5700_0000)),
            (1, run(0x9000_0000, 0x9200_0000)),
            (1, run(0x9200_1000, 0x9200_2000)),
        ];
        let stacks = StackTable::default();
        let (ranges, before) = (RangeMap::new(8), RangeSet::new(8));
        for sampled in [false, true] {
            let space = SpaceView {
                mm: MmId(1),
                ancestors: &[],
                ranges: &ranges,
                before: &before,
                page_size: PAGE,
                sampled,
            };
            let mut direct = Tally::new(Join::new(&ledger, space), &vmas, &stacks);
            runs.iter()
                .for_each(|(index, run)| direct.add(*index, *run));
            let direct = direct.finish().unwrap();
            assert!(direct.totals.stacks.len() >= 5);
            for (most, joins) in [
                ((100, 1 << 20), false),
                ((100, 5000), true),
                ((2, 1 << 20), true),
            ] {
                let copies = RefCell::default();
                let mut gather = Gather::new(&ledger, space, &copies, &vmas, &stacks);
                gather.most = most;
                for (index, run) in runs {
                    gather.add(index, run);
                    assert!(
                        gather.runs.len() <= most.0 && copies.borrow().bytes() < most.1 + 600_000
                    );
                }
                let gathered = gather.finish().unwrap();
                assert_eq!(matches!(gathered, Gathered::Joined(_)), joins);
                let tallied = match gathered {
                    Gathered::Joined(tallied) => *tallied,
                    Gathered::Runs(runs) => {
                        let mut tally = Tally::new(Join::new(&copies, space), &vmas, &stacks);
                        runs.iter()
                            .for_each(|(index, run)| tally.add(*index as usize, *run));
                        tally.finish().unwrap()
                    }
                };
                assert_eq!(tallied.totals, direct.totals, "{most:?}");
                assert_eq!(tallied.bytes, direct.bytes, "{most:?}");
            }
        }
    }
}
