//! The scan of a process at its peak, when it was about to drop memory. The records of that moment were copied; which pages were
//! resident is known in part:
//!
//! - Pages that are still resident were resident then if they had a record, and were not if they have got one since.
//! - Pages with a record that are no longer resident have been dropped since.
//! - Pages without a record may have been resident: pages around a fault on a file, pages of unwalked faults, pages from before the
//!   attach.
//!
//! The kernel's counters of that moment limit each kind of memory, so the total never exceeds them. What they count in addition is
//! memory whose pages are not known: [`Unobserved::Gone`].

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::Aggregator;
use super::scan::{FrozenScanError, Scanned};
use super::tally::Tally;
use crate::collect::resident::{Join, RangeOwner, SpaceView};
use crate::probe::Probe;
use crate::probe::event::PeakSeen;
use crate::probe::source::ReadLedger;
use crate::probe::source::resident_pages::{Chunk, PageLedger, SOURCE};
use crate::probe::wire::{self, CHUNK_PAGES, RECORD_WRITE, STACK_NONE, page_chunk};
use memprof_profile::{MappedBytes, Unobserved};
use memprof_sys::ids::{Addr, MmId};
use memprof_sys::kernel_figures::KernelFigures;
use memprof_sys::residency::{
    Backing, Error as ScanError, PageKind, PageRun, Pages, Perms, RangeMap, RangeSet, Vma, VmaKind,
    page_size, proc_maps,
};
use memprof_sys::usage::Usage;

/// Number of pages that one fault on a file or on shared memory maps around itself.
const FAULT_AROUND_PAGES: usize = 16;
/// Maximum number of runs of pages in one scan, 48 bytes each. Further pages are counted as gone.
const MAX_RUNS: usize = 1 << 20;
/// Maximum number of pages of the dropped range that are examined for pages without a record.
const MAX_EXAMINED: u64 = 1 << 22;
/// The name of the mapping that stands for memory whose pages are not known.
const GONE: &str = "[gone]";

type Chunks = BTreeMap<u64, Box<Chunk>>;

/// The records at the peak, and the records of other address spaces.
struct PeakLedger<'a> {
    probe: &'a Probe,
    mm: MmId,
    then: &'a Chunks,
}

impl PageLedger for PeakLedger<'_> {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        match mm == self.mm {
            true => Ok(self.then.get(&chunk).map(|chunk| **chunk)),
            false => self.probe.chunk(mm, chunk),
        }
    }
}

/// The pages that a process has now.
#[derive(Default)]
struct Present {
    vmas: Vec<Vma>,
    runs: Vec<(u32, PageRun)>,
}

/// What was known of a process at its peak, besides its records. Later events change it.
#[derive(Clone, Debug)]
pub struct KnownAtPeak {
    ancestors: Vec<MmId>,
    ranges: Arc<RangeMap<RangeOwner>>,
    before: Arc<RangeSet>,
    /// The mappings at the last scan.
    vmas: Arc<[Vma]>,
}

/// What is known about a process's pages at its peak.
struct AtPeak<'a> {
    /// The pages that are resident now.
    now: &'a Present,
    /// The mappings at the last scan before the peak; empty if there was none.
    before: &'a [Vma],
    /// The records at the peak.
    then: &'a Chunks,
    /// The records now.
    since: &'a Chunks,
    seen: &'a PeakSeen,
    /// Whether an anonymous page without a record may have been resident.
    may_be_unrecorded: &'a dyn Fn(u64) -> bool,
    page_size: u64,
}

/// The pages of a process at its peak.
#[derive(Debug, Default)]
struct Restored {
    vmas: Vec<Vma>,
    /// Runs of pages with the index of their mapping, by mapping and address.
    runs: Vec<(u32, PageRun)>,
    /// Memory whose pages are not known.
    gone: Usage,
}

/// Numbers of pages that the kernel counted and that are not found yet.
struct Unfound {
    anon: u64,
    shmem: u64,
    file: u64,
}

