//! Which pages were resident at the peak, for page tables and records made by hand. Addresses are in pages.

use super::*;
use crate::probe::wire::RECORD_STACK_BITS;
use memprof_sys::ids::MmId;

const PAGE: u64 = 4096;

fn vma(start: u64, end: u64, backing: Backing, shared: bool) -> Vma {
    Vma {
        backing,
        perms: Perms {
            read: true,
            write: true,
            shared,
            ..Perms::default()
        },
        ..unnamed(Addr(start * PAGE), Addr(end * PAGE), "")
    }
}

fn anon(start: u64, end: u64) -> Vma {
    vma(start, end, Backing::Anon, false)
}

fn run(start: u64, end: u64, kind: PageKind) -> PageRun {
    PageRun {
        start: Addr(start * PAGE),
        end: Addr(end * PAGE),
        kind,
        huge: false,
        maps: None,
    }
}

fn chunks(records: &[(Range<u64>, u32)]) -> Chunks {
    let mut chunks = Chunks::new();
    for (pages, record) in records {
        for page in pages.clone() {
            let chunk = chunks.entry(page / CHUNK_PAGES as u64);
            let chunk = chunk.or_insert_with(|| Box::new([STACK_NONE; CHUNK_PAGES]));
            chunk[page as usize % CHUNK_PAGES] = *record;
        }
    }
    chunks
}

/// A process and its peak.
struct Case {
    vmas: Vec<Vma>,
    before: Vec<Vma>,
    runs: Vec<(u32, PageRun)>,
    then: Chunks,
    since: Chunks,
    inherited: Chunks,
    older: Vec<Range<u64>>,
    dropped: Range<u64>,
    /// Anonymous, shared and file pages that the kernel counted.
    rss: [u64; 3],
    unrecorded: bool,
}

impl Case {
    fn restore(self) -> Restored {
        let [anon, shmem, file] = self.rss;
        let seen = PeakSeen {
            highest_before: 0,
            others: 0,
            mm: MmId(1),
            copy: MmId(2),
            incomplete: false,
            dropped: self.dropped.start * PAGE..self.dropped.end * PAGE,
            at: 0,
            file,
            anon,
            shmem,
            swap: 0,
        };
        let now = Present {
            vmas: self.vmas,
            runs: self.runs,
        };
        let unrecorded = self.unrecorded;
        let mut older = RangeSet::new(100);
        for pages in &self.older {
            assert!(older.insert(pages.start * PAGE..pages.end * PAGE).is_ok());
        }
        let at_peak = AtPeak {
            now: &now,
            before: &self.before,
            then: &self.then,
            since: &self.since,
            inherited: &self.inherited,
            older: &older,
            is_forked: !self.inherited.is_empty(),
            seen: &seen,
            may_be_unrecorded: &move |_| unrecorded,
            lag: 1,
            page_size: PAGE,
        };
        let restored = at_peak.restore();
        let mut found = Usage::default();
        for (index, run) in &restored.runs {
            memprof_sys::residency::add_run(&mut found, *run);
            assert!((*index as usize) < restored.vmas.len());
        }
        let mut starts: Vec<_> = restored
            .vmas
            .iter()
            .map(|vma| (vma.start, vma.perms.to_string()))
            .collect();
        starts.sort();
        assert!(starts.is_sorted_by(|a, b| a != b), "{starts:?}");
        found += restored.gone;
        let pages = [found.anon, found.shmem, found.file].map(|bytes| bytes / PAGE);
        assert_eq!(pages, self.rss, "the total is the kernel's");
        restored
    }
}

fn pages(restored: &Restored, kind: PageKind) -> Vec<Range<u64>> {
    let of_kind = restored.runs.iter().filter(|(_, run)| run.kind == kind);
    let mut pages: Vec<_> = of_kind
        .map(|(_, run)| run.start.0 / PAGE..run.end.0 / PAGE)
        .collect();
    pages.sort_by_key(|range| range.start);
    pages
}

/// One mapping of ten pages stays, another of twenty pages is dropped.
fn dropped_mapping() -> Case {
    Case {
        vmas: vec![anon(0x1000, 0x1010)],
        before: vec![],
        runs: vec![(0, run(0x1000, 0x100a, PageKind::Anon))],
        then: chunks(&[(0x1000..0x100a, 20), (0x2000..0x2014, 21)]),
        since: chunks(&[(0x1000..0x100a, 20)]),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0x2000..0x2020,
        rss: [30, 0, 0],
        unrecorded: false,
    }
}

