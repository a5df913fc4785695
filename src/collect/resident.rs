//! Resident pages: joins the kernel's page scan with the page ledger.
//!
//! The scan shows which pages are resident; the ledger records which stack brought a page in. A page gets its stack from the first
//! of these: its own record; an ancestor process's record (pages shared since `fork`); the call that filled its range without
//! faults (`MAP_POPULATE`, `mlock`); the nearest record around it, where one fault maps many pages (huge pages, fault-around of
//! files and shared memory); the call that mapped its range. Otherwise the page is reported as not observed.
//!
//! If some faults were not walked (`--stacks`), pages that have neither a record nor a call that filled their range are divided
//! among the walked stacks of their mapping: an estimate, with its error (`sampled.rs`).

mod copies;
mod fault_around;
mod record;
mod unwalked_pages;

use anyhow::Result;

pub use self::copies::{Copier, Copies};
use self::fault_around::neighbour_window;
use self::record::Record;
use self::unwalked_pages::{By, Sampled};
use crate::probe::source::Totals;
use crate::probe::source::resident_pages::{Chunk, PageLedger};
use crate::probe::wire::{CHUNK_PAGES, STACK_LOST, STACK_NONE, STACK_UNRECORDED, STACK_UNWALKED};
use memprof_profile::measure::PSS;
use memprof_profile::{Amounts, MappedBytes, Unobserved};
use memprof_sys::ids::{Addr, MmId, StackId};
use memprof_sys::residency::{PageRun, RangeMap, RangeSet, SHARE_SHIFT, Vma, add_run};
use memprof_sys::usage::Usage;

/// The call that mapped or filled an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeOwner {
    /// The call's stack.
    pub stack: StackId,
    /// Whether it had the kernel fill the range without faults.
    pub populated: bool,
}

/// The known state of an address space besides its ledger.
#[derive(Clone, Copy, Debug)]
pub struct SpaceView<'a> {
    /// The address space.
    pub mm: MmId,
    /// The address spaces it was forked from, nearest first.
    pub ancestors: &'a [MmId],
    /// Owner stack of each address range mapped since attach.
    pub ranges: &'a RangeMap<RangeOwner>,
    /// Pages that were resident when memprof attached.
    pub before: &'a RangeSet,
    /// Size of a page in bytes.
    pub page_size: u64,
    /// Whether some faults were not walked.
    pub sampled: bool,
}

/// The owner of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Stack(StackId),
    Nobody(Unobserved),
}

/// The totals to which the bytes of a mapping are added.
struct Sink<'a> {
    totals: &'a mut Totals,
    mapping: &'a mut MappedBytes,
}

impl Sink<'_> {
    /// The figures of a run.
    fn amounts_of(&mut self, run: PageRun) -> Amounts {
        let mut usage = Usage::default();
        add_run(&mut usage, run);
        if run.huge {
            self.mapping.huge += run.len();
        }
        let mut amounts = Amounts::from(usage);
        if let Some(share) = run.share() {
            let share = share + self.totals.share_rest;
            self.totals.share_rest = share % (1 << SHARE_SHIFT);
            amounts += Amounts::in_column(PSS, share >> SHARE_SHIFT);
        }
        amounts
    }

    fn give(&mut self, vma: &Vma, owner: Owner, amounts: Amounts) {
        match owner {
            Owner::Stack(id) => {
                self.mapping.attributed += amounts.usage;
                self.totals.add_stack(id, amounts);
            }
            Owner::Nobody(reason) => {
                self.mapping.not_observed += amounts.usage;
                self.totals.add_unobserved(vma.label(), reason, amounts);
            }
        }
    }

    fn add(&mut self, vma: &Vma, owner: Owner, run: PageRun) {
        let amounts = self.amounts_of(run);
        self.give(vma, owner, amounts);
    }
}

/// The current chunk: its number, its records, how many ancestors' records they include, and the origin of each record: 0 is the
/// address space itself, 1 the nearest ancestor.
struct Loaded {
    at: Option<u64>,
    ancestors: usize,
    records: Chunk,
    origins: [u8; CHUNK_PAGES],
}

impl Default for Loaded {
    fn default() -> Loaded {
        Loaded {
            at: None,
            ancestors: 0,
            records: [STACK_NONE; CHUNK_PAGES],
            origins: [0; CHUNK_PAGES],
        }
    }
}

