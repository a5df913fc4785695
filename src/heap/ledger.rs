//! Whose each resident byte is: what of the heap is live, free or the allocator's own, and what is no heap.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::arenas::Arenas;
use super::glibc::{self, Refusal};
use super::memory::{Run, overlapping};
use super::pages::Occupancy;
use super::python::{self, Pymalloc, PythonHeap};
use super::reach;
use super::report::{Allocator, Heap, Object, OtherRow, Row, What};
use super::resident::HeapPages;
use super::seen;
use super::sizes::Sizes;
use super::snapshot::{self, Snapshot, SnapshotOptions};
use super::types::Census;
use crate::event::Pid;
use crate::freeze::Registers;
use crate::residency::category::{executable, of_all};
use crate::residency::{Category, figures, page_size};
use crate::target;
use anyhow::Result;

/// Bytes between the beginning of a chunk and what its header describes.
const SIZE_FIELD: u64 = 8;
/// Offset of a chunk's contents.
const CONTENTS: u64 = 16;
/// The part of a large free chunk that `malloc_trim` leaves alone, in bytes.
const LINKS: u64 = 48;

/// Maximum number of snapshots: a process is rarely stopped in the middle of `malloc`.
const ATTEMPTS: u32 = 3;

/// Takes a snapshot of a process and adds it up. Lists the `top` largest chunks. If
/// the heap does not fit together, it tries again.
///
/// # Errors
/// The process has ended, may not be read, or could not be stopped and copied in time. A heap that never fits together
/// is no error, but [`Allocator::Refused`].
pub fn measure(pid: Pid, options: &SnapshotOptions, top: usize) -> Result<Heap> {
    Ok(measure_with_pages(pid, options, top)?.0)
}

/// The same, and which pages of the heap were resident.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_with_pages(
    pid: Pid,
    options: &SnapshotOptions,
    top: usize,
) -> Result<(Heap, HeapPages)> {
    let mut attempts = 1;
    loop {
        let (heap, pages) = measure_once(pid, top, || snapshot::take(pid, options))?;
        let heap = Heap { attempts, ..heap };
        let refused = matches!(heap.allocator, Allocator::Refused { .. })
            || matches!(heap.python, Some(PythonHeap::Refused { .. }));
        if attempts == ATTEMPTS || !refused {
            return Ok((heap, pages));
        }
        attempts += 1;
    }
}

/// The same of a process that is about to exit and is stopped, with the registers of its last thread.
///
/// # Errors
/// It may not be read, or there is no memory for a copy of its memory.
pub(super) fn measure_exiting(pid: Pid, registers: Option<Registers>, top: usize) -> Result<Heap> {
    Ok(measure_once(pid, top, || snapshot::take_exiting(pid, registers))?.0)
}

fn measure_once(
    pid: Pid,
    top: usize,
    take: impl FnOnce() -> Result<Snapshot>,
) -> Result<(Heap, HeapPages)> {
    let before = figures::rollup(pid)?.anonymous;
    let snapshot = take()?;
    let after = figures::rollup(pid)?.anonymous;
    let mut read = glibc::read(&snapshot);
    let mut census = Census::new(Some(pid), &snapshot, top);
    let unreachable = match &mut read {
        Ok(Some(heap)) => Some(reach::search(&snapshot, heap, &mut census, top)),
        _ => None,
    };
    let (types, retained) = unreachable.as_ref().map(|_| census.finish()).unzip();
    let mut ledger = Ledger::new(&snapshot, top);
    if let Ok(Some(heap)) = &read {
        ledger.add_heap(heap);
    }
    let heap = read.as_ref().ok().and_then(Option::as_ref);
    let python = python::measure(pid, &snapshot, heap);
    if let Some(Ok((pymalloc, _))) = &python {
        ledger.add_python(pymalloc);
    }
    let addresses = heap.map_or(&[][..], |heap| &heap.addresses);
    let categories = of_all(pid, &snapshot.vmas, executable(pid));
    let sum = |resident: bool| {
        let runs = snapshot.pages.readable.iter().chain(&snapshot.pages.hidden);
        runs.filter(|run| run.resident == resident)
            .map(Run::len)
            .sum()
    };
    let heap = Heap {
        pid: pid.0,
        comm: target::comm(pid).unwrap_or_default(),
        taken: snapshot.taken.clone(),
        attempts: 1,
        copied: snapshot.memory.len(),
        unread: snapshot.memory.unread(),
        allocator: allocator(&read),
        others: ledger.others(&categories),
        rows: ledger.rows(),
        arenas: std::mem::take(&mut ledger.arenas).rows(addresses),
        anonymous: sum(true),
        kernel: [before, after],
        swapped: sum(false),
        trimmable: ledger.trimmable,
        largest: ledger.largest(),
        occupancy: ledger.occupancy.pages(),
        sizes: ledger.sizes.classes(),
        unreachable,
        types,
        retained,
        seen: seen::find(pid, &snapshot.vmas),
        python: python.map(|python| PythonHeap::of(&python, top)),
    };
    let Ledger { pages, ranges, .. } = ledger;
    Ok((heap, HeapPages::of(snapshot.vmas, &pages, &ranges)))
}