impl Unfound {
    fn of(&mut self, kind: PageKind) -> Option<&mut u64> {
        match kind {
            PageKind::Anon => Some(&mut self.anon),
            PageKind::Shmem => Some(&mut self.shmem),
            PageKind::File => Some(&mut self.file),
            PageKind::Swap | PageKind::Hugetlb => None,
        }
    }

    /// Takes up to `pages` pages of a kind. Swapped and huge pages of hugetlbfs are in no counter, and unlimited.
    fn take(&mut self, kind: PageKind, pages: u64) -> u64 {
        match self.of(kind) {
            Some(left) => {
                let taken = pages.min(*left);
                *left -= taken;
                taken
            }
            None => pages,
        }
    }
}

/// The mapping of a page that is no longer resident: its index in `before` or in the current mappings, or the gap between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Home {
    Before(usize),
    Now(usize),
    Gap(usize, usize),
}

fn find(vmas: &[Vma], addr: u64) -> Result<usize, usize> {
    let at = vmas.partition_point(|vma| vma.end.0 <= addr);
    match vmas.get(at).is_some_and(|vma| vma.start.0 <= addr) {
        true => Ok(at),
        false => Err(at),
    }
}

impl AtPeak<'_> {
    fn is_dropped(&self, page: u64) -> bool {
        self.seen.dropped.contains(&(page * self.page_size))
    }

    /// The mapping of a page, and the pages around it for which the answer is the same.
    fn home(&self, page: u64) -> (Home, Range<u64>) {
        let addr = page * self.page_size;
        let (before, now) = (find(self.before, addr), find(&self.now.vmas, addr));
        // The end of the mapping before a gap, and the start of the mapping after it.
        let gap = |vmas: &[Vma], next: usize| {
            let end = next.checked_sub(1).map_or(0, |at| vmas[at].end.0);
            let start = vmas.get(next).map_or(u64::MAX, |vma| vma.start.0);
            end..start
        };
        let whole = |vma: &Vma| vma.start.0..vma.end.0;
        let both = |a: Range<u64>, b: Range<u64>| a.start.max(b.start)..a.end.min(b.end);
        let (home, range) = match (before, now) {
            (Ok(at), _) => (Home::Before(at), whole(&self.before[at])),
            (Err(next), Ok(at)) => {
                let range = both(gap(self.before, next), whole(&self.now.vmas[at]));
                (Home::Now(at), range)
            }
            (Err(a), Err(b)) => {
                let range = both(gap(self.before, a), gap(&self.now.vmas, b));
                (Home::Gap(a, b), range)
            }
        };
        (
            home,
            range.start / self.page_size..range.end / self.page_size,
        )
    }

    /// The index of a former mapping, which is added unless it is still there. It may have shrunk.
    fn former(&self, vma: &Vma, vmas: &mut Vec<Vma>) -> usize {
        let found = find(&self.now.vmas, vma.start.0);
        let same = |now: &Vma| {
            Vma {
                end: vma.end,
                ..now.clone()
            } == *vma
        };
        match found.ok().filter(|at| same(&self.now.vmas[*at])) {
            Some(at) => {
                vmas[at].end = vmas[at].end.max(vma.end);
                at
            }
            None => added(vmas, vma.clone()),
        }
    }

    fn vma(&self, home: Home) -> Option<&Vma> {
        match home {
            Home::Before(at) => self.before.get(at),
            Home::Now(at) => self.now.vmas.get(at),
            Home::Gap(..) => None,
        }
    }

    /// The likeliest kinds of a page, if it was resident.
    fn kinds(&self, home: Home, record: u32) -> [PageKind; 3] {
        use PageKind::{Anon, File, Shmem};
        let Some(vma) = self.vma(home) else {
            return [Anon, Shmem, File];
        };
        match (vma.kind(), vma.backing) {
            (VmaKind::Shmem, _) => [Shmem, Anon, File],
            (VmaKind::File, _) => [File, Shmem, Anon],
            (_, Backing::File | Backing::Stacked) if record & RECORD_WRITE == 0 => {
                [File, Anon, Shmem]
            }
            (_, Backing::Shmem) if record & RECORD_WRITE == 0 => [Shmem, Anon, File],
            _ => [Anon, Shmem, File],
        }
    }

    /// Finds the pages.
    fn restore(&self) -> Restored {
        let mut unfound = Unfound {
            anon: self.seen.anon,
            shmem: self.seen.shmem,
            file: self.seen.file,
        };
        let (mut stay, unsure, resident) = self.staying(&mut unfound);
        let mut others = Others::new(self);
        for in_range in [true, false] {
            for (chunk, records) in self.then {
                let seen = resident.get(chunk);
                for (at, record) in records.iter().enumerate() {
                    let page = chunk * CHUNK_PAGES as u64 + at as u64;
                    let is_resident =
                        || seen.is_some_and(|bits| bits[at / 64] >> (at % 64) & 1 == 1);
                    if *record != STACK_NONE && self.is_dropped(page) == in_range && !is_resident()
                    {
                        others.add(page, *record, &mut unfound);
                    }
                }
            }
        }
        for (index, run) in unsure {
            let taken = unfound.take(run.kind, run.len() / self.page_size);
            if taken > 0 {
                let end = Addr(run.start.0 + taken * self.page_size);
                stay.push((index, PageRun { end, ..run }));
            }
        }
        self.around_faults(&mut others, &mut unfound);
        self.without_record(&mut others, &mut unfound);
        let mut vmas = self.now.vmas.clone();
        stay.extend(others.finish(&mut vmas));
        stay.sort_by_key(|(index, run)| (*index, run.start));
        let bytes = |pages: u64| pages * self.page_size;
        Restored {
            vmas,
            runs: stay,
            gone: Usage {
                anon: bytes(unfound.anon),
                shmem: bytes(unfound.shmem),
                file: bytes(unfound.file),
                ..Usage::default()
            },
        }
    }

    /// The resident pages outside the dropped range that were resident at the peak, and those that may have been; and all
    /// resident pages there, as bits by chunk.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn staying(
        &self,
        unfound: &mut Unfound,
    ) -> (
        Vec<(u32, PageRun)>,
        Vec<(u32, PageRun)>,
        HashMap<u64, [u64; CHUNK_PAGES / 64]>,
    ) {
        let (mut sure, mut unsure) = (Vec::new(), Vec::new());
        let mut resident: HashMap<u64, [u64; CHUNK_PAGES / 64]> = HashMap::new();
        for (index, run) in &self.now.runs {
            let pages = run.start.0 / self.page_size..run.end.0 / self.page_size;
            let mut at = pages.start;
            while at < pages.end {
                let chunk = at / CHUNK_PAGES as u64;
                let (then, since) = (self.then.get(&chunk), self.since.get(&chunk));
                let class = |page: u64| {
                    let has_record = |chunk: Option<&Box<Chunk>>| {
                        chunk.is_some_and(|c| c[page as usize % CHUNK_PAGES] != STACK_NONE)
                    };
                    match () {
                        () if self.is_dropped(page) => Class::Other,
                        () if has_record(then) => Class::Sure,
                        () if has_record(since) => Class::Other,
                        () => Class::Unsure,
                    }
                };
                let limit = pages.end.min((chunk + 1) * CHUNK_PAGES as u64);
                let first = class(at);
                let end = (at + 1..limit).find(|page| class(*page) != first);
                let end = end.unwrap_or(limit);
                let part = PageRun {
                    start: Addr(at * self.page_size),
                    end: Addr(end * self.page_size),
                    ..*run
                };
                match first {
                    Class::Other => {}
                    Class::Unsure => push(&mut unsure, *index, part),
                    Class::Sure => {
                        unfound.take(run.kind, end - at);
                        push(&mut sure, *index, part);
                        let bits = resident.entry(chunk).or_default();
                        for page in at..end {
                            let page = page as usize % CHUNK_PAGES;
                            bits[page / 64] |= 1 << (page % 64);
                        }
                    }
                }
                at = end;
            }
        }
        (sure, unsure, resident)
    }

    /// Adds pages of files and shared memory that were dropped, and that a fault on a neighbour brings in.
    fn around_faults(&self, others: &mut Others<'_>, unfound: &mut Unfound) {
        for (chunk, records) in self.then {
            if unfound.file + unfound.shmem == 0 {
                return;
            }
            for (window, around) in records.chunks(FAULT_AROUND_PAGES).enumerate() {
                let first = chunk * CHUNK_PAGES as u64 + (window * FAULT_AROUND_PAGES) as u64;
                for (page, record) in (first..).zip(around) {
                    if has_record(around) && *record == STACK_NONE && self.is_dropped(page) {
                        others.add_without_record(page, &|kind| kind != PageKind::Anon, unfound);
                    }
                }
            }
        }
    }

    /// Adds pages without a record from the dropped range.
    fn without_record(&self, others: &mut Others<'_>, unfound: &mut Unfound) {
        let Range { start, end } = self.seen.dropped;
        let pages = start / self.page_size..end / self.page_size;
        if pages.end - pages.start > MAX_EXAMINED {
            return;
        }
        for page in pages {
            if unfound.anon + unfound.shmem + unfound.file == 0 {
                return;
            }
            let chunk = self.then.get(&(page / CHUNK_PAGES as u64));
            let at = page as usize % CHUNK_PAGES;
            if chunk.is_some_and(|records| records[at] != STACK_NONE) {
                continue;
            }
            let first = at - at % FAULT_AROUND_PAGES;
            let around = chunk.map(|records| &records[first..first + FAULT_AROUND_PAGES]);
            // Those were added before.
            let near = around.is_some_and(has_record);
            let may_be = |kind| match kind {
                PageKind::Anon => (self.may_be_unrecorded)(page * self.page_size),
                _ => !near,
            };
            others.add_without_record(page, &may_be, unfound);
        }
    }
}