#[test]
fn what_was_dropped_and_what_stays() {
    let restored = dropped_mapping().restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x100a, 0x2000..0x2014]
    );
    assert_eq!(restored.gone, Usage::default());
    // The dropped mapping has its own entry.
    let gone = restored.vmas.last().unwrap();
    assert_eq!(
        (restored.vmas.len(), gone.start.0, gone.end.0),
        (2, 0x2000 * PAGE, 0x2014 * PAGE)
    );
}

/// The heap after `brk`: the mapping has shrunk.
#[test]
fn a_mapping_that_has_shrunk_is_one_mapping() {
    let mut case = dropped_mapping();
    case.before = vec![anon(0x2000, 0x2014)];
    case.vmas.push(anon(0x2000, 0x2001));
    let restored = case.restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x100a, 0x2000..0x2014]
    );
    let ends: Vec<_> = restored.vmas.iter().map(|vma| vma.end.0 / PAGE).collect();
    assert_eq!(ends[1..], [0x2014]);
}

#[test]
fn what_came_later_does_not_count() {
    let mut case = dropped_mapping();
    // The next spike is at the same address, and the process has touched more of what stays.
    case.vmas.push(anon(0x2000, 0x2020));
    case.runs = vec![
        (0, run(0x1000, 0x100e, PageKind::Anon)),
        (1, run(0x2000, 0x2020, PageKind::Anon)),
    ];
    case.since = chunks(&[(0x1000..0x100e, 20), (0x2000..0x2020, 22)]);
    let restored = case.restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x100a, 0x2000..0x2014]
    );
}

#[test]
fn what_another_call_dropped_since_counts() {
    let mut case = dropped_mapping();
    case.runs = vec![(0, run(0x1000, 0x1004, PageKind::Anon))];
    case.since = chunks(&[(0x1000..0x1004, 20)]);
    let restored = case.restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x1004, 0x1004..0x100a, 0x2000..0x2014]
    );
}

#[test]
fn more_than_the_kernel_counted_is_not_shown() {
    let mut case = dropped_mapping();
    // Five of the recorded pages were reclaimed before.
    case.rss = [25, 0, 0];
    let restored = case.restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x100a, 0x2000..0x200f]
    );
}

#[test]
fn unknown_pages_are_gone_unless_they_may_have_been_there() {
    let mut case = dropped_mapping();
    case.rss = [34, 0, 0];
    let restored = case.restore();
    assert_eq!(restored.gone.anon, 4 * PAGE);
    // Faults that were not walked leave no record.
    let mut case = dropped_mapping();
    (case.rss, case.unrecorded) = ([34, 0, 0], true);
    let restored = case.restore();
    assert_eq!(restored.gone, Usage::default());
    let found = pages(&restored, PageKind::Anon);
    assert_eq!(found.iter().map(|r| r.end - r.start).sum::<u64>(), 34);
}

#[test]
fn one_fault_on_a_file_maps_its_neighbours() {
    let case = Case {
        vmas: vec![],
        before: vec![vma(0x2000, 0x2040, Backing::File, true)],
        runs: vec![],
        then: chunks(&[(0x2003..0x2004, 20), (0x2013..0x2014, 20)]),
        since: Chunks::new(),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0x2000..0x2040,
        rss: [0, 0, 24],
        unrecorded: false,
    };
    let restored = case.restore();
    let found = pages(&restored, PageKind::File);
    assert_eq!(found.iter().map(|r| r.end - r.start).sum::<u64>(), 24);
    // Both faults have pages around them before any other page counts.
    assert!(found.iter().any(|r| r.contains(&0x2013)), "{found:?}");
    assert_eq!(restored.vmas.len(), 1);
}

