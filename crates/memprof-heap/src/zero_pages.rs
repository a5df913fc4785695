//! Resident pages that contain only zeroes, and the unused part of huge pages: memory that the process would not need if it
//! reserved less, touched less, or had no huge pages there.

use std::cmp::Reverse;
use std::fmt::Display;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::memory::{Run, overlapping};
use super::report::HeapRegion;
use super::snapshot::Snapshot;
use super::text_table::{Kib, TextTable, write_left};
use memprof_sys::residency::{Category, page_size};
use memprof_sys::text::printable;

/// Bytes that are compared at a time.
static ZEROES: [u8; 4096] = [0; 4096];

/// Resident anonymous pages that contain only zeroes, at the moment of the snapshot. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapZeroPages")]
pub struct ZeroPages {
    /// Resident anonymous memory whose contents are in the snapshot.
    pub examined: u64,
    /// Resident anonymous memory that could not be examined: in mappings that may not be read, or not in the snapshot.
    pub not_examined: u64,
    /// Pages that contain only zeroes.
    pub zero: u64,
    /// Examined memory in transparent huge pages; null if the kernel does not say which pages are huge (Linux before 6.7), or the
    /// core does not.
    pub huge: Option<u64>,
    /// The unused part of the huge pages: their 4 KiB pages that contain only zeroes.
    pub huge_zero: Option<u64>,
    /// The zeroes by their use in a heap. A page may belong to several chunks.
    pub regions: Vec<ZeroRegion>,
    /// The zeroes outside all heaps: `zero` without the sum of `regions`.
    pub outside: u64,
    /// The mappings with the most pages of zeroes.
    pub mappings: Vec<ZeroMapping>,
    /// Number of mappings with such pages that are not listed.
    pub left_out: u64,
    /// Bytes on the pages of zeroes of the mappings that are not listed.
    pub left_out_zero: u64,
}

/// The part of the zeroes that has one use in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapZeroRegion")]
pub struct ZeroRegion {
    /// The kind of heap bytes.
    pub what: HeapRegion,
    /// Bytes on pages that contain only zeroes.
    pub zero: u64,
}

/// The pages of zeroes of one mapping.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapZeroMapping")]
pub struct ZeroMapping {
    /// First address.
    pub address: u64,
    /// Size, resident or not.
    pub size: u64,
    /// Category of its memory.
    #[schemars(with = "String")]
    pub category: Category,
    /// Name of the mapping in `/proc/PID/maps`; empty if it has none.
    pub name: String,
    /// Resident anonymous memory that was examined.
    pub resident: u64,
    /// Pages that contain only zeroes.
    pub zero: u64,
    /// Memory in huge pages.
    pub huge: u64,
    /// The part of the huge pages that contains only zeroes.
    pub huge_zero: u64,
}

/// The pages of zeroes of a snapshot, and what they are used for.
#[derive(Debug)]
pub(super) struct ZeroRuns {
    /// The pages, by address.
    runs: Vec<Run>,
    /// All pages that were examined, by address.
    examined: Vec<Run>,
    /// Index of the first run that does not end before the last range that was added.
    next: usize,
    regions: [u64; HeapRegion::ALL.len()],
}

impl ZeroRuns {
    /// Searches the resident pages of a snapshot.
    pub(super) fn find(snapshot: &Snapshot) -> ZeroRuns {
        let page = page_size();
        let (mut runs, mut examined) = (Vec::new(), Vec::new());
        for run in resident(snapshot) {
            for copied in snapshot.memory.runs_in(run.start, run.end) {
                // A core may end within a page.
                let start = copied.start.next_multiple_of(page);
                let len = (copied.end / page * page).saturating_sub(start) as usize;
                let bytes = snapshot.memory.from(start);
                let Some(bytes) = bytes.and_then(|bytes| bytes.get(..len)) else {
                    continue;
                };
                push(&mut examined, start, len);
                let starts = (start..).step_by(page as usize);
                for (start, page) in starts.zip(bytes.chunks_exact(page as usize)) {
                    if is_zero(page) {
                        push(&mut runs, start, page.len());
                    }
                }
            }
            for zero in overlapping(&snapshot.zeroes, run.start, run.end) {
                push(&mut examined, zero.start, zero.len() as usize);
                push(&mut runs, zero.start, zero.len() as usize);
            }
        }
        runs.sort_by_key(|run| run.start);
        examined.sort_by_key(|run| run.start);
        ZeroRuns {
            runs,
            examined,
            next: 0,
            regions: [0; HeapRegion::ALL.len()],
        }
    }