fn has_record(records: &[u32]) -> bool {
    records.iter().any(|record| *record != STACK_NONE)
}

/// What a page that is resident now says about the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Resident at the peak.
    Sure,
    /// Without a record.
    Unsure,
    /// It came later; or it is in the dropped range, and came back later or is about to be dropped.
    Other,
}

/// Adds a run, joined with the last one if possible.
fn push<T: PartialEq>(runs: &mut Vec<(T, PageRun)>, of: T, run: PageRun) {
    if let Some((last_of, last)) = runs.last_mut()
        && *last_of == of
        && last.end == run.start
        && (last.kind, last.huge, last.maps) == (run.kind, run.huge, run.maps)
    {
        last.end = run.end;
    } else if runs.len() < MAX_RUNS {
        runs.push((of, run));
    }
}

/// Pages that are no longer resident.
struct Others<'a> {
    at: &'a AtPeak<'a>,
    runs: Vec<(Home, PageRun)>,
    /// The mapping of the last page, and the pages with the same mapping.
    last: Option<(Home, Range<u64>)>,
}

impl<'a> Others<'a> {
    fn new(at: &'a AtPeak<'a>) -> Others<'a> {
        Others {
            at,
            runs: Vec::new(),
            last: None,
        }
    }

    fn home(&mut self, page: u64) -> Home {
        match &self.last {
            Some((home, pages)) if pages.contains(&page) => *home,
            _ => self.last.insert(self.at.home(page)).0,
        }
    }

    /// Adds a page that had a record.
    fn add(&mut self, page: u64, record: u32, unfound: &mut Unfound) {
        let home = self.home(page);
        let kinds = self.at.kinds(home, record).into_iter();
        let mut found = kinds.filter(|kind| unfound.take(*kind, 1) == 1);
        if let Some(kind) = found.next() {
            self.push(home, page, kind);
        }
    }

    /// Adds a page without a record, if pages of its kind may have been resident.
    fn add_without_record(
        &mut self,
        page: u64,
        may_be: &dyn Fn(PageKind) -> bool,
        unfound: &mut Unfound,
    ) {
        let home = self.home(page);
        // In a known mapping, there is only one kind to expect.
        let choices = match home {
            Home::Gap(..) => 3,
            _ => 1,
        };
        let kinds = self.at.kinds(home, STACK_NONE).into_iter().take(choices);
        let mut found = kinds.filter(|kind| may_be(*kind) && unfound.take(*kind, 1) == 1);
        if let Some(kind) = found.next() {
            self.push(home, page, kind);
        }
    }

    fn push(&mut self, home: Home, page: u64, kind: PageKind) {
        let run = PageRun {
            start: Addr(page * self.at.page_size),
            end: Addr((page + 1) * self.at.page_size),
            kind,
            huge: false,
            maps: None,
        };
        push(&mut self.runs, home, run);
    }

    /// The runs of these pages. They are in the present mappings `vmas`, or in former ones, which are added to them.
    fn finish(mut self, vmas: &mut Vec<Vma>) -> Vec<(u32, PageRun)> {
        self.runs.sort_by_key(|(home, run)| (*home, run.start));
        let (mut runs, mut last, mut index) = (Vec::new(), None, 0);
        for (home, run) in self.runs {
            if last.replace(home) != Some(home) {
                index = match home {
                    Home::Now(at) => at,
                    Home::Before(at) => self.at.former(&self.at.before[at], vmas),
                    Home::Gap(..) => added(vmas, unnamed(run.start, run.end, "")),
                };
            }
            if let Home::Gap(..) = home {
                vmas[index].end = run.end;
            }
            push(&mut runs, index as u32, run);
        }
        runs
    }
}

