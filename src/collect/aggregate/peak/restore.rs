//! Which pages of a process were resident at its peak. It is known in part:
//!
//! - Pages that are still resident were resident then if they had a record, and were not if they have got one since.
//! - Pages with a record that are no longer resident have been dropped since.
//! - Pages without a record may have been resident: pages around a fault on a file, pages of unwalked faults, pages from before the
//!   attach.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::probe::event::PeakSeen;
use crate::probe::source::resident_pages::Chunk;
use crate::probe::wire::{CHUNK_PAGES, RECORD_WRITE, STACK_NONE};
use memprof_sys::ids::Addr;
use memprof_sys::residency::{Backing, PageKind, PageRun, Perms, RangeSet, Vma, VmaKind};
use memprof_sys::usage::Usage;

/// Number of pages that one fault on a file or on shared memory maps around itself.
const FAULT_AROUND_PAGES: usize = 16;
/// Maximum number of runs of pages in one scan, 48 bytes each. Further pages are counted as gone.
const MAX_RUNS: usize = 1 << 20;
/// Maximum number of pages of the dropped range that are examined for pages without a record.
const MAX_EXAMINED: u64 = 1 << 22;
/// Records by the number of their chunk.
pub(super) type Chunks = BTreeMap<u64, Box<Chunk>>;

/// The pages that a process has now.
#[derive(Default)]
pub(super) struct Present {
    pub vmas: Vec<Vma>,
    /// Runs of pages with the index of their mapping.
    pub runs: Vec<(u32, PageRun)>,
}

/// What is known about a process's pages at its peak.
pub(super) struct AtPeak<'a> {
    /// The pages that are resident now.
    pub now: &'a Present,
    /// The mappings at the last scan before the peak; empty if there was none.
    pub before: &'a [Vma],
    /// The records at the peak.
    pub then: &'a Chunks,
    /// The records now.
    pub since: &'a Chunks,
    /// Records of processes from which it was forked, of pages that it may have had with them.
    pub inherited: &'a Chunks,
    /// Pages that were resident at the attach, of the process or of one from which it was forked, and have not been dropped since.
    pub older: &'a RangeSet,
    /// Whether it was forked: it has no pages of files from its parent.
    pub is_forked: bool,
    pub seen: &'a PeakSeen,
    /// Whether an anonymous page without a record may have been resident.
    pub may_be_unrecorded: &'a dyn Fn(u64) -> bool,
    /// Maximum number of pages that each of the kernel's counters lacks.
    pub lag: u64,
    pub page_size: u64,
}

/// The pages of a process at its peak.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub vmas: Vec<Vma>,
    /// Runs of pages with the index of their mapping, by mapping and address.
    pub runs: Vec<(u32, PageRun)>,
    /// Memory whose pages are not known.
    pub gone: Usage,
}

/// Numbers of pages that the kernel counted and that are not found yet.
struct Unfound {
    anon: u64,
    shmem: u64,
    file: u64,
}

impl Unfound {
    fn left(&mut self, kind: PageKind) -> Option<&mut u64> {
        match kind {
            PageKind::Anon => Some(&mut self.anon),
            PageKind::Shmem => Some(&mut self.shmem),
            PageKind::File => Some(&mut self.file),
            PageKind::Swap | PageKind::Hugetlb => None,
        }
    }

    fn is_none(&self) -> bool {
        self.anon + self.shmem + self.file == 0
    }

