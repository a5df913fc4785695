//! The report of a heap snapshot as text tables, in KiB.

use std::fmt::Display;
use std::io::{self, Write};

use super::arenas;
use super::how_read::{MappingKind, ReadRow};
use super::reach::Unreachable;
use super::report::{Allocator, Heap, HeapRegion, SizeClass};
use super::snapshot::{Approach, Taken};
use super::text_table::{Kib, TextTable, write_left};
use super::whole::Agreement;
use memprof_sys::text::printable;

/// Number of rows in each table without details.
const FEW: usize = 10;

/// The columns of the table of regions: resident and not resident bytes, and chunks.
const REGIONS: TextTable<3> = TextTable([14, 14, 12]);

/// Describes how long the process was stopped, and for which purpose.
fn stops(taken: &Taken) -> String {
    let stops = match taken.approach {
        Approach::Fork => format!(
            "stopped for {:.1} ms to be forked, and one thread for {:.1} ms afterwards",
            taken.stop_ms, taken.second_stop_ms
        ),
        _ => format!("stopped for {:.1} ms", taken.stop_ms),
    };
    let earlier = taken.stops_ms - taken.stop_ms - taken.second_stop_ms;
    match earlier >= 0.1 {
        true => format!("{stops}, and for {earlier:.1} ms by attempts that failed"),
        false => stops,
    }
}