    /// Adds a range of a heap. Fast if ranges ascend.
    pub(super) fn add(&mut self, (start, end): (u64, u64), what: HeapRegion) {
        let is_behind = |run: &Run| run.end <= start;
        if self.next > 0 && !is_behind(&self.runs[self.next - 1]) {
            self.next = self.runs.partition_point(is_behind);
        }
        while self.runs.get(self.next).is_some_and(is_behind) {
            self.next += 1;
        }
        self.regions[what as usize] += bytes_in(&self.runs[self.next..], start, end);
    }

    /// The report, with at most `top` mappings. `categories` are those of the snapshot's mappings.
    pub(super) fn report(
        &self,
        snapshot: &Snapshot,
        categories: &[Category],
        top: usize,
    ) -> ZeroPages {
        let copied = &self.examined;
        let examined: u64 = copied.iter().map(Run::len).sum();
        let zero = self.runs.iter().map(Run::len).sum();
        let huge = snapshot.pages.huge.as_deref();
        let regions = HeapRegion::ALL.into_iter().zip(self.regions);
        let regions = regions.filter(|(_, zero)| *zero > 0);
        let regions: Vec<ZeroRegion> = regions
            .map(|(what, zero)| ZeroRegion { what, zero })
            .collect();
        let mut mappings: Vec<ZeroMapping> = snapshot
            .vmas
            .iter()
            .zip(categories)
            .map(|(vma, category)| {
                let (start, end) = (vma.start.0, vma.end.0);
                let [huge, huge_zero] = self.in_huge(huge.unwrap_or_default(), start, end);
                ZeroMapping {
                    address: start,
                    size: end - start,
                    category: *category,
                    name: vma.name.clone(),
                    resident: bytes_in(copied, start, end),
                    zero: bytes_in(&self.runs, start, end),
                    huge,
                    huge_zero,
                }
            })
            .filter(|mapping| mapping.zero > 0)
            .collect();
        mappings.sort_by_key(|mapping| (Reverse(mapping.zero), mapping.address));
        let left = mappings.split_off(mappings.len().min(top));
        let all = huge.map(|huge| self.in_huge(huge, 0, u64::MAX));
        let hidden = snapshot.pages.hidden.iter().filter(|run| run.resident);
        let everything: u64 = resident(snapshot).chain(hidden).map(Run::len).sum();
        ZeroPages {
            examined,
            not_examined: everything.saturating_sub(examined),
            zero,
            huge: all.map(|[huge, _]| huge),
            huge_zero: all.map(|[_, zero]| zero),
            // In a heap that is damaged, ranges may overlap.
            outside: zero.saturating_sub(regions.iter().map(|region| region.zero).sum()),
            regions,
            mappings,
            left_out: left.len() as u64,
            left_out_zero: left.iter().map(|mapping| mapping.zero).sum(),
        }
    }

    /// Bytes in huge pages in this range, and those of them that are zero pages.
    fn in_huge(&self, huge: &[Run], start: u64, end: u64) -> [u64; 2] {
        let huge = overlapping(huge, start, end);
        huge.fold([0, 0], |[all, zero], run| {
            [
                all + bytes_in(&self.examined, run.start, run.end),
                zero + bytes_in(&self.runs, run.start, run.end),
            ]
        })
    }

    /// The pages, by address.
    pub(super) fn into_runs(self) -> Vec<Run> {
        self.runs
    }
}

fn resident(snapshot: &Snapshot) -> impl Iterator<Item = &Run> {
    let readable = snapshot.pages.readable.iter();
    readable.filter(|run| run.resident)
}

/// Adds pages, which may continue the last run.
fn push(runs: &mut Vec<Run>, start: u64, len: usize) {
    let end = start + len as u64;
    match runs.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ if len == 0 => {}
        _ => runs.push(Run {
            start,
            end,
            resident: true,
        }),
    }
}

/// Whether a page, or a part of one, contains only zeroes.
pub(super) fn is_zero(page: &[u8]) -> bool {
    let mut parts = page.chunks(ZEROES.len());
    parts.all(|part| part == &ZEROES[..part.len()])
}

/// Bytes of the runs, which are in address order, within a range.
fn bytes_in(runs: &[Run], start: u64, end: u64) -> u64 {
    overlapping(runs, start, end).map(|run| run.len()).sum()
}