    /// Takes up to `pages` pages of a kind. Swapped and huge pages of hugetlbfs are in no counter, and unlimited.
    fn take(&mut self, kind: PageKind, pages: u64) -> u64 {
        match self.left(kind) {
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
            // The first read of an anonymous page maps the page of zeros, which does not count.
            return match record != STACK_NONE && record & RECORD_WRITE == 0 {
                true => [File, Shmem, Anon],
                false => [Anon, Shmem, File],
            };
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
    pub fn restore(&self) -> Restored {
        let mut unfound = Unfound {
            anon: self.seen.anon,
            shmem: self.seen.shmem,
            file: self.seen.file,
        };
        let (mut stay, unsure, resident) = self.staying(&mut unfound);
        let mut others = Others::new(self);
        for in_range in [true, false] {
            for (chunk, records) in self.then {
                for (at, record) in records.iter().enumerate() {
                    let page = chunk * CHUNK_PAGES as u64 + at as u64;
                    if *record != STACK_NONE
                        && self.is_dropped(page) == in_range
                        && !is_in(&resident, page)
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
        self.add_unrecorded(resident, &mut others, &mut unfound);
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

    /// The resident pages outside the dropped range that were resident at the peak, and those that may have been; and all of both.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn staying(
        &self,
        unfound: &mut Unfound,
    ) -> (Vec<(u32, PageRun)>, Vec<(u32, PageRun)>, Resident) {
        let (mut sure, mut unsure) = (Vec::new(), Vec::new());
        let mut resident = Resident::new();
        for (index, run) in &self.now.runs {
            let pages = run.start.0 / self.page_size..run.end.0 / self.page_size;
            let mut at = pages.start;
            while at < pages.end {
                let chunk = at / CHUNK_PAGES as u64;
                let (then, since) = (self.then.get(&chunk), self.since.get(&chunk));
                let class = |page: u64| match () {
                    () if self.is_dropped(page) => Class::Other,
                    () if has(then, page) => Class::Sure,
                    () if has(since, page) => Class::Other,
                    () => Class::Unsure,
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
                    // The rest is counted as gone.
                    Class::Sure if sure.len() >= MAX_RUNS => {}
                    Class::Sure => {
                        unfound.take(run.kind, end - at);
                        push(&mut sure, *index, part);
                    }
                }
                if first != Class::Other {
                    (at..end).for_each(|page| mark(&mut resident, page));
                }
                at = end;
            }
        }
        (sure, unsure, resident)
    }
}

/// Pages, as bits by chunk.
type Resident = HashMap<u64, [u64; CHUNK_PAGES / 64]>;

fn mark(pages: &mut Resident, page: u64) {
    let bits = pages.entry(page / CHUNK_PAGES as u64).or_default();
    let at = page as usize % CHUNK_PAGES;
    bits[at / 64] |= 1 << (at % 64);
}

fn is_in(pages: &Resident, page: u64) -> bool {
    let bits = pages.get(&(page / CHUNK_PAGES as u64));
    let at = page as usize % CHUNK_PAGES;
    bits.is_some_and(|bits| bits[at / 64] >> (at % 64) & 1 == 1)
}

/// Whether the chunk of a page has a record of it.
#[allow(clippy::borrowed_box, reason = "as maps return it")]
fn has(chunk: Option<&Box<Chunk>>, page: u64) -> bool {
    chunk.is_some_and(|chunk| chunk[page as usize % CHUNK_PAGES] != STACK_NONE)
}

/// Adds records of pages that have none.
pub(super) fn add_missing(all: &mut Chunks, more: &Chunks) {
    for (number, theirs) in more {
        let chunk = all
            .entry(*number)
            .or_insert_with(|| Box::new([STACK_NONE; CHUNK_PAGES]));
        let both = chunk.iter_mut().zip(theirs.iter());
        let missing = both.filter(|(record, _)| **record == STACK_NONE);
        missing.for_each(|(record, their)| *record = *their);
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
pub(super) fn push<T: PartialEq>(runs: &mut Vec<(T, PageRun)>, of: T, run: PageRun) {
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
        if self.runs.len() >= MAX_RUNS {
            return;
        }
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
        if self.runs.len() >= MAX_RUNS {
            return;
        }
        let home = self.home(page);
        // At most a few pages of the kernel's own mappings count, and none of them is anonymous.
        let kind = self.at.vma(home).map(Vma::kind);
        if matches!(kind, Some(VmaKind::Special | VmaKind::Device)) {
            return;
        }
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
pub(super) fn unnamed(start: Addr, end: Addr, name: &str) -> Vma {
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

mod unrecorded;

#[cfg(test)]
mod tests;