/// Another file was unmapped, too, before anybody could look.
#[test]
fn neighbours_that_another_call_dropped_count() {
    let file = |start| vma(start, start + 0x40, Backing::File, true);
    let case = |rss| Case {
        vmas: vec![],
        before: vec![file(0x2000), file(0x3000)],
        runs: vec![],
        then: chunks(&[(0x2003..0x2004, 20), (0x3003..0x3004, 20)]),
        since: chunks(&[(0x3004..0x3005, 21)]),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0x2000..0x2040,
        rss: [0, 0, rss],
        unrecorded: false,
    };
    let restored = case(31).restore();
    let found = pages(&restored, PageKind::File);
    // One of them came later.
    assert_eq!(found, [0x2000..0x2010, 0x3000..0x3004, 0x3005..0x3010]);
    assert_eq!(restored.gone, Usage::default());
    // Pages of the dropped file come first.
    let found = pages(&case(17).restore(), PageKind::File);
    assert_eq!(found, [0x2000..0x2010, 0x3003..0x3004]);
}

#[test]
fn a_process_that_has_ended_has_its_records() {
    let write = 1 << RECORD_STACK_BITS | RECORD_WRITE;
    let case = Case {
        vmas: vec![],
        before: vec![
            vma(0x1000, 0x1010, Backing::File, false),
            anon(0x2000, 0x2100),
        ],
        runs: vec![],
        then: chunks(&[
            (0x1000..0x1001, 20),
            (0x1001..0x1002, 20 | write),
            (0x2000..0x2080, 21),
        ]),
        since: Chunks::new(),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0..1 << 45,
        rss: [129, 0, 40],
        unrecorded: true,
    };
    let restored = case.restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1001..0x1002, 0x2000..0x2080]
    );
    // The neighbours of the read, and no more: nothing is known of other files.
    assert_eq!(
        pages(&restored, PageKind::File),
        [0x1000..0x1001, 0x1002..0x1010]
    );
    assert_eq!(restored.gone.file, 25 * PAGE);
}

/// Most faults left no record, and the whole address space is dropped: pages around recorded ones were resident.
#[test]
fn pages_around_those_with_a_record_come_first() {
    let every_eighth = |pages: Range<u64>| pages.step_by(8).map(|page| (page..page + 1, 20));
    let records: Vec<_> = every_eighth(0x2000..0x2100).collect();
    let mut vdso = vma(0x2180, 0x2182, Backing::Special, false);
    vdso.name = "[vdso]".to_owned();
    let case = |rss: u64| Case {
        vmas: vec![],
        before: vec![anon(0x1f00, 0x2140), vdso.clone(), anon(0x9000, 0xa000)],
        runs: vec![],
        then: chunks(&records),
        since: Chunks::new(),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0..1 << 45,
        rss: [rss, 0, 0],
        unrecorded: true,
    };
    let found = pages(&case(0x100).restore(), PageKind::Anon);
    assert_eq!((found.len(), &found[0]), (1, &(0x2000..0x2100)));
    // The rest of the chunk, as far as it is mapped; nothing is known of other chunks.
    let restored = case(0x150).restore();
    let found = pages(&restored, PageKind::Anon);
    assert_eq!((found.len(), &found[0]), (1, &(0x2000..0x2140)));
    assert_eq!(restored.gone.anon, 0x10 * PAGE);
}

/// A process that ended before any scan: what was read first is of files, and what was written first is not.
#[test]
fn a_short_life_has_unknown_mappings() {
    let write = 1 << RECORD_STACK_BITS | RECORD_WRITE;
    let case = Case {
        vmas: vec![],
        before: vec![],
        runs: vec![],
        then: chunks(&[(0x1000..0x1010, 20), (0x2000..0x2020, 20 | write)]),
        since: Chunks::new(),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0..1 << 45,
        rss: [32, 0, 16],
        unrecorded: false,
    };
    let restored = case.restore();
    let found = [PageKind::Anon, PageKind::File].map(|kind| pages(&restored, kind));
    assert_eq!(found.concat(), [0x2000..0x2020, 0x1000..0x1010]);
}

