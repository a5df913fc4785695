//! The breakdown as text: tables in KiB.

use std::io::{self, Write};

use super::{Breakdown, RegionRow, Sums, Verdict};
use crate::residency::Category;
use crate::residency::smaps::SmapsFigures;
use crate::text::printable;

impl Breakdown {
    /// Writes the breakdown as text.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_head(out)?;
        writeln!(out)?;
        write_columns(out, "KiB")?;
        for row in &self.categories {
            write_sums(out, &row.sums, &row.category.to_string())?;
        }
        write_sums(out, &self.total, "total")?;
        self.write_rollup(out)?;
        let tables = self.page_tables / 1024;
        writeln!(
            out,
            "Page tables: {tables} KiB of kernel memory (VmPTE), not part of RSS."
        )?;
        self.write_names(out)?;
        self.write_regions(out)
    }

    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        let (comm, pid) = (printable(&self.comm), self.pid);
        write!(out, "{comm} (pid {pid}), {} mappings", self.total.mappings)?;
        let (threads, found) = (self.stacks.threads, self.stacks.found);
        match threads {
            0 => writeln!(out),
            _ if found >= threads => writeln!(out, ", {} threads", threads + 1),
            _ => writeln!(
                out,
                ", {} threads; the stacks of {} of them were not found, and count as anonymous",
                threads + 1,
                threads - found
            ),
        }
    }

    fn write_rollup(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.rollup_before == self.rollup_after {
            write_kernel(out, self.rollup_after, "kernel's total (smaps_rollup)")?;
        } else {
            write_kernel(
                out,
                self.rollup_before,
                "kernel's total (smaps_rollup) before",
            )?;
            write_kernel(
                out,
                self.rollup_after,
                "kernel's total (smaps_rollup) after",
            )?;
        }
        match &self.verdict {
            Verdict::Equal => {
                writeln!(out, "\nRSS, swap and huge pages equal the kernel's total.")?
            }
            Verdict::Between => writeln!(
                out,
                "\nThe process changed while memprof read it: RSS, swap and huge pages lie between the kernel's totals."
            )?,
            Verdict::Differs(names) => writeln!(
                out,
                "\nThe process changed while memprof read it: {} do not lie between the kernel's totals.",
                names.join(", ")
            )?,
            Verdict::Unknown => {
                return writeln!(
                    out,
                    "\nThis kernel has no total (smaps_rollup) to compare with."
                );
            }
        }
        match &self.sharing_differs[..] {
            [] => writeln!(
                out,
                "PSS and private dirty memory, too; the kernel rounds the PSS of each mapping down to KiB."
            ),
            names => writeln!(
                out,
                "Other processes began or ceased to share pages meanwhile: {} differ from it.",
                names.join(", ")
            ),
        }
    }

    fn write_names(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nBy file or name:")?;
        write_columns(out, "KiB")?;
        for row in &self.names {
            let runs_as = self.runs_as.as_deref();
            let runs_as = runs_as.filter(|_| row.category == Category::OwnBinary);
            let runs_as =
                runs_as.map_or_else(String::new, |name| format!(", runs as {}", printable(name)));
            let label = format!("{}  [{}{runs_as}]", printable(&row.name), row.category);
            write_sums(out, &row.sums, &label)?;
        }
        write_left_out(out, self.names_left_out, "name")
    }

    fn write_regions(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.regions.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nMappings, in KiB:")?;
        let [virt, rss, pss, dirty, swap] = ["virtual", "RSS", "PSS", "priv. dirty", "swap"];
        writeln!(
            out,
            "{virt:>12} {rss:>11} {pss:>11} {dirty:>11} {swap:>9}  addresses, permissions, category, name"
        )?;
        for row in &self.regions {
            write_region(out, row)?;
        }
        write_left_out(out, self.regions_left_out, "mapping")
    }
}

fn write_columns(out: &mut dyn Write, unit: &str) -> io::Result<()> {
    let [count, virt, rss, pss] = ["mappings", "virtual", "RSS", "PSS"];
    let [dirty, swap, huge] = ["priv. dirty", "swap", "huge"];
    writeln!(
        out,
        "{count:>8} {virt:>12} {rss:>11} {pss:>11} {dirty:>11} {swap:>9} {huge:>9}"
    )?;
    writeln!(
        out,
        "{:>8} {unit:>12} {unit:>11} {unit:>11} {unit:>11} {unit:>9} {unit:>9}",
        ""
    )
}

fn write_sums(out: &mut dyn Write, sums: &Sums, label: &str) -> io::Result<()> {
    let (count, size) = (sums.mappings, sums.size / 1024);
    write!(out, "{count:>8} {size:>12} ")?;
    write_figures(out, &sums.figures, label)
}

fn write_kernel(out: &mut dyn Write, figures: Option<SmapsFigures>, label: &str) -> io::Result<()> {
    match figures {
        Some(figures) => {
            write!(out, "{:22}", "")?;
            write_figures(out, &figures, label)
        }
        None => Ok(()),
    }
}

fn write_figures(out: &mut dyn Write, f: &SmapsFigures, label: &str) -> io::Result<()> {
    let [rss, pss, dirty] = [f.rss, f.pss, f.private_dirty].map(|b| b / 1024);
    let [swap, huge] = [f.swap, f.anon_huge].map(|b| b / 1024);
    write!(
        out,
        "{rss:>11} {pss:>11} {dirty:>11} {swap:>9} {huge:>9}  {label}"
    )?;
    match f.hugetlb / 1024 {
        0 => writeln!(out),
        kib => writeln!(out, ", hugetlb {kib}"),
    }
}

fn write_region(out: &mut dyn Write, row: &RegionRow) -> io::Result<()> {
    let f = &row.figures;
    let size = row.end.saturating_sub(row.start) / 1024;
    let [rss, pss, dirty, swap] = [f.rss, f.pss, f.private_dirty, f.swap].map(|b| b / 1024);
    write!(
        out,
        "{size:>12} {rss:>11} {pss:>11} {dirty:>11} {swap:>9}  "
    )?;
    let (start, end, perms) = (row.start, row.end, &row.permissions);
    write!(out, "{start:012x}-{end:012x} {perms} {}", row.category)?;
    match row.name.as_str() {
        "" => writeln!(out),
        name => writeln!(out, "  {}", printable(name)),
    }
}

fn write_left_out(out: &mut dyn Write, count: u64, what: &str) -> io::Result<()> {
    match count {
        0 => Ok(()),
        1 => writeln!(out, "{count:>12} more {what}"),
        _ => writeln!(out, "{count:>12} more {what}s"),
    }
}