fn added(vmas: &mut Vec<Vma>, vma: Vma) -> usize {
    vmas.push(vma);
    vmas.len() - 1
}

/// A mapping that is no longer there, or never was.
fn unnamed(start: Addr, end: Addr, name: &str) -> Vma {
    Vma {
        start,
        end,
        perms: Perms {
            read: true,
            write: true,
            ..Perms::default()
        },
        file_offset: 0,
        dev: (0, 0),
        ino: 0,
        name: name.to_owned(),
        deleted: false,
        backing: Backing::Anon,
    }
}

impl Aggregator {
    /// The only followed address space; `None` if there are none or several, or if memprof starts its command in it.
    pub fn only_space(&self) -> Option<MmId> {
        let mut spaces = self.spaces.keys();
        let only = spaces.next().filter(|mm| !self.is_starting(**mm))?;
        spaces.next().is_none().then_some(*only)
    }

    /// Stores the mappings of a process for a peak that comes later, if the process is the only one.
    pub(super) fn note_mappings(&mut self, process: &Scanned) {
        // The scan of a peak has mappings that are no longer there, at the end.
        let in_order = process.vmas.is_sorted_by(|a, b| a.end <= b.start);
        if in_order
            && self.only_space() == Some(process.mm)
            && let Some(space) = self.spaces.get_mut(&process.mm)
        {
            space.vmas = process.vmas.as_slice().into();
        }
    }

