//! Pages without a record of their own that were probably resident at the peak: inherited by `fork`, there before the attach, around faults
//! on files, and of faults whose stack was not walked. The kernel's counters say how many there were.

use std::borrow::Cow;
use std::ops::Range;

use super::{
    AtPeak, Chunks, FAULT_AROUND_PAGES, Home, MAX_EXAMINED, MAX_RUNS, Others, Resident, Unfound,
    add_missing, has, has_record, is_in, mark,
};
use crate::probe::wire::{CHUNK_PAGES, STACK_NONE};
use memprof_sys::residency::PageKind;

impl AtPeak<'_> {
    /// Adds these pages, the surest first. `resident` are the pages that are known already.
    pub(super) fn add_unrecorded(
        &self,
        mut resident: Resident,
        others: &mut Others<'_>,
        unfound: &mut Unfound,
    ) {
        let known = match self.add_inherited(&mut resident, others, unfound) {
            true => Cow::Owned(self.with_inherited()),
            false => Cow::Borrowed(self.then),
        };
        self.add_older(&mut resident, others, unfound);
        self.around_faults(&known, &resident, others, unfound);
        self.without_record(&known, &resident, others, unfound);
    }

    /// Adds the pages that a child of `fork` still had with its parent, if they all can have been there. Otherwise the parent has got
    /// more since, and nobody knows which the child had: the result is then false. A `fork` gives the child anonymous pages alone.
    fn add_inherited(
        &self,
        resident: &mut Resident,
        others: &mut Others<'_>,
        unfound: &mut Unfound,
    ) -> bool {
        let mut pages = Vec::new();
        for (chunk, records) in self.inherited {
            let own = self.then.get(chunk);
            for (at, record) in records.iter().enumerate() {
                let page = chunk * CHUNK_PAGES as u64 + at as u64;
                if *record == STACK_NONE || has(own, page) || is_in(resident, page) {
                    continue;
                }
                let home = others.home(page);
                if self.kinds(home, *record)[0] == PageKind::Anon {
                    pages.push((page, home));
                }
                if pages.len() as u64 > unfound.anon + self.lag {
                    return false;
                }
            }
        }
        for (page, home) in pages {
            if others.runs.len() < MAX_RUNS && unfound.take(PageKind::Anon, 1) == 1 {
                others.push(home, page, PageKind::Anon);
                mark(resident, page);
            }
        }
        !self.inherited.is_empty()
    }

    /// Adds pages of the dropped range that were there before the attach.
    fn add_older(&self, resident: &mut Resident, others: &mut Others<'_>, unfound: &mut Unfound) {
        for run in self.older.overlapping(self.seen.dropped.clone()) {
            for page in run.start / self.page_size..run.end / self.page_size {
                if has(self.then.get(&(page / CHUNK_PAGES as u64)), page)
                    || is_in(resident, page)
                    || unfound.is_none()
                {
                    continue;
                }
                let home = others.home(page);
                let kind = self.kinds(home, STACK_NONE)[0];
                let is_possible = kind == PageKind::Anon || !self.is_forked;
                if is_possible && others.runs.len() < MAX_RUNS && unfound.take(kind, 1) == 1 {
                    others.push(home, page, kind);
                    mark(resident, page);
                }
            }
        }
    }

    /// The records at the peak, and those that were inherited.
    fn with_inherited(&self) -> Chunks {
        let mut all = self.then.clone();
        add_missing(&mut all, self.inherited);
        all
    }

    /// Adds pages of files and shared memory that a fault on a neighbour brought in, and that are no longer there: those of the
    /// dropped range, then those that other calls have dropped since.
    fn around_faults(
        &self,
        known: &Chunks,
        resident: &Resident,
        others: &mut Others<'_>,
        unfound: &mut Unfound,
    ) {
        for is_dropped in [true, false] {
            self.each_without_record(known, resident, |page, near| {
                if near && self.is_dropped(page) == is_dropped {
                    others.add_without_record(page, &|kind| kind != PageKind::Anon, unfound);
                }
                unfound.file + unfound.shmem > 0
            });
        }
    }

    /// Adds other pages without a record that are no longer there. The likeliest come first: those around a page with a record, then those
    /// of chunks that have records. Other chunks are examined only if the dropped range is small; a whole address space is not.
    fn without_record(
        &self,
        known: &Chunks,
        resident: &Resident,
        others: &mut Others<'_>,
        unfound: &mut Unfound,
    ) {
        let may_be = |page: u64, near: bool| {
            move |kind| match kind {
                PageKind::Anon => (self.may_be_unrecorded)(page * self.page_size),
                // `around_faults` has added these.
                _ => !near,
            }
        };
        let Range { start, end } = self.seen.dropped;
        let pages = start / self.page_size..end / self.page_size;
        let is_large = pages.end - pages.start > MAX_EXAMINED;
        for wanted in [(true, true), (true, false), (false, true)] {
            self.each_without_record(known, resident, |page, near| {
                // Part of a small range is all mapped.
                let is_mapped = near || !is_large || !matches!(others.home(page), Home::Gap(..));
                if (self.is_dropped(page), near) == wanted && is_mapped {
                    others.add_without_record(page, &may_be(page, near), unfound);
                }
                !unfound.is_none()
            });
        }
        if is_large {
            return;
        }
        for page in pages {
            if unfound.is_none() {
                return;
            }
            if !known.contains_key(&(page / CHUNK_PAGES as u64)) && !is_in(resident, page) {
                others.add_without_record(page, &may_be(page, false), unfound);
            }
        }
    }

    /// Calls `each` with the pages without a record that are in chunks with records, unless they are known to have been resident, and with
    /// whether there is a record around them; until it returns false.
    fn each_without_record(
        &self,
        known: &Chunks,
        resident: &Resident,
        mut each: impl FnMut(u64, bool) -> bool,
    ) {
        for (chunk, records) in known {
            let since = self.since.get(chunk);
            for (window, around) in records.chunks(FAULT_AROUND_PAGES).enumerate() {
                let near = has_record(around);
                let first = chunk * CHUNK_PAGES as u64 + (window * FAULT_AROUND_PAGES) as u64;
                for (page, record) in (first..).zip(around) {
                    // A page that stays and has got a record came later.
                    let is_later = || !self.is_dropped(page) && has(since, page);
                    let is_unknown = *record == STACK_NONE && !is_in(resident, page) && !is_later();
                    if is_unknown && !each(page, near) {
                        return;
                    }
                }
            }
        }
    }
}
