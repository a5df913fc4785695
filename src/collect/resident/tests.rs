//! The join against a model that decides page by page.

mod estimates;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::probe::wire::RECORD_STACK_BITS;
use memprof_sys::residency::{Backing, PageKind, Perms};

const PAGE: u64 = 4096;
const MM: MmId = MmId(2);
const PARENT: MmId = MmId(1);

#[derive(Default)]
struct FakeLedger(HashMap<(MmId, u64), Chunk>);

impl FakeLedger {
    fn set(&mut self, mm: MmId, page: u64, id: u32) {
        let chunk = self.0.entry((mm, page / 512)).or_insert([0; CHUNK_PAGES]);
        chunk[(page % 512) as usize] = id;
    }

    fn get(&self, mm: MmId, page: u64) -> u32 {
        self.0
            .get(&(mm, page / 512))
            .map_or(0, |c| c[(page % 512) as usize])
    }
}

impl PageLedger for FakeLedger {
    fn chunk(&self, mm: MmId, chunk: u64) -> Result<Option<Chunk>> {
        Ok(self.0.get(&(mm, chunk)).copied())
    }
}

fn vma(pages: Range<u64>) -> Vma {
    Vma {
        start: Addr(pages.start * PAGE),
        end: Addr(pages.end * PAGE),
        perms: Perms {
            read: true,
            write: true,
            ..Perms::default()
        },
        file_offset: 0,
        dev: (0, 0),
        ino: 0,
        name: String::new(),
        deleted: false,
        backing: Backing::Anon,
    }
}

fn run(pages: Range<u64>, kind: PageKind, huge: bool) -> PageRun {
    PageRun {
        start: Addr(pages.start * PAGE),
        end: Addr(pages.end * PAGE),
        kind,
        huge,
        maps: None,
    }
}

struct World {
    ledger: FakeLedger,
    ranges: RangeMap<RangeOwner>,
    before: RangeSet,
    sampled: bool,
}

impl World {
    fn new() -> World {
        World {
            ledger: FakeLedger::default(),
            ranges: RangeMap::new(1000),
            before: RangeSet::new(1000),
            sampled: false,
        }
    }

    fn join(&self, runs: &[PageRun], vma: &Vma) -> Totals {
        self.join_and_map(runs, vma).0
    }

    /// Returns the totals, and the mapping's figures. Copies of the records give the same as the ledger itself.
    fn join_and_map(&self, runs: &[PageRun], vma: &Vma) -> (Totals, MappedBytes) {
        let space = SpaceView {
            mm: MM,
            ancestors: &[PARENT],
            ranges: &self.ranges,
            before: &self.before,
            page_size: PAGE,
            sampled: self.sampled,
        };
        let copies = RefCell::default();
        let mut copier = Copier::new(&self.ledger, space, &copies);
        runs.iter().for_each(|run| copier.add(*run).unwrap());
        let (direct, copied) = (
            joined(&self.ledger, space, runs, vma),
            joined(&copies, space, runs, vma),
        );
        assert_eq!(direct, copied);
        direct
    }
}

fn joined(
    ledger: &impl PageLedger,
    space: SpaceView<'_>,
    runs: &[PageRun],
    vma: &Vma,
) -> (Totals, MappedBytes) {
    let (mut totals, mut mapping) = Default::default();
    let mut join = Join::new(ledger, space);
    for r in runs {
        join.add(vma, *r, &mut totals, &mut mapping).unwrap();
    }
    join.end_mapping(vma, &mut totals, &mut mapping);
    (totals, mapping)
}

fn stack_pages(totals: &Totals, id: u32) -> u64 {
    totals
        .stacks
        .get(&StackId(id))
        .map_or(0, |u| u.usage.anon / PAGE)
}

fn nobody_pages(totals: &Totals, reason: Unobserved) -> u64 {
    totals
        .unobserved
        .get(&("[anon]".into(), reason))
        .map_or(0, |u| u.usage.anon / PAGE)
}

#[test]
fn own_record_beats_parent_beats_range_beats_nothing() {
    let mut w = World::new();
    w.ledger.set(MM, 1000, 20);
    w.ledger.set(PARENT, 1000, 30);
    w.ledger.set(PARENT, 1001, 31);
    let owner = RangeOwner {
        stack: StackId(40),
        populated: false,
    };
    w.ranges.insert(1000 * PAGE..1003 * PAGE, owner).unwrap();
    w.before.insert(1003 * PAGE..1004 * PAGE).unwrap();
    let totals = w.join(&[run(1000..1005, PageKind::Anon, false)], &vma(0..9000));
    assert_eq!(stack_pages(&totals, 20), 1);
    assert_eq!(stack_pages(&totals, 30), 0);
    assert_eq!(stack_pages(&totals, 31), 1);
    assert_eq!(stack_pages(&totals, 40), 1);
    assert_eq!(nobody_pages(&totals, Unobserved::BeforeAttach), 1);
    assert_eq!(nobody_pages(&totals, Unobserved::NoEvent), 1);
}