    /// What is known of a followed process besides its records.
    pub fn known_at_peak(&self, mm: MmId) -> Option<KnownAtPeak> {
        let space = self.spaces.get(&mm)?;
        Some(KnownAtPeak {
            ancestors: space.ancestors.clone(),
            ranges: Arc::clone(&space.ranges),
            before: Arc::clone(&space.before),
            vmas: Arc::clone(&space.vmas),
        })
    }

    /// The memory of a process at its peak. `known` is what was known at that moment.
    ///
    /// # Errors
    /// If the process is not followed, or the scan fails.
    pub fn scan_peak(
        &mut self,
        seen: &PeakSeen,
        known: &KnownAtPeak,
        probe: &Probe,
    ) -> Result<Scanned> {
        let begun = Instant::now();
        let then = chunks_of(probe, seen.copy)?;
        let present = match self.present(seen.mm) {
            Err(FrozenScanError::Gone) => Present::default(),
            Ok(present) => present,
            Err(e) => anyhow::bail!("cannot scan what stays after a peak: {e:?}"),
        };
        let since = chunks_of(probe, seen.mm)?;
        let view = SpaceView {
            ancestors: &known.ancestors,
            ranges: &known.ranges,
            before: &known.before,
            ..self.view(seen.mm, probe)?
        };
        let may_be_unrecorded = |addr: u64| {
            let populated = || {
                view.ranges
                    .get(addr)
                    .is_some_and(|(_, owner)| owner.populated)
            };
            view.sampled || view.before.contains(addr) || populated()
        };
        let at_peak = AtPeak {
            now: &present,
            before: &known.vmas,
            then: &then,
            since: &since,
            seen,
            may_be_unrecorded: &may_be_unrecorded,
            page_size: page_size(),
        };
        let Restored {
            mut vmas,
            runs,
            gone,
        } = at_peak.restore();
        let ledger = PeakLedger {
            probe,
            mm: seen.mm,
            then: &then,
        };
        let mut tally = Tally::new(Join::new(&ledger, view), &vmas, &self.stacks);
        for (index, run) in runs {
            tally.add(index as usize, run);
        }
        let mut tallied = tally.finish()?;
        if gone.resident() + gone.file > 0 {
            tallied.totals.add_unobserved(GONE, Unobserved::Gone, gone);
            tallied.bytes.push(MappedBytes {
                not_observed: gone,
                ..MappedBytes::default()
            });
            let at = Addr(seen.dropped.start);
            vmas.push(unnamed(at, at, GONE));
        }
        let bytes = |pages: u64| pages * page_size();
        let figures = KernelFigures {
            anonymous: None,
            rss_anon: bytes(seen.anon),
            rss_shmem: bytes(seen.shmem),
            rss_file: bytes(seen.file),
            swap: bytes(seen.swap),
            page_tables: 0,
        };
        let scanned = self.scanned(seen.mm, vmas, tallied, (figures, begun.elapsed()));
        scanned.map_err(|e| anyhow::anyhow!("{e:?}"))
    }