impl Heap {
    /// Writes the report as text: the verdict, then tables. Without `details`, only the tables that answer most, with a few rows; with
    /// them, all tables with at most `top` rows per list.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write_text(&self, out: &mut dyn Write, top: usize, details: bool) -> io::Result<()> {
        writeln!(out, "{} (pid {})\n", printable(&self.comm), self.pid)?;
        for sentence in self.verdict() {
            writeln!(out, "{sentence}")?;
        }
        if !details {
            writeln!(out, "All tables: -v.")?;
        }
        writeln!(out)?;
        self.write_allocator(out)?;
        self.write_rows(out)?;
        match details {
            true => self.write_details(out, top)?,
            false => self.write_main_tables(out, top.min(FEW))?,
        }
        if let Some(why) = &self.not_called_unreachable {
            writeln!(
                out,
                "\nNo chunk is called unreachable: {why}. What memprof has not seen may have its address."
            )?;
        }
        self.write_taken(out)
    }

    /// Writes the tables that answer most: what is lost, and the types of the language that runs.
    fn write_main_tables(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        if let Some(lost) = self.unreachable.as_ref().filter(|lost| lost.chunks > 0) {
            write_shapes(lost, out, top)?;
        }
        match (&self.python, &self.types) {
            (Some(python), _) => python.write_text(out, top)?,
            (None, Some(types)) => types.write_text(out, top, false)?,
            (None, None) => {}
        }
        writeln!(
            out,
            "\nMore tables (sizes, pages, arenas, roots, largest chunks): -v"
        )
    }

    fn write_details(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        arenas::write_text(&self.arenas, out, top)?;
        if self.types.is_some() {
            self.write_pages(out)?;
            self.write_sizes(out, top)?;
            self.write_largest(out)?;
        }
        if let Some(zero) = &self.zero_pages {
            zero.write_text(out, top, name)?;
        }
        if let Some(types) = &self.types {
            types.write_text(out, top, true)?;
        }
        if let Some(retained) = &self.retained {
            retained.write_text(out, top)?;
        }
        if let Some(lost) = &self.unreachable {
            write_unreachable(lost, out)?;
            if lost.chunks > 0 {
                write_shapes(lost, out, top)?;
            }
        }
        match &self.python {
            Some(python) => python.write_text(out, top),
            None => Ok(()),
        }
    }

    /// Writes how the snapshot was taken, and what that cost the process.
    fn write_taken(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(core) = &self.core {
            return core.write_text(out);
        }
        writeln!(
            out,
            "\nThe process was {}; {} KiB copied.",
            stops(&self.taken),
            self.copied / 1024
        )?;
        // The line above has the ordinary memory.
        let special = |row: &&ReadRow| row.kind != MappingKind::Ordinary;
        for row in self.read.iter().filter(special) {
            writeln!(out, "{row}.")?;
        }
        if let Some(reason) = &self.taken.not_forked {
            writeln!(
                out,
                "It was stopped for its memory to be copied, because it was not forked: {reason}."
            )?;
        }
        if let Some(reason) = &self.disturbed {
            writeln!(
                out,
                "{} snapshots were taken, because {reason}.",
                self.attempts
            )?;
        }
        match &self.taken.remains {
            Some(remains) => writeln!(out, "Note: {remains}."),
            None => Ok(()),
        }?;
        match &self.saved {
            Some(saved) => saved.write_text(out),
            None => Ok(()),
        }
    }

    fn write_allocator(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.allocator {
            Allocator::Glibc {
                arenas,
                thread_caches,
                ..
            } => writeln!(
                out,
                "Allocator: glibc; arenas: {arenas}, threads' caches with chunks: {thread_caches}"
            ),
            Allocator::Refused { reason } => writeln!(
                out,
                "Allocator: glibc, which was not read, in {} attempts: {reason}. A process that is stopped in the middle of \
                 malloc has such a heap, or one that is damaged.",
                self.attempts
            ),
            Allocator::Unknown if self.jemalloc.is_some() || !self.other_heaps.is_empty() => Ok(()),
            Allocator::Unknown => writeln!(
                out,
                "Allocator: not known. The process has no glibc heap, or another allocator, which memprof does not read."
            ),
        }?;
        if let Some(jemalloc) = &self.jemalloc {
            jemalloc.write_text(out)?;
        }
        for heap in &self.other_heaps {
            heap.write_text(out)?;
        }
        self.seen.iter().try_for_each(|seen| seen.write_text(out))
    }

    fn write_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out)?;
        // A core does not say which pages were resident.
        let columns: [&dyn Display; 3] = match self.core.as_ref().is_some_and(|c| !c.residency) {
            true => [&"in the core", &"zero, absent", &"chunks"],
            false => [&"resident", &"not resident", &"chunks"],
        };
        REGIONS.row(out, columns, "KiB")?;
        let mut total = (0, 0, 0);
        for row in self.rows.iter().filter(|row| row.bytes > 0) {
            let not = row.bytes - row.resident;
            let cells: [&dyn Display; 3] = [&Kib(row.resident), &Kib(not), &row.chunks];
            REGIONS.row(out, cells, name(row.what))?;
            total = (total.0 + row.resident, total.1 + not, total.2 + row.chunks);
        }
        if total.2 > 0 {
            REGIONS.row(out, [&Kib(total.0), &Kib(total.1), &total.2], "heap")?;
        }
        for row in &self.others {
            REGIONS.row(out, [&Kib(row.resident), &"", &""], row.category)?;
        }
        REGIONS.row(out, [&Kib(self.anonymous), &"", &""], "anonymous memory")?;
        self.write_kernel(out)?;
        if self.swapped > 0 {
            let swapped = Kib(self.swapped);
            let text = format!("swapped out, in no figure above: {swapped}");
            REGIONS.text(out, text)?;
        }
        Ok(())
    }

    /// Writes the kernel's figures for the anonymous memory.
    fn write_kernel(&self, out: &mut dyn Write) -> io::Result<()> {
        let [before, after] = self.kernel;
        let mut kernel = match before == after {
            true => Kib(before).to_string(),
            false => format!("{} before, {} after", Kib(before), Kib(after)),
        };
        if let Some(at) = self.kernel_at_stop.filter(|at| *at != before) {
            kernel += &format!(", {} while it was stopped", Kib(at));
        }
        let verdict = match self.agreement {
            Agreement::Equal => "equal",
            Agreement::Between => "between",
            Agreement::Changed => "the process changed meanwhile",
            Agreement::Differs => "differs",
            Agreement::NotCompared => "",
        };
        if self.agreement != Agreement::NotCompared {
            REGIONS.text(out, format!("kernel (smaps): {kernel}; {verdict}"))?;
        }
        for missing in &self.missing {
            REGIONS.text(out, format!("not in the snapshot: {missing}"))?;
        }
        Ok(())
    }

    fn write_pages(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nResident pages of the heap, by how much of them is live:"
        )?;
        let all: u64 = self.occupancy.iter().sum();
        for (tenth, pages) in self.occupancy.into_iter().enumerate() {
            let what = match tenth {
                0 => "nothing".to_owned(),
                _ => format!("up to {} %", tenth * 10),
            };
            let share = 100.0 * pages as f64 / all.max(1) as f64;
            writeln!(out, "{what:>14}{pages:>14} pages {share:>5.1} %")?;
        }
        if !matches!(self.allocator, Allocator::Glibc { .. }) {
            return Ok(());
        }
        writeln!(
            out,
            "malloc_trim(0) would return {} KiB to the system now.",
            Kib(self.trimmable)
        )
    }

    fn write_sizes(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        writeln!(
            out,
            "\nChunks by size with header, largest sums first; pinned: free bytes on the pages that they keep in memory"
        )?;
        writeln!(
            out,
            "{:>22}{:>11}{:>12}{:>11}{:>12}{:>12}",
            "bytes", "live", "KiB", "free", "KiB", "pinned KiB"
        )?;
        let mut classes: Vec<&SizeClass> = self.sizes.iter().collect();
        classes.sort_by_key(|class| {
            std::cmp::Reverse((class.live_bytes + class.free_bytes, class.to))
        });
        for class in classes.iter().take(top) {
            let range = match class.to - class.from < 16 {
                true => class.to.to_string(),
                false => format!("{} to {}", class.from, class.to),
            };
            writeln!(
                out,
                "{range:>22}{:>11}{:>12}{:>11}{:>12}{:>12}",
                class.live,
                Kib(class.live_bytes),
                class.free,
                Kib(class.free_bytes),
                Kib(class.pinned)
            )?;
        }
        write_left(out, 22, classes.len().saturating_sub(top) as u64)
    }

    fn write_largest(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.largest.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nLargest chunks in use:")?;
        let table = TextTable([14; 2]);
        let what = "address, and the root that leads to it";
        table.row(out, [&"KiB", &"resident"], what)?;
        for object in &self.largest {
            let (bytes, resident) = (Kib(object.bytes), Kib(object.resident));
            let by = self
                .retained
                .as_ref()
                .and_then(|roots| roots.root_name(object.address));
            let by = by.map_or(String::new(), |root| format!("  {}", printable(root)));
            let text = format!("{:#x}{by}", object.address);
            table.row(out, [&bytes, &resident], text)?;
        }
        Ok(())
    }
}