impl Loaded {
    /// Reads a chunk: its own records, and the ancestors' records if pages of `run` have none.
    fn load(
        &mut self,
        ledger: &impl PageLedger,
        space: &SpaceView<'_>,
        chunk: u64,
        run: PageRun,
    ) -> Result<()> {
        if self.at != Some(chunk) {
            let own = ledger.chunk(space.mm, chunk)?;
            self.records = own.unwrap_or([STACK_NONE; CHUNK_PAGES]);
            self.origins = [0; CHUNK_PAGES];
            self.ancestors = 0;
            self.at = Some(chunk);
        }
        let first = (run.start.0 / space.page_size) as usize % CHUNK_PAGES;
        let pages = first..first + (run.len() / space.page_size) as usize;
        while let Some(&ancestor) = space.ancestors.get(self.ancestors)
            && self.records[pages.clone()].contains(&STACK_NONE)
        {
            self.ancestors += 1;
            if let Some(theirs) = ledger.chunk(ancestor, chunk)? {
                let own = self.records.iter_mut().zip(&mut self.origins);
                for ((own, origin), their) in own.zip(theirs) {
                    if *own == STACK_NONE {
                        (*own, *origin) = (their, self.ancestors as u8);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Splits a run by chunk. Returns each chunk's number and its part of the run.
fn in_chunks(run: PageRun, page_size: u64) -> impl Iterator<Item = (u64, PageRun)> {
    let chunk_bytes = page_size * CHUNK_PAGES as u64;
    let chunks = run.start.0 / chunk_bytes..run.end.0.div_ceil(chunk_bytes);
    chunks.map(move |chunk| {
        let part = PageRun {
            start: Addr(run.start.0.max(chunk * chunk_bytes)),
            end: Addr(run.end.0.min((chunk + 1) * chunk_bytes)),
            ..run
        };
        (chunk, part)
    })
}

/// Splits a run into parts of at most 1 GiB. Joining the parts is equivalent to joining the run.
pub fn parts(run: PageRun) -> impl Iterator<Item = PageRun> {
    const PART: u64 = 1 << 30;
    let parts = run.start.0 / PART..run.end.0.div_ceil(PART);
    parts.map(move |part| PageRun {
        start: Addr(run.start.0.max(part * PART)),
        end: Addr(run.end.0.min((part + 1) * PART)),
        ..run
    })
}

/// Joins the page runs of one address space with its ledger.
pub struct Join<'a, L> {
    ledger: &'a L,
    space: SpaceView<'a>,
    loaded: Loaded,
    /// The sampled faults of the current mapping.
    sampled: Sampled,
}

impl<'a, L: PageLedger> Join<'a, L> {
    /// Creates a join for one address space.
    pub fn new(ledger: &'a L, space: SpaceView<'a>) -> Join<'a, L> {
        Join {
            ledger,
            space,
            loaded: Loaded::default(),
            sampled: Sampled::default(),
        }
    }

    /// Adds a run of a mapping's pages: each byte to exactly one owner, and to the mapping's figures. The runs of a mapping must
    /// come in address order, and [`Join::end_mapping`] after the last one.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn add(
        &mut self,
        vma: &Vma,
        run: PageRun,
        totals: &mut Totals,
        mapping: &mut MappedBytes,
    ) -> Result<()> {
        let to = &mut Sink { totals, mapping };
        for (chunk, part) in in_chunks(run, self.space.page_size) {
            self.loaded.load(self.ledger, &self.space, chunk, part)?;
            self.add_in_chunk(vma, part, to);
        }
        Ok(())
    }

    fn add_in_chunk(&mut self, vma: &Vma, run: PageRun, to: &mut Sink<'_>) {
        let page = self.space.page_size;
        let first = (run.start.0 / page) as usize % CHUNK_PAGES;
        let pages = (run.len() / page) as usize;
        let mut start = run.start.0;
        let mut at = first;
        while at < first + pages {
            let (entry, origin) = (self.loaded.records[at], self.loaded.origins[at]);
            let same = (at..first + pages).take_while(|page| {
                (self.loaded.records[*page], self.loaded.origins[*page]) == (entry, origin)
            });
            let same = same.count();
            at += same;
            let end = start + same as u64 * page;
            let part = PageRun {
                start: Addr(start),
                end: Addr(end),
                ..run
            };
            match entry {
                STACK_NONE | STACK_UNRECORDED => self.add_unrecorded(vma, part, to),
                STACK_UNWALKED => self.add_unwalked(part, Owner::Nobody(Unobserved::NotWalked), to),
                entry => self.add_recorded(vma, part, (Record::from_entry(entry), origin), to),
            }
            start = end;
        }
    }

    fn add_recorded(
        &mut self,
        vma: &Vma,
        run: PageRun,
        (record, origin): (Record, u8),
        to: &mut Sink<'_>,
    ) {
        let pages = run.len() / self.space.page_size;
        let faults = if record.follows { 0 } else { pages };
        self.add_walked(run, (record, origin), (faults, pages));
        to.add(vma, recorded(record.stack), run);
    }

    /// Notes pages that walked faults brought in. They stand for others if some faults were not walked.
    fn add_walked(
        &mut self,
        run: PageRun,
        (record, origin): (Record, u8),
        (faults, pages): (u64, u64),
    ) {
        if self.space.sampled {
            let origin = match record.inherited {
                true => origin.max(1),
                false => origin,
            };
            let mm = match usize::from(origin).checked_sub(1) {
                Some(at) => self.space.ancestors.get(at).copied(),
                None => Some(self.space.mm),
            };
            let by = By {
                stack: record.stack,
                mm: mm.unwrap_or(self.space.mm),
                interval: record.interval(),
            };
            self.sampled
                .add_walked((run.kind, run.huge), by, (faults, pages));
        }
    }

    /// Adds pages whose fault was not walked, and pages without an event.
    fn add_unwalked(&mut self, run: PageRun, fallback: Owner, to: &mut Sink<'_>) {
        let amounts = to.amounts_of(run);
        self.sampled
            .add_unwalked((run.kind, run.huge), fallback, amounts);
    }

    /// Ends a mapping: divides its unwalked pages.
    pub fn end_mapping(&mut self, vma: &Vma, totals: &mut Totals, mapping: &mut MappedBytes) {
        let to = &mut Sink { totals, mapping };
        let root = self.space.ancestors.last().copied();
        let root = root.unwrap_or(self.space.mm);
        self.sampled.divide(vma, root, self.space.page_size, to);
    }

    /// Adds pages without a record, split where their range's owner changes.
    fn add_unrecorded(&mut self, vma: &Vma, run: PageRun, to: &mut Sink<'_>) {
        let mut at = run.start.0;
        while at < run.end.0 {
            let (owner, end) = self.range_owner(at, run.end.0);
            let part = PageRun {
                start: Addr(at),
                end: Addr(end),
                ..run
            };
            match owner {
                Some(o) if o.populated => to.add(vma, Owner::Stack(o.stack), part),
                _ => self.add_by_neighbour(vma, part, owner, to),
            }
            at = end;
        }
    }

    /// The owner of the range at `at`, and the address, at most `limit`, where the owner changes.
    fn range_owner(&self, at: u64, limit: u64) -> (Option<RangeOwner>, u64) {
        match self.space.ranges.overlapping(at..limit).next() {
            Some((r, owner)) if r.start <= at => (Some(*owner), r.end.min(limit)),
            Some((r, _)) => (None, r.start),
            None => (None, limit),
        }
    }

    /// Adds pages to the nearest record's stack, to their range's owner, or as not observed.
    fn add_by_neighbour(
        &mut self,
        vma: &Vma,
        run: PageRun,
        range: Option<RangeOwner>,
        to: &mut Sink<'_>,
    ) {
        let mut at = run.start.0;
        while at < run.end.0 {
            let (before, end) = self.was_before(at, run.end.0);
            let part = PageRun {
                start: Addr(at),
                end: Addr(end),
                ..run
            };
            let fallback = match range {
                Some(o) => Owner::Stack(o.stack),
                None if before => Owner::Nobody(Unobserved::BeforeAttach),
                None if self.space.sampled => Owner::Nobody(Unobserved::NotWalked),
                None => Owner::Nobody(Unobserved::NoEvent),
            };
            match neighbour_window(&part) {
                Some(window) if !before => self.add_each(vma, part, window, fallback, to),
                None if !before && self.space.sampled => self.add_unwalked(part, fallback, to),
                _ => to.add(vma, fallback, part),
            }
            at = end;
        }
    }

    /// Whether the page at `at` was resident at attach, and the address, at most `limit`, where this changes.
    fn was_before(&self, at: u64, limit: u64) -> (bool, u64) {
        match self.space.before.overlapping(at..limit).next() {
            Some(r) if r.start <= at => (true, r.end.min(limit)),
            Some(r) => (false, r.start),
            None => (false, limit),
        }
    }
}

fn recorded(id: u32) -> Owner {
    if id == STACK_LOST {
        Owner::Nobody(Unobserved::StackLost)
    } else {
        Owner::Stack(StackId(id))
    }
}

#[cfg(test)]
mod tests;