    /// The pages that a process has now, or had at its end if its memory is kept.
    fn present(&mut self, mm: MmId) -> Result<Present, FrozenScanError> {
        let pid = self.pid_in(mm)?;
        let running = || -> Result<_, ScanError> { Pages::open(pid) };
        let (pages, vmas) = match (running(), proc_maps::read(pid, &mut self.classifier)) {
            (Ok(pages), Ok(vmas)) => (pages, vmas),
            _ => {
                let kept = self.spaces.get(&mm).and_then(|space| space.kept.clone());
                let kept = kept.ok_or(FrozenScanError::Gone)?;
                (kept.pages()?, kept.mappings(&mut self.classifier)?)
            }
        };
        let mut scanner = self.scanner(pages)?;
        let mut runs = Vec::new();
        let mut add = |index: usize, run: PageRun| push(&mut runs, index as u32, run);
        scanner.scan(&vmas, &mut add, &mut || ())?;
        Ok(Present { vmas, runs })
    }
}

/// All records of an address space.
fn chunks_of(probe: &Probe, mm: MmId) -> Result<Chunks> {
    let chunks = RefCell::new(Chunks::new());
    let Some(ledger) = SOURCE.ledger else {
        return Ok(Chunks::new());
    };
    probe.read(ledger, &mut |key, value| {
        let Some(key) = key.first_chunk().map(|key| u64::from_ne_bytes(*key)) else {
            return;
        };
        if key >> wire::REGION_BITS == u64::from(mm.0)
            && let Ok(chunk) = wire::read_record::<page_chunk>(value, size_of::<page_chunk>())
        {
            let number = key & ((1 << wire::REGION_BITS) - 1);
            chunks.borrow_mut().insert(number, Box::new(chunk.stack));
        }
    })?;
    Ok(chunks.into_inner())
}

#[cfg(test)]
mod tests;