fn allocator(read: &Result<Option<glibc::Heap>, Refusal>) -> Allocator {
    match read {
        Ok(Some(heap)) => Allocator::Glibc {
            arenas: heap.arenas,
            thread_caches: heap.tcaches,
            mallinfo2: heap.mallinfo,
        },
        Ok(None) => Allocator::Unknown,
        Err(refusal) => Allocator::Refused {
            reason: refusal.to_string(),
        },
    }
}

/// Number and bytes of the chunks in use.
pub(super) fn live(snapshot: &Snapshot, heap: &glibc::Heap) -> (u64, u64) {
    let mut ledger = Ledger::new(snapshot, 1);
    ledger.add_heap(heap);
    let rows = ledger.rows().into_iter().filter(|row| row.what.is_live());
    rows.fold((0, 0), |(chunks, bytes), row| {
        (chunks + row.chunks, bytes + row.bytes)
    })
}

/// Sums while the heap is added.
#[derive(Debug)]
struct Ledger<'a> {
    snapshot: &'a Snapshot,
    /// The resident runs.
    pages: Vec<Run>,
    /// The first run that does not end before what is added next.
    next: usize,
    rows: [(u64, u64, u64); What::ALL.len()],
    /// The ranges of the heap.
    ranges: Vec<Run>,
    arenas: Arenas,
    occupancy: Occupancy,
    sizes: Sizes,
    /// The largest chunks in use: size, address, resident bytes. Of several of one size, those at the lowest addresses.
    largest: BinaryHeap<Reverse<(u64, Reverse<u64>, u64)>>,
    top: usize,
    trimmable: u64,
}