#[test]
fn a_small_anonymous_page_takes_no_neighbours_stack() {
    let mut w = World::new();
    w.ledger.set(MM, 1000, 20);
    let totals = w.join(&[run(1000..1002, PageKind::Anon, false)], &vma(0..9000));
    assert_eq!(stack_pages(&totals, 20), 1);
    assert_eq!(nobody_pages(&totals, Unobserved::NoEvent), 1);
}

#[test]
fn a_collapsed_huge_page_belongs_to_who_touched_it() {
    let mut w = World::new();
    w.ledger.set(MM, 1024 + 10, 20);
    w.ledger.set(MM, 1024 + 500, 21);
    let totals = w.join(&[run(1024..1536, PageKind::Anon, true)], &vma(0..9000));
    assert_eq!(stack_pages(&totals, 20) + stack_pages(&totals, 21), 512);
    assert_eq!(stack_pages(&totals, 21), 512 - 256);
}

#[test]
fn what_was_there_before_takes_no_neighbours_stack() {
    let mut w = World::new();
    w.ledger.set(MM, 1024, 20);
    w.before.insert(1030 * PAGE..1536 * PAGE).unwrap();
    let totals = w.join(&[run(1024..1536, PageKind::Anon, true)], &vma(0..9000));
    assert_eq!(stack_pages(&totals, 20), 6);
    assert_eq!(nobody_pages(&totals, Unobserved::BeforeAttach), 506);
}

#[test]
fn fault_around_stays_in_its_window_and_mapping() {
    let mut w = World::new();
    w.ledger.set(MM, 1015, 20);
    w.ledger.set(MM, 1008, 21);
    let totals = w.join(&[run(1009..1030, PageKind::Shmem, false)], &vma(1009..1030));
    let shmem = |id| {
        totals
            .stacks
            .get(&StackId(id))
            .map_or(0, |u| u.usage.shmem / PAGE)
    };
    // The window of 1015 is 1008..1024; page 1008 lies outside the mapping.
    assert_eq!((shmem(20), shmem(21)), (15, 0));
}

#[test]
fn populated_ranges_come_before_neighbours() {
    let mut w = World::new();
    w.ledger.set(MM, 1024, 20);
    let owner = RangeOwner {
        stack: StackId(40),
        populated: true,
    };
    w.ranges.insert(1024 * PAGE..1536 * PAGE, owner).unwrap();
    let totals = w.join(&[run(1024..1536, PageKind::Anon, true)], &vma(0..9000));
    assert_eq!(
        (stack_pages(&totals, 20), stack_pages(&totals, 40)),
        (1, 511)
    );
}

#[test]
fn unwalked_pages_are_divided_among_sampled_stacks() {
    let mut w = World::new();
    w.sampled = true;
    let pages = run(1000..2010, PageKind::Anon, false);
    let totals = w.join(&[pages], &vma(0..9000));
    assert_eq!(nobody_pages(&totals, Unobserved::NotWalked), 1010);
    // One of four faults was walked, and one of eight; that of 22 in any case.
    w.ledger.set(MM, 1000, 20 | 4 << RECORD_STACK_BITS);
    w.ledger.set(MM, 2000, 21 | 8 << RECORD_STACK_BITS);
    w.ledger.set(MM, 1500, 22);
    // A copy of the parent's page, and a page that the parent has replaced.
    w.ledger.set(MM, 1999, STACK_UNWALKED);
    w.ledger.set(MM, 1998, STACK_UNRECORDED);
    w.ledger.set(PARENT, 1999, 30);
    w.ledger.set(PARENT, 1998, 31);
    let totals = w.join(&[pages], &vma(0..9000));
    assert_eq!(
        [20, 21, 22, 30, 31].map(|id| stack_pages(&totals, id)),
        [1 + 302, 1 + 705, 1, 0, 0]
    );
    // What was there before, and what a call filled, is known.
    w.before.insert(1600 * PAGE..1700 * PAGE).unwrap();
    let owner = RangeOwner {
        stack: StackId(40),
        populated: true,
    };
    w.ranges.insert(1200 * PAGE..1210 * PAGE, owner).unwrap();
    let totals = w.join(&[pages], &vma(0..9000));
    assert_eq!(
        [20, 21, 22, 40].map(|id| stack_pages(&totals, id)),
        [1 + 269, 1 + 628, 1, 10]
    );
    assert_eq!(nobody_pages(&totals, Unobserved::BeforeAttach), 100);
}

