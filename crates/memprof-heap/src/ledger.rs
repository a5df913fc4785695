//! The ledger attributes every resident byte of a process: heap bytes that are live, free or the allocator's own, and
//! memory outside the heap.

mod of_glibc;
mod of_jemalloc;
mod of_samples;
mod of_spans;

pub(super) use of_samples::join;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::address_map::Cells;
use super::all_heaps::AllHeaps;
use super::arenas::Arenas;
use super::by_stack::{self, Heads, HeapSamples, Holdings, Joint, RangeUse};
use super::core_file::CoreWriter;
use super::glibc::{self, Refusal};
use super::jemalloc::{self, JemallocHeap};
use super::memory::{Run, overlapping};
use super::pages::Occupancy;
use super::python::{self, PythonBlocks, PythonHeap, PythonMemory};
use super::reach::Unreachable;
use super::report::{Allocator, Heap, HeapRegion, Object, OtherRow, RegionRow};
use super::resident::HeapPages;
use super::sizes::Sizes;
use super::snapshot::{self, Snapshot, SnapshotOptions};
use super::source::Source;
use super::types::Census;
use super::whole::{Anonymous, Disturbed};
use super::zero_pages::ZeroRuns;
use super::{how_read, other_allocators, reach, spans};
use memprof_sys::freeze::{Guard, Registers};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{Category, Method, Scanner, figures, page_size};

/// Maximum number of snapshots. A process is rarely stopped in the middle of `malloc`.
const ATTEMPTS: u32 = 3;

/// Takes a snapshot of a process and adds it up. Lists the `top` largest chunks. Retries if the heap's structures are
/// inconsistent.
///
/// # Errors
/// The process has ended, may not be read, or could not be stopped and copied in time. A heap that stays inconsistent
/// is not an error, but [`Allocator::Refused`].
pub fn measure(pid: Pid, options: &SnapshotOptions, top: usize) -> Result<Heap> {
    let guard = &mut Guard::default();
    Ok(measure_with_samples(pid, options, top, guard, &mut |_| None)?.heap)
}

/// Like [`measure`]; also writes the snapshot as a core to `path`, which only its owner may read.
///
/// # Errors
/// The errors of [`measure`], or the core cannot be written. No file is left then.
pub fn measure_and_save(
    pid: Pid,
    options: &SnapshotOptions,
    top: usize,
    path: &Path,
) -> Result<Heap> {
    let mut writer = CoreWriter::new(pid, path)?;
    let guard = &mut Guard::default();
    let measured = measure_again(pid, options, top, guard, &mut |_| None, &mut |snapshot| {
        writer.write(snapshot)
    });
    let mut heap = measured?.heap;
    heap.saved = Some(writer.finish()?);
    Ok(heap)
}

/// The sums of a snapshot, with the data for further joins.
#[derive(Debug)]
pub struct Measured {
    /// The sums.
    pub heap: Heap,
    /// The resident pages of the heap.
    pub pages: HeapPages,
    /// The heap joined with samples, if there are samples and the heap was read.
    pub joint: Option<Joint>,
    /// Whether another snapshot may contain memory that this one lacks.
    unforeseen: bool,
}

impl Measured {
    /// Whether another snapshot may be more complete.
    fn is_to_be_repeated(&self) -> bool {
        self.unforeseen
            || self.heap.refused().is_some()
            || matches!(self.heap.python, Some(PythonHeap::Refused { .. }))
    }
}

/// What is done with each snapshot before it is added up.
type Save<'a> = &'a mut dyn FnMut(&Snapshot) -> Result<()>;

/// Supplies the sampled allocations that were live at a moment, in ns of `CLOCK_MONOTONIC`; `None` if the process is
/// not sampled.
pub type SampleSource<'a> = &'a mut dyn FnMut(u64) -> Option<HeapSamples>;