fn name(what: HeapRegion) -> &'static str {
    match what {
        HeapRegion::Live => "live",
        HeapRegion::LiveMapped => "live, with mappings of their own",
        HeapRegion::ThreadCache => "free, in threads' caches",
        HeapRegion::Fast => "free, in fast bins",
        HeapRegion::Unsorted => "free, not sorted yet",
        HeapRegion::Small => "free, in small bins",
        HeapRegion::Large => "free, in large bins",
        HeapRegion::Top => "free, at the ends of arenas",
        HeapRegion::Overhead => "the allocator's own",
        HeapRegion::JemallocLive => "jemalloc: live, in slabs",
        HeapRegion::JemallocLarge => "jemalloc: live, large",
        HeapRegion::JemallocCache => "jemalloc: free, in threads' caches",
        HeapRegion::JemallocFree => "jemalloc: free, in slabs",
        HeapRegion::JemallocDirty => "jemalloc: free pages, dirty",
        HeapRegion::JemallocMuzzy => "jemalloc: free pages, muzzy",
        HeapRegion::JemallocRetained => "jemalloc: free pages, retained",
        HeapRegion::JemallocOverhead => "jemalloc's own",
        HeapRegion::SpanLive => "live, in pages of blocks of one size",
        HeapRegion::SpanLarge => "live, with pages of their own",
        HeapRegion::SpanCache => "free, in threads' caches or freed by other threads",
        HeapRegion::SpanFree => "free blocks",
        HeapRegion::SpanPages => "free pages",
        HeapRegion::SpanOverhead => "the allocator's own",
        HeapRegion::ManagedLive => "managed heap: objects in use or not freed yet",
        HeapRegion::ManagedFree => "managed heap: free objects",
        HeapRegion::ManagedPages => "managed heap: free pages",
        HeapRegion::ManagedOverhead => "managed heap: stacks and the runtime's own",
        HeapRegion::PythonLive => "Python: blocks in use",
        HeapRegion::PythonFree => "Python: free blocks of pools in use",
        HeapRegion::PythonPools => "Python: free pools",
        HeapRegion::PythonOverhead => "Python: headers of pools, alignment",
    }
}

/// Writes the unreachable chunks by the shape of their groups.
fn write_shapes(lost: &Unreachable, out: &mut dyn Write, top: usize) -> io::Result<()> {
    writeln!(out, "\nLost: unreachable chunks in groups that look alike:")?;
    let table = TextTable([14, 12, 12]);
    let cells: [&dyn Display; 3] = [&"KiB", &"groups", &"chunks"];
    table.row(out, cells, format!("{:<16}chunks of a group", "example"))?;
    for shape in lost.shapes.iter().take(top) {
        let text = format!("{:<#16x}{shape}", shape.example);
        table.row(out, [&Kib(shape.bytes), &shape.groups, &shape.chunks], text)?;
    }
    let hidden = lost.shapes.len().saturating_sub(top) as u64;
    write_left(out, 14, hidden + lost.shapes_left_out)
}

fn write_unreachable(lost: &Unreachable, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\nUnreachable: {} chunks, {} KiB. No register, stack, variable or other private memory has an address in \
         them\n(conservative: any word counts as an address; pointers in shared memory or in disguise are not seen).",
        lost.chunks,
        Kib(lost.bytes)
    )?;
    if lost.heads.is_empty() {
        return Ok(());
    }
    let table = TextTable([14, 12, 14]);
    let cells: [&dyn Display; 3] = [&"KiB", &"chunks", &"its bytes"];
    table.row(out, cells, "address of the first")?;
    for head in &lost.heads {
        let address = format!("{:#x}", head.address);
        table.row(out, [&Kib(head.bytes), &head.chunks, &head.own], address)?;
    }
    write_left(out, 40, lost.heads_left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mallinfo, Types};

    fn text(allocator: Allocator) -> String {
        let heap = Heap {
            allocator,
            types: Some(Types::default()),
            ..Heap::default()
        };
        let mut out = Vec::new();
        heap.write_text(&mut out, 5, true).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// malloc_trim does nothing for other allocators; printing 0 would look like a measurement.
    #[test]
    fn malloc_trim_is_named_only_where_glibc_s_heap_is() {
        let glibc = Allocator::Glibc {
            arenas: 1,
            thread_caches: 1,
            mallinfo2: Mallinfo::default(),
        };
        assert!(text(glibc).contains("malloc_trim(0) would return 0.0 KiB"));
        assert!(!text(Allocator::Unknown).contains("malloc_trim"));
    }
}