#[test]
fn a_lost_stack_is_said_to_be_lost() {
    let mut w = World::new();
    w.ledger.set(MM, 1000, STACK_LOST);
    let totals = w.join(&[run(1000..1001, PageKind::Anon, false)], &vma(0..9000));
    assert_eq!(nobody_pages(&totals, Unobserved::StackLost), 1);
}

proptest! {
    /// For any ledger, ranges and runs, each byte is counted once, and each small anonymous page has the owner that
    /// the rules determine for that page alone.
    #[test]
    fn every_byte_is_booked_once_and_rightly(
        records in proptest::collection::vec((any::<bool>(), 500u64..1600, 16u32..20), 0..200),
        ranges in proptest::collection::vec((500u64..1600, 1u64..300, 30u32..33, any::<bool>()), 0..6),
        before in proptest::collection::vec((500u64..1600, 1u64..300), 0..4),
        gaps in proptest::collection::vec((0u64..40, 1u64..200), 1..20),
        sampled in any::<bool>(),
    ) {
        let mut w = World::new();
        w.sampled = sampled;
        for (own, page, id) in records {
            w.ledger.set(if own { MM } else { PARENT }, page, id);
        }
        for (start, len, id, populated) in ranges {
            let owner = RangeOwner { stack: StackId(id), populated };
            w.ranges.insert(start * PAGE..(start + len) * PAGE, owner).unwrap();
        }
        for (start, len) in before {
            w.before.insert(start * PAGE..(start + len) * PAGE).unwrap();
        }
        let (mut at, mut runs, mut pages) = (500, Vec::new(), 0);
        for (gap, len) in gaps {
            runs.push(run(at + gap..at + gap + len, PageKind::Anon, false));
            at += gap + len;
            pages += len;
        }
        let (totals, mapping) = w.join_and_map(&runs, &vma(0..9000));

        let resident = || runs.iter().flat_map(|r| r.start.0 / PAGE..r.end.0 / PAGE);
        let record = |page| match w.ledger.get(MM, page) {
            0 => w.ledger.get(PARENT, page),
            own => own,
        };
        // Without sampled faults, unwalked pages have the owner of their range.
        let mut model = Totals::default();
        for page in resident() {
            let one = Usage { anon: PAGE, ..Usage::default() };
            let range = w.ranges.get(page * PAGE).map(|(_, owner)| owner);
            let before = w.before.contains(page * PAGE);
            if record(page) != 0 {
                model.add_stack(StackId(record(page)), one);
            } else if let Some(owner) = range {
                model.add_stack(owner.stack, one);
            } else if before {
                model.add_unobserved("[anon]", Unobserved::BeforeAttach, one);
            } else if sampled {
                model.add_unobserved("[anon]", Unobserved::NotWalked, one);
            } else {
                model.add_unobserved("[anon]", Unobserved::NoEvent, one);
            }
        }
        let mut mapped = MappedBytes::default();
        for amounts in model.stacks.values() {
            mapped.attributed += amounts.usage;
        }
        for amounts in model.unobserved.values() {
            mapped.not_observed += amounts.usage;
        }
        prop_assert_eq!(mapping, mapped);
        prop_assert_eq!(&totals, &model);
        let sum: u64 = totals.stacks.values().chain(totals.unobserved.values()).map(|u| u.usage.anon).sum();
        prop_assert_eq!(sum, pages * PAGE);
    }

    /// Huge pages and fault-around may choose among neighbours, but the sum stays the same.
    #[test]
    fn neighbours_keep_the_sum(
        records in proptest::collection::vec((500u64..1600, 16u32..20), 0..50),
        huge in any::<bool>(), start in 500u64..1100, len in 1u64..600,
    ) {
        let mut w = World::new();
        for (page, id) in records {
            w.ledger.set(MM, page, id);
        }
        let kind = if huge { PageKind::Anon } else { PageKind::Shmem };
        let (totals, mapped) = w.join_and_map(&[run(start..start + len, kind, huge)], &vma(0..9000));
        let sum: u64 =
            totals.stacks.values().chain(totals.unobserved.values()).map(|u| u.usage.resident()).sum();
        prop_assert_eq!(sum, len * PAGE);
        prop_assert_eq!(mapped.attributed.resident() + mapped.not_observed.resident(), sum);
        prop_assert_eq!(mapped.huge, if huge { sum } else { 0 });
    }
}