/// Like [`measure`], with samples. `guard` stops or forks the process.
///
/// # Errors
/// The errors of [`measure`].
pub fn measure_with_samples(
    pid: Pid,
    options: &SnapshotOptions,
    top: usize,
    guard: &mut Guard,
    samples: SampleSource,
) -> Result<Measured> {
    measure_again(pid, options, top, guard, samples, &mut |_| Ok(()))
}

/// Takes snapshots until one is consistent. `save` is called with each.
fn measure_again(
    pid: Pid,
    options: &SnapshotOptions,
    top: usize,
    guard: &mut Guard,
    samples: SampleSource,
    save: Save<'_>,
) -> Result<Measured> {
    let (mut stopped, mut last, mut disturbed) = (Duration::ZERO, None, None);
    for attempts in 1..=ATTEMPTS {
        let take = || snapshot::take(pid, options, guard, &mut stopped);
        match measure_once(pid, top, take, samples, save) {
            Ok(mut measured) => {
                (measured.heap.attempts, measured.heap.disturbed) = (attempts, disturbed.clone());
                if !measured.is_to_be_repeated() {
                    return Ok(measured);
                }
                last = Some(measured);
            }
            Err(e) if attempts < ATTEMPTS && e.is::<Disturbed>() => {
                (last, disturbed) = (None, Some(e.to_string()));
            }
            Err(e) if e.is::<Disturbed>() => {
                return Err(e.context(format!("none of {ATTEMPTS} snapshots could be finished")));
            }
            // The attempt may have failed because no time was left. Fall back to the last snapshot.
            Err(e) => return last.map(|last| with_stops(last, stopped)).ok_or(e),
        }
    }
    last.context("no snapshot was taken")
}

/// Sets the total time for which the process was stopped.
fn with_stops(mut measured: Measured, stopped: Duration) -> Measured {
    measured.heap.taken.stops_ms = stopped.as_secs_f64() * 1e3;
    measured
}

/// Measures the heap of a process that is about to exit and is stopped. `registers` are those of its last thread.
///
/// # Errors
/// The process may not be read, or there is not enough memory for the copy.
pub fn measure_exiting(
    pid: Pid,
    registers: Option<Registers>,
    top: usize,
    samples: SampleSource,
) -> Result<Measured> {
    let take = || snapshot::take_exiting(pid, registers);
    measure_once(pid, top, take, samples, &mut |_| Ok(()))
}

fn measure_once(
    pid: Pid,
    top: usize,
    take: impl FnOnce() -> Result<Snapshot>,
    samples: SampleSource,
    save: Save<'_>,
) -> Result<Measured> {
    // Stays bound to the program that the process runs now, so that an `execve` is detected below.
    let program = Scanner::open(pid, Method::Auto)?;
    let snapshot = take()?;
    save(&snapshot)?;
    let samples = samples(snapshot.at);
    let measured = measure_snapshot(Source::Process(pid), snapshot, top, samples)?;
    if program.check_alive().is_err() && figures::counters(pid).is_ok() {
        return Err(Disturbed::OtherProgram.into());
    }
    Ok(measured)
}