impl<'a> Ledger<'a> {
    fn new(snapshot: &'a Snapshot, top: usize) -> Ledger<'a> {
        let pages = snapshot.pages.readable.iter();
        Ledger {
            snapshot,
            pages: pages.filter(|run| run.resident).copied().collect(),
            next: 0,
            rows: Default::default(),
            ranges: Vec::new(),
            arenas: Arenas::default(),
            occupancy: Occupancy::new(page_size()),
            sizes: Sizes::default(),
            largest: BinaryHeap::new(),
            top,
            trimmable: 0,
        }
    }

    /// Adds the heap's parts and the chunks with mappings of their own, in address order.
    fn add_heap(&mut self, heap: &glibc::Heap) {
        self.ranges = heap.ranges();
        let mut mapped = heap.mmapped.iter().peekable();
        for part in &heap.parts {
            while let Some(chunk) = mapped.next_if(|chunk| chunk.start < part.start) {
                self.add_mapped(chunk);
            }
            self.add_part(part);
        }
        mapped.for_each(|chunk| self.add_mapped(chunk));
        self.occupancy.finish(&mut self.sizes);
    }

    /// Adds the arenas of Python's allocator, which are no part of the heap.
    fn add_python(&mut self, pymalloc: &Pymalloc) {
        self.arenas.begin_python();
        for (what, row) in pymalloc.rows(&self.pages) {
            self.rows[what as usize] = row;
            self.arenas.add(what, row.0, row.1, row.2);
        }
        self.ranges.extend(pymalloc.ranges());
        self.ranges.sort_by_key(|range| range.start);
    }

    fn add_part(&mut self, part: &glibc::Part) {
        self.arenas.begin(part.arena);
        let first = part.chunks.start() + SIZE_FIELD;
        self.add((part.start, first.min(part.end)), What::Overhead, None);
        for chunk in part.chunks.iter() {
            let what = What::of(chunk.kind);
            let contents = chunk.at + CONTENTS;
            self.add((chunk.at + SIZE_FIELD, contents), What::Overhead, None);
            self.rows[what as usize].0 += u64::from(what != What::Overhead);
            self.arenas.add(what, 1, 0, 0);
            // The first word of the next chunk's header belongs to this one.
            let end = (chunk.at + chunk.size + SIZE_FIELD).min(part.end);
            let class = (what != What::Top && what != What::Overhead)
                .then(|| self.sizes.add(chunk.size, what.is_live()));
            let resident = self.add((contents, end), what, class);
            match what {
                What::Live => self.rank(contents, end, resident),
                What::Unsorted | What::Small | What::Large => {
                    self.trim(chunk.at + LINKS, chunk.at + chunk.size);
                }
                // malloc_trim shortens the main arena, and leaves a smallest chunk.
                What::Top if part.arena == 0 => self.trim(chunk.at + 33, chunk.at + chunk.size),
                _ => {}
            }
        }
    }

    fn add_mapped(&mut self, chunk: &glibc::Mmapped) {
        self.arenas.begin_mapped();
        self.arenas.add(What::LiveMapped, 1, 0, 0);
        let (contents, end) = (chunk.at + CONTENTS, chunk.start + chunk.len);
        self.add((chunk.start, contents), What::Overhead, None);
        let class = self.sizes.add(end - chunk.at, true);
        self.rows[What::LiveMapped as usize].0 += 1;
        let resident = self.add((contents, end), What::LiveMapped, Some(class));
        self.rank(contents, end, resident);
    }

    /// Adds bytes behind those that were added before. Returns how many of them are resident.
    fn add(&mut self, (start, end): (u64, u64), what: What, class: Option<usize>) -> u64 {
        while self
            .pages
            .get(self.next)
            .is_some_and(|run| run.end <= start)
        {
            self.next += 1;
        }
        let mut resident = 0;
        for run in overlapping(&self.pages[self.next..], start, end) {
            resident += run.len();
            let live = class.filter(|_| what.is_live());
            let free = !what.is_overhead() && !what.is_live();
            self.occupancy
                .add(run.start, run.end, live, free, &mut self.sizes);
        }
        let (row, bytes) = (&mut self.rows[what as usize], end.saturating_sub(start));
        row.1 += bytes;
        row.2 += resident;
        self.arenas.add(what, 0, bytes, resident);
        resident
    }

    /// Counts the whole pages of a free range as those that can be returned.
    fn trim(&mut self, start: u64, end: u64) {
        let page = page_size();
        let (start, end) = (start.next_multiple_of(page), end / page * page);
        if start < end {
            let runs = overlapping(&self.pages[self.next..], start, end);
            self.trimmable += runs.map(|run| run.len()).sum::<u64>();
        }
    }

    fn rank(&mut self, address: u64, end: u64, resident: u64) {
        let object = Reverse((end - address, Reverse(address), resident));
        if self.largest.len() < self.top {
            self.largest.push(object);
        } else if self.largest.peek().is_some_and(|least| object < *least) {
            self.largest.pop();
            self.largest.push(object);
        }
    }

    fn rows(&self) -> Vec<Row> {
        let rows = What::ALL.into_iter().zip(self.rows);
        rows.map(|(what, (chunks, bytes, resident))| Row {
            what,
            chunks,
            bytes,
            resident,
        })
        .collect()
    }

    fn largest(&mut self) -> Vec<Object> {
        let sorted = std::mem::take(&mut self.largest).into_sorted_vec();
        let objects = sorted.into_iter().map(|Reverse(object)| object);
        objects
            .map(|(bytes, Reverse(address), resident)| Object {
                address,
                bytes,
                resident,
            })
            .collect()
    }

    /// The resident anonymous memory outside the heap, by category.
    fn others(&self, categories: &[Category]) -> Vec<OtherRow> {
        let mut rows: BTreeMap<Category, u64> = BTreeMap::new();
        let hidden: Vec<Run> = self
            .snapshot
            .pages
            .hidden
            .iter()
            .filter(|r| r.resident)
            .copied()
            .collect();
        let within = |runs: &[Run], start, end| -> u64 {
            overlapping(runs, start, end).map(|run| run.len()).sum()
        };
        for (vma, category) in self.snapshot.vmas.iter().zip(categories) {
            let (start, end) = (vma.start.0, vma.end.0);
            let heap: u64 = overlapping(&self.ranges, start, end)
                .map(|range| within(&self.pages, range.start, range.end))
                .sum();
            let all = within(&self.pages, start, end) + within(&hidden, start, end);
            *rows.entry(*category).or_default() += all - heap;
        }
        let rows = rows.into_iter().filter(|(_, resident)| *resident > 0);
        rows.map(|(category, resident)| OtherRow { category, resident })
            .collect()
    }
}