impl ZeroPages {
    /// Writes the tables, with at most `top` mappings. `name` is the name of a kind of heap bytes.
    pub(super) fn write_text(
        &self,
        out: &mut dyn Write,
        top: usize,
        name: impl Fn(HeapRegion) -> &'static str,
    ) -> io::Result<()> {
        let share = 100.0 * self.zero as f64 / self.examined.max(1) as f64;
        writeln!(
            out,
            "\nResident pages that contain only zeroes: {} of {} KiB ({share:.1} %)",
            Kib(self.zero),
            Kib(self.examined)
        )?;
        match (self.huge, self.huge_zero) {
            (Some(huge), Some(zero)) => writeln!(
                out,
                "Huge pages: {} KiB, of which {} KiB contain only zeroes",
                Kib(huge),
                Kib(zero)
            ),
            _ => writeln!(
                out,
                "Which of them are in huge pages is not known: that takes Linux 6.7."
            ),
        }?;
        if self.not_examined > 0 {
            writeln!(
                out,
                "{} KiB were not examined: they may not be read, or are not in the snapshot.",
                Kib(self.not_examined)
            )?;
        }
        if self.zero == 0 {
            return Ok(());
        }
        let uses = TextTable([14]);
        for region in &self.regions {
            uses.row(out, [&Kib(region.zero)], name(region.what))?;
        }
        uses.row(out, [&Kib(self.outside)], "outside the heap")?;
        let table = TextTable([14, 14, 14, 14]);
        let head: [&dyn Display; 4] = [&"zero", &"resident", &"huge", &"huge and zero"];
        table.row(out, head, "mapping")?;
        for row in self.mappings.iter().take(top) {
            let cells = [row.zero, row.resident, row.huge, row.huge_zero].map(Kib);
            let [zero, resident, huge, huge_zero] = &cells;
            let text = match row.name.is_empty() {
                true => format!("{:#x}  {}", row.address, row.category),
                false => format!(
                    "{:#x}  {}, {}",
                    row.address,
                    row.category,
                    printable(&row.name)
                ),
            };
            table.row(out, [zero, resident, huge, huge_zero], text)?;
        }
        let hidden = self.mappings.len().saturating_sub(top) as u64;
        write_left(out, 14, hidden + self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use memprof_sys::residency::proc_maps;

    const BASE: u64 = 0x1000_0000;

    fn run(start: u64, end: u64) -> Run {
        Run {
            start,
            end,
            resident: true,
        }
    }

    /// Two mappings: four pages of which the second and third are zero, and one page of zeroes.
    fn snapshot() -> Snapshot {
        let page = page_size();
        let maps = format!(
            "{BASE:x}-{:x} rw-p 00000000 00:00 0 [heap]\n20000000-{:x} rw-p 00000000 00:00 0\n",
            BASE + 4 * page,
            0x2000_0000 + page
        );
        let mut bytes = vec![0; 4 * page as usize];
        bytes[page as usize - 1] = 1;
        bytes[3 * page as usize] = 1;
        let zeroes = vec![0; page as usize];
        let memory = Memory::synthetic(&[(BASE, &bytes), (0x2000_0000, &zeroes)]);
        let vmas = proc_maps::parse(maps.as_bytes()).unwrap();
        let mut snapshot = Snapshot::synthetic(vmas, memory, Vec::new());
        snapshot.pages.huge = Some(vec![run(BASE, BASE + 2 * page)]);
        snapshot
    }

    #[test]
    fn each_zero_has_one_use_and_one_mapping() {
        let page = page_size();
        let snapshot = snapshot();
        let mut zero = ZeroRuns::find(&snapshot);
        // From the middle of the second page on, and what lies before it afterwards.
        zero.add((BASE + page + 100, BASE + 4 * page), HeapRegion::Live);
        zero.add((BASE, BASE + page + 100), HeapRegion::Overhead);
        let categories = [Category::Heap, Category::MainStack];
        let report = zero.report(&snapshot, &categories, 1);
        assert_eq!((report.examined, report.not_examined), (5 * page, 0));
        assert_eq!(report.zero, 3 * page);
        let regions: Vec<_> = report.regions.iter().map(|r| (r.what, r.zero)).collect();
        let wanted = [
            (HeapRegion::Live, 2 * page - 100),
            (HeapRegion::Overhead, 100),
        ];
        assert_eq!(regions, wanted);
        assert_eq!(report.outside, page);
        assert_eq!(
            (report.huge, report.huge_zero),
            (Some(2 * page), Some(page))
        );
        let row = &report.mappings[0];
        let figures = (row.address, row.resident, row.zero, row.huge, row.huge_zero);
        assert_eq!(figures, (BASE, 4 * page, 2 * page, 2 * page, page));
        assert_eq!((report.left_out, report.left_out_zero), (1, page));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let mut snapshot = snapshot();
        snapshot.pages.huge = None;
        snapshot.pages.hidden = vec![run(0x3000_0000, 0x3000_0000 + page_size())];
        let report = ZeroRuns::find(&snapshot).report(&snapshot, &[], 1);
        assert_eq!((report.huge, report.huge_zero), (None, None));
        assert_eq!(report.not_examined, page_size());
    }
}