/// A child has ended that had written to some of its parent's pages.
#[test]
fn a_child_that_has_ended_had_its_parents_pages() {
    let write = 1 << RECORD_STACK_BITS | RECORD_WRITE;
    let case = |rss: u64| Case {
        vmas: vec![],
        before: vec![
            vma(0x500, 0x600, Backing::File, false),
            anon(0x1000, 0x2000),
        ],
        runs: vec![],
        then: chunks(&[(0x1000..0x1010, 20), (0x1800..0x1820, 21)]),
        since: Chunks::new(),
        inherited: chunks(&[
            (0x500..0x520, 30),
            (0x520..0x522, 31 | write),
            (0x1000..0x1020, 32),
        ]),
        older: vec![],
        dropped: 0..1 << 45,
        rss: [rss, 0, 0],
        unrecorded: false,
    };
    // The file's pages were not copied by fork.
    let inherited = [0x520..0x522, 0x1000..0x1020, 0x1800..0x1820];
    let restored = case(0x42).restore();
    assert_eq!(pages(&restored, PageKind::Anon), inherited);
    // The child's end has begun, or it has copied a page since.
    let mut ending = case(0x42);
    ending.vmas = vec![anon(0x1000, 0x2000)];
    ending.runs = vec![(0, run(0x1018, 0x1019, PageKind::Anon))];
    ending.since = chunks(&[(0x1012..0x1013, 40)]);
    assert_eq!(pages(&ending.restore(), PageKind::Anon), inherited);
    // The parent has got more since than the child can have had.
    let restored = case(0x40).restore();
    assert_eq!(
        pages(&restored, PageKind::Anon),
        [0x1000..0x1010, 0x1800..0x1820]
    );
    assert_eq!(restored.gone.anon, 0x10 * PAGE);
}

/// Most of the parent's faults left no record either.
#[test]
fn pages_around_inherited_ones_were_inherited() {
    let records: Vec<_> = (0x1000..0x1100u64)
        .step_by(8)
        .map(|page| (page..page + 1, 30))
        .collect();
    let case = Case {
        vmas: vec![],
        before: vec![anon(0x1000, 0x2000)],
        runs: vec![],
        then: chunks(&[(0x1800..0x1820, 21)]),
        since: Chunks::new(),
        inherited: chunks(&records),
        older: vec![],
        dropped: 0..1 << 45,
        rss: [0x120, 0, 0],
        unrecorded: true,
    };
    let found = pages(&case.restore(), PageKind::Anon);
    assert_eq!(found, [0x1000..0x1100, 0x1800..0x1820]);
}

/// Nothing was recorded of pages that were there before the attach. A child has no pages of files from its parent.
#[test]
fn what_was_there_before_the_attach() {
    let case = |inherited: &[(Range<u64>, u32)], file| Case {
        vmas: vec![],
        before: vec![
            vma(0x500, 0x600, Backing::File, false),
            anon(0x1000, 0x2000),
        ],
        runs: vec![],
        then: chunks(&[(0x1010..0x1020, 20)]),
        since: Chunks::new(),
        inherited: chunks(inherited),
        older: vec![0x500..0x510, 0x1000..0x1018, 0x1c00..0x1c40],
        dropped: 0..1 << 45,
        rss: [0x60, 0, file],
        unrecorded: true,
    };
    let of =
        |restored: &Restored| [PageKind::Anon, PageKind::File].map(|kind| pages(restored, kind));
    let restored = case(&[], 0x10).restore();
    let anon = [0x1000..0x1020, 0x1c00..0x1c40];
    let all = of(&restored).concat();
    assert_eq!(all, [0x1000..0x1020, 0x1c00..0x1c40, 0x500..0x510]);
    // One page of the parent is in a record.
    let restored = case(&[(0x1000..0x1001, 30)], 0x10).restore();
    assert_eq!(of(&restored)[0], anon);
    assert_eq!(restored.gone.file, 0x10 * PAGE);
}

#[test]
fn mappings_are_found_by_address() {
    let vmas = [anon(2, 4), anon(4, 5), anon(8, 9)];
    let found = [1, 2, 3, 4, 5, 8, 9].map(|page| find(&vmas, page * PAGE));
    assert_eq!(found, [Err(0), Ok(0), Ok(0), Ok(1), Err(2), Ok(2), Err(3)]);
}

/// Each run of pages takes memory, so their number is limited.
#[test]
fn too_many_runs_are_gone() {
    let (runs, more) = (MAX_RUNS as u64, 10);
    let records: Vec<_> = (0..runs + more).map(|at| (2 * at..2 * at + 1, 1)).collect();
    let ended = Case {
        vmas: Vec::new(),
        before: vec![anon(0, 2 * (runs + more))],
        runs: Vec::new(),
        then: chunks(&records),
        since: Chunks::new(),
        inherited: Chunks::new(),
        older: vec![],
        dropped: 0..2 * (runs + more),
        rss: [runs + more, 0, 0],
        unrecorded: false,
    };
    assert_eq!(ended.restore().gone.anon, more * PAGE);
}