/// Adds up a snapshot.
pub(super) fn measure_snapshot(
    source: Source<'_>,
    snapshot: Snapshot,
    top: usize,
    samples: Option<HeapSamples>,
) -> Result<Measured> {
    let sum = |resident: bool| {
        let runs = snapshot.pages.readable.iter().chain(&snapshot.pages.hidden);
        runs.filter(|run| run.resident == resident)
            .map(Run::len)
            .sum()
    };
    let anonymous = Anonymous::from([sum(true), sum(false)]);
    let kernel = snapshot.kernel;
    let doubt = snapshot.doubt(anonymous);
    let glibc = glibc::read(&snapshot);
    let allocator = allocator(&glibc);
    let glibc = glibc.ok().flatten();
    let jemalloc = jemalloc::measure(&snapshot, glibc.as_ref());
    let mut seen = other_allocators::find(source, &snapshot.vmas);
    let in_short = JemallocHeap::from_read(&jemalloc, &mut seen);
    let jemalloc = jemalloc.ok().flatten();
    let (spans, managed, other_heaps) =
        spans::read(&snapshot, glibc.as_ref(), jemalloc.as_ref(), &mut seen);
    let mut heaps = AllHeaps::new(glibc, jemalloc).with_spans(spans);
    let python = python::measure(source, &snapshot, &heaps);
    let mut census = Census::new(source, &snapshot, top);
    if let Some(Ok((pymalloc, objects))) = &python {
        census.python = PythonBlocks::new(pymalloc, objects);
    }
    if !heaps.is_empty() {
        census.declare(source, &snapshot, &heaps);
    }
    let samples = samples.filter(|_| !heaps.is_empty());
    let pymalloc = python.as_ref().and_then(|python| python.as_ref().ok());
    let pymalloc = pymalloc.map(|(pymalloc, _)| pymalloc);
    let placed =
        samples.map(|samples| (by_stack::place(&heaps, pymalloc, &samples), samples.origin));
    if let Some(((placed, _), _)) = &placed {
        census.heads = Heads::new(placed);
    }
    let searched = (!heaps.is_empty()).then(|| match &doubt {
        None => Some(reach::search(&snapshot, &mut heaps, &mut census, top)),
        Some(_) => {
            reach::search_in_part(&snapshot, &mut heaps, &mut census);
            None
        }
    });
    let heads = std::mem::take(&mut census.heads);
    let mut unreachable = None;
    let (mut types, mut retained) = (None, None);
    if let Some(searched) = &searched {
        let (found, roots, (shapes, shapes_left_out)) = census.finish();
        (types, retained) = (Some(found), Some(roots));
        unreachable = searched.clone().map(|lost| Unreachable {
            shapes,
            shapes_left_out,
            ..lost
        });
    }
    let mut ledger = Ledger::new(&snapshot, top);
    if let Some(((placed, _), origin)) = &placed {
        ledger.hold(placed, origin.interval);
    }
    ledger.add_heaps(&heaps);
    if let Some(pymalloc) = pymalloc {
        ledger.add_python(pymalloc);
    }
    ledger.add_managed(&managed);
    let addresses = heaps.glibc.as_ref().map_or(&[][..], |heap| &heap.addresses);
    let categories = source.categories(&snapshot);
    let heap = Heap {
        pid: source.pid(),
        comm: source.comm(),
        taken: snapshot.taken.clone(),
        attempts: 1,
        disturbed: None,
        copied: snapshot.memory.len(),
        unread: snapshot.memory.unread(),
        allocator,
        others: ledger.others(&categories),
        rows: ledger.rows(),
        arenas: std::mem::take(&mut ledger.arenas).rows(addresses),
        anonymous: anonymous.resident,
        kernel: [kernel.before.resident, kernel.after.resident],
        kernel_at_stop: kernel.at_stop.map(|at| at.resident),
        agreement: snapshot.agreement(anonymous),
        read: how_read::rows(&snapshot),
        missing: snapshot.missing.clone(),
        swapped: anonymous.swapped,
        zero_pages: Some(ledger.zero.report(&snapshot, &categories, top)),
        trimmable: ledger.trimmable,
        largest: ledger.largest(),
        occupancy: ledger.occupancy.pages(),
        map: ledger.cells.map(),
        sizes: ledger.sizes.classes(),
        not_called_unreachable: doubt.filter(|_| searched.is_some()),
        unreachable,
        types,
        retained,
        seen,
        jemalloc: in_short,
        other_heaps,
        python: python
            .as_ref()
            .map(|python| PythonHeap::summarize(python, top)),
        core: None,
        saved: None,
    };
    let Ledger {
        pages,
        ranges,
        zero,
        holdings,
        ..
    } = ledger;
    let joint = holdings.zip(placed);
    let joint = joint.map(|(holdings, ((_, counts), origin))| {
        Joint::new(holdings, heads, counts, origin, &heap.rows, &heap.others)
    });
    let mut pages = HeapPages::select(snapshot.vmas, &pages, &ranges);
    pages.zero = zero.into_runs();
    Ok(Measured {
        heap,
        pages,
        joint,
        unforeseen: snapshot.unforeseen,
    })
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
pub(super) fn live(snapshot: &Snapshot, heaps: &AllHeaps) -> (u64, u64) {
    let mut ledger = Ledger::new(snapshot, 1);
    ledger.add_heaps(heaps);
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
    /// Index of the first run that does not end before the next bytes to add.
    next: usize,
    rows: [(u64, u64, u64); HeapRegion::ALL.len()],
    /// The address ranges of the heap.
    ranges: Vec<Run>,
    arenas: Arenas,
    occupancy: Occupancy,
    cells: Cells,
    sizes: Sizes,
    /// The largest chunks in use: size, address, resident bytes. Ties go to the lowest addresses.
    largest: BinaryHeap<Reverse<(u64, Reverse<u64>, u64)>>,
    top: usize,
    trimmable: u64,
    /// The resident pages that contain only zeroes.
    zero: ZeroRuns,
    /// What each class and each sampled chunk holds, if there are samples.
    holdings: Option<Holdings>,
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
            cells: Cells::new(),
            sizes: Sizes::default(),
            largest: BinaryHeap::new(),
            top,
            trimmable: 0,
            zero: ZeroRuns::find(snapshot),
            holdings: None,
        }
    }

    /// Adds all heaps.
    fn add_heaps(&mut self, heaps: &AllHeaps) {
        self.ranges = heaps.ranges();
        if let Some(heap) = &heaps.glibc {
            self.add_glibc(heap);
        }
        self.next = 0;
        if let Some(heap) = &heaps.jemalloc {
            self.add_jemalloc(heap);
        }
        self.next = 0;
        self.add_spans(&heaps.spans);
    }

    /// Adds the arenas of Python's allocator, which are not part of the heap.
    fn add_python(&mut self, pymalloc: &PythonMemory) {
        self.arenas.begin_python();
        for (what, row) in pymalloc.rows(&self.pages, &mut self.cells) {
            self.rows[what as usize] = row;
            self.arenas.add(what, row.0, row.1, row.2);
        }
        pymalloc.add_zeroes(&mut self.zero);
        self.hold_python(pymalloc);
        self.ranges.extend(pymalloc.ranges());
        self.ranges.sort_by_key(|range| range.start);
    }

    /// Adds bytes. Addresses must ascend. Returns the number of resident bytes among them.
    fn add(&mut self, (start, end): (u64, u64), what: HeapRegion, class: Option<usize>) -> u64 {
        while self
            .pages
            .get(self.next)
            .is_some_and(|run| run.end <= start)
        {
            self.next += 1;
        }
        let mut resident = 0;
        let runs = overlapping(&self.pages[self.next..], start, end);
        self.cells.add((start, end), what, runs);
        self.zero.add((start, end), what);
        for run in overlapping(&self.pages[self.next..], start, end) {
            resident += run.len();
            let live = class.filter(|_| what.is_live());
            let free = !what.is_overhead() && !what.is_live();
            self.occupancy
                .add(run.start, run.end, live, free, &mut self.sizes);
            if let Some(holdings) = &mut self.holdings {
                let part = match holdings.is_in_object() {
                    true => RangeUse::Object,
                    false if free => RangeUse::Free,
                    false => RangeUse::Own,
                };
                holdings.add(run.start, run.end, part);
            }
        }
        let (row, bytes) = (&mut self.rows[what as usize], end.saturating_sub(start));
        row.1 += bytes;
        row.2 += resident;
        self.arenas.add(what, 0, bytes, resident);
        resident
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

    fn rows(&self) -> Vec<RegionRow> {
        let rows = HeapRegion::ALL.into_iter().zip(self.rows);
        rows.map(|(what, (chunks, bytes, resident))| RegionRow {
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
