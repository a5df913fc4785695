//! The summary at the end of a run: totals next to the kernel's, memory without a stack, unwind outcomes, the top
//! functions, losses.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::label_text::readable;
use super::overview::Overview;
use memprof_profile::measure::{AT_PEAK_SPACE, ColumnId, INUSE_SPACE, Unit};
use memprof_profile::tree::{Label, Table, TableRow};
use memprof_profile::{
    Agreement, CgroupMemory, FreezeOutcome, Kind, Margin, OomKills, Profile, Report, Verdict,
};
use memprof_sys::residency::cgroup::GroupFigures;
use memprof_sys::text::printable;

/// Maximum number of functions per table.
const TOP: usize = 15;
/// Maximum number of listed mappings without a stack.
const TOP_MAPPINGS: usize = 12;
/// Maximum number of listed kills.
const TOP_KILLS: usize = 8;
/// Maximum number of listed peaks of processes.
const TOP_PEAKS: usize = 8;

/// Writes the whole summary: what the report says, then its tables. `peak` is the report of the peak, if it is known.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_summary(
    report: &Report,
    peak: Option<&Report>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_target(&report.profile, out)?;
    Overview::new(report, peak, None).write_text(out)?;
    writeln!(out)?;
    write_head(report, out)?;
    write_functions(report, out)
}

/// Writes what a target that has ended had at its peak, after the summary of its `end`.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_peak(peak: &Report, end: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (profile, end) = (&peak.profile, &end.profile);
    let Some(moment) = &profile.peak else {
        return Ok(());
    };
    if profile.taken_ns == end.taken_ns {
        return writeln!(
            out,
            "\nThe figures above are those at its end, when it was {moment}."
        );
    }
    writeln!(
        out,
        "\nThe figures above are those at its end; these are the ones {moment}:\n"
    )?;
    let total = &profile.total.usage;
    writeln!(out, "resident    {:>12} KiB", total.resident() / 1024)?;
    writeln!(out, "file maps   {:>12} KiB", total.file / 1024)?;
    write_not_observed(profile, out)?;
    write_functions(peak, out)
}

/// Writes the summary without its tables of functions.
///
/// # Errors
/// If writing to `out` fails.
pub(super) fn write_head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let profile = &report.profile;
    write_totals(profile, out)?;
    if let Some(group) = profile.cgroup.as_deref() {
        write_cgroup(group, profile, out)?;
    }
    write_oom_kills(&profile.oom_kills, out)?;
    write_process_peaks(profile, out)?;
    write_not_observed(profile, out)?;
    write_outcomes(profile, out)?;
    write_losses(profile, out)?;
    match report.symbols.advice() {
        Some(advice) => writeln!(out, "\n{advice}"),
        None => Ok(()),
    }
}

/// Writes which processes the report is of.
pub(super) fn write_target(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let target = &profile.target;
    let ended = if target.alive { "" } else { ", ended" };
    let more = match target.pids.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more processes", n - 1),
    };
    let comm = printable(&target.comm);
    writeln!(out, "{comm} (pid {}{ended}){more}\n", target.pid)
}

fn write_totals(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let counts_pages = profile.counts(Kind::Resident);
    if counts_pages {
        write_resident(profile, out)?;
    }
    for (kind, column) in profile.columns() {
        let (unit, total) = (column.unit, kind.figure(&profile.total));
        let margin = Margin::from_standard_error(total, profile.total_error(kind));
        let (figure, margin) = match margin {
            Margin::Below(_) => (margin.shown(unit), String::new()),
            _ => (unit.shown(total).to_string(), margin.shown(unit)),
        };
        let separator = if margin.is_empty() { "" } else { ", " };
        let (name, note) = (column.short, profile.as_counted(column.note));
        // Objects have no unit, because the column's name says what they are.
        let unit = match unit {
            Unit::Bytes => unit.symbol(),
            Unit::Objects => "",
        };
        writeln!(
            out,
            "{name:<11} {figure:>12} {unit:<3}  {margin}{separator}{note}"
        )?;
    }
    let tables = profile.kernel_after.page_tables / 1024;
    if counts_pages && tables > 0 {
        writeln!(
            out,
            "page tables {tables:>12} KiB  kernel memory, not resident: VmPTE"
        )?;
    }
    write_freeze(profile, out)
}

fn write_resident(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let total = &profile.total.usage;
    let resident = total.resident() / 1024;
    writeln!(out, "resident    {resident:>12} KiB  {}", verdict(profile))?;
    writeln!(out, "page cache  {:>12} KiB", total.cache / 1024)?;
    let further = [
        ("file maps", total.file),
        ("swapped", total.swap),
        ("hugetlb", total.hugetlb),
    ];
    for (name, bytes) in further.into_iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "{name:<11} {:>12} KiB", bytes / 1024)?;
    }
    Ok(())
}

fn write_freeze(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    match &profile.freeze {
        FreezeOutcome::Ran => Ok(()),
        FreezeOutcome::Still { lasted } => {
            let ms = lasted.as_secs_f64() * 1e3;
            writeln!(out, "The target was frozen for {ms:.1} ms.")
        }
        FreezeOutcome::InTurn { longest, .. } => {
            let ms = longest.as_secs_f64() * 1e3;
            writeln!(
                out,
                "The processes were frozen one after the other, each for at most {ms:.1} ms."
            )
        }
        FreezeOutcome::Failed { why, .. } => {
            let why = printable(why);
            writeln!(out, "The target could not be frozen: {why}")
        }
    }
}

/// Writes the balance of the followed control group.
fn write_cgroup(group: &CgroupMemory, profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let dir = group.dir.display().to_string();
    let dir = printable(&dir);
    match &group.charged {
        Ok((
            version,
            GroupFigures {
                usage: Some(usage),
                peak,
                ..
            },
        )) => {
            let (kib, file) = (usage / 1024, version.usage_file());
            let most = peak.map(|bytes| format!("; at most {} KiB so far", bytes / 1024));
            let most = most.unwrap_or_default();
            writeln!(
                out,
                "\nControl group {dir}: {kib} KiB ({file}{most}), of which"
            )?;
        }
        _ => {
            let why = group.without_total().unwrap_or_default();
            writeln!(out, "\nControl group: {}", printable(&why))?;
        }
    }
    let rows = group.balance(&profile.total.usage);
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "{:11} {:>12}     {:>12}     {:>12}",
        "", "kernel", "memprof", "difference"
    )?;
    for row in rows {
        let kib = |bytes: Option<i64>| match bytes {
            Some(bytes) => format!("{:>12} KiB", bytes / 1024),
            None => " ".repeat(16),
        };
        let ours = row.memprof.map(|bytes| bytes.cast_signed());
        let (charged, ours, difference) =
            (kib(Some(row.charged)), kib(ours), kib(row.difference()));
        writeln!(
            out,
            "{:<11} {charged} {ours} {difference}  {}",
            row.name, row.note
        )?;
    }
    Ok(())
}

fn write_oom_kills(kills: &OomKills, out: &mut dyn Write) -> io::Result<()> {
    if kills.count == 0 {
        return Ok(());
    }
    writeln!(out, "\nKilled because memory had run out (OOM):")?;
    for kill in kills.newest.iter().rev().take(TOP_KILLS) {
        let (pid, comm) = (kill.pid, printable(&kill.comm));
        writeln!(out, "  {comm} (pid {pid}): {kill}")?;
    }
    match kills.count.saturating_sub(TOP_KILLS as u64) {
        0 => Ok(()),
        more => writeln!(out, "  {more} more before"),
    }
}

/// Writes the peaks of the largest processes, if there were several.
fn write_process_peaks(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let peaks = profile.process_peaks();
    if peaks.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nThe highest resident memory of each process:")?;
    for process in peaks.iter().take(TOP_PEAKS) {
        let (comm, pid, peak) = (printable(process.comm), process.pid, &process.peak);
        let ended = if process.alive { "" } else { ", ended" };
        let kib = peak.highest() / 1024;
        let after = peak.after().as_secs_f64();
        writeln!(
            out,
            "{kib:>12} KiB  {comm} (pid {pid}{ended}), after {after:.1} s"
        )?;
    }
    match peaks.len().saturating_sub(TOP_PEAKS) {
        0 => Ok(()),
        more => writeln!(out, "{:18}{more} more", ""),
    }
}

/// Compares the resident total with the kernel's own figures, read before and after the scan.
fn verdict(profile: &Profile) -> String {
    let (before, after) = (
        profile.kernel_before.resident() / 1024,
        profile.kernel_after.resident() / 1024,
    );
    let kernel = if before == after {
        format!("kernel: {before} KiB")
    } else {
        format!("kernel: {before} KiB before, {after} KiB after")
    };
    let Agreement {
        ours, low, high, ..
    } = profile.agreement();
    match profile.agreement().verdict() {
        Verdict::Incomplete => format!("{kernel}; incomplete: processes are missing, see losses"),
        Verdict::Equal => format!("{kernel}; equal"),
        Verdict::Between => format!("{kernel}; between"),
        Verdict::Below => format!("{kernel}; {} KiB below", (low - ours) / 1024),
        Verdict::Above => format!("{kernel}; {} KiB above", (ours - high) / 1024),
    }
}

fn write_not_observed(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<_> = profile.not_observed.iter().collect();
    rows.retain(|row| row.amounts.usage.value() > 0);
    rows.sort_by_key(|row| Reverse(row.amounts.usage.value()));
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nMemory without a stack:")?;
    for row in rows.iter().take(TOP_MAPPINGS) {
        let kib = row.amounts.usage.value() / 1024;
        let label = readable(&Label::NotObserved(&row.mapping, row.reason));
        writeln!(out, "{kib:>12} KiB  {label}")?;
    }
    let rest = rows.get(TOP_MAPPINGS..).unwrap_or_default();
    if !rest.is_empty() {
        let kib = rest.iter().map(|r| r.amounts.usage.value()).sum::<u64>() / 1024;
        writeln!(out, "{kib:>12} KiB  {} more mappings", rest.len())?;
    }
    Ok(())
}

fn write_outcomes(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let rows = profile.outcomes();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nStacks:")?;
    for (outcome, stacks, bytes) in rows {
        let (kib, label) = (bytes / 1024, outcome.label());
        writeln!(out, "{kib:>12} KiB  {stacks} stacks {label}")?;
    }
    match profile.estimates() {
        Some(estimates) => writeln!(out, "{:18}{estimates}", ""),
        None => Ok(()),
    }
}

fn write_losses(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let losses = &profile.losses;
    match losses.lost().next() {
        None => writeln!(out, "\nLosses: none")?,
        Some(_) => writeln!(out, "\nLosses:")?,
    }
    for (what, count) in losses.lost() {
        writeln!(out, "{count:>12}      {what}")?;
    }
    if losses.not_counted().next().is_some() {
        writeln!(out, "Not counted, in no figure above:")?;
    }
    for (what, count) in losses.not_counted() {
        writeln!(out, "{count:>12}      {what}")?;
    }
    Ok(())
}

/// Writes the tables of functions: self bytes of all functions (often the C library, on behalf of its callers), total bytes
/// of the program's own functions and, if the heap was counted, their live heap, now and at its peak.
fn write_functions(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut rows = Table::new([report.side()], Kind::All, true).rows;
    rows.sort_by_key(|row| {
        let sizes = Reverse((row.own, row.total));
        (sizes, row.code.file, row.code.function)
    });
    let holders: Vec<_> = rows.iter().filter(|row| row.own > [0]).collect();
    write_table("Top functions, by self memory:", &holders, out)?;
    rows.sort_by_key(|row| Reverse((row.total, row.own)));
    let own: Vec<_> = rows.iter().filter(is_own).collect();
    write_table("The program's own functions, by total memory:", &own, out)?;
    let title = "The program's own functions, by live heap (estimated):";
    write_live(report, INUSE_SPACE, title, out)?;
    let total = report.profile.total;
    if total.column(AT_PEAK_SPACE) > total.column(INUSE_SPACE) {
        let title = "The program's own functions, by live heap at its peak (estimated):";
        write_live(report, AT_PEAK_SPACE, title, out)?;
    }
    Ok(())
}

/// Writes the table of the program's own functions by a figure of the heap, if that was counted.
fn write_live(
    report: &Report,
    column: ColumnId,
    title: &'static str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let live = Kind::Column(column);
    if !report.profile.counts(live) {
        return Ok(());
    }
    let mut rows = Table::new([report.side()], live, true).rows;
    rows.retain(|row| row.total > [0]);
    rows.sort_by_key(|row| {
        (
            Reverse((row.total, row.own)),
            row.code.file,
            row.code.function,
        )
    });
    let own: Vec<_> = rows.iter().filter(is_own).collect();
    write_table(&report.profile.as_counted(title), &own, out)
}

fn is_own(row: &&TableRow<'_, 1>) -> bool {
    row.code.category.0.is_own()
}

fn write_table(title: &str, rows: &[&TableRow<'_, 1>], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{title}\n{:>12}     {:>12}      function",
        "self", "total"
    )?;
    for row in rows.iter().take(TOP) {
        write_function(row, out)?;
    }
    let shown = rows.iter().take(TOP);
    if shown.flat_map(|row| row.errors).any(|error| error > 0) {
        writeln!(
            out,
            "{:35}(~: an estimate, within a tenth; ±: with its error, at 95 % confidence; <: less than that; other figures are exact)",
            ""
        )?;
    }
    match rows.len().saturating_sub(TOP) {
        0 => Ok(()),
        more => writeln!(out, "{:35}{more} more", ""),
    }
}

fn write_function(row: &TableRow<'_, 1>, out: &mut dyn Write) -> io::Result<()> {
    let ([own], [total]) = (row.own, row.total);
    let function = readable(&Label::Code(row.code));
    let [own, total] = [(own, row.errors[0]), (total, row.errors[1])].map(|(figure, error)| {
        Margin::from_standard_error(figure, error).beside(
            figure,
            |figure| Unit::Bytes.shown(figure).to_string(),
            |limit| Unit::Bytes.limit(limit).to_string(),
        )
    });
    writeln!(out, "{own:>12} KiB {total:>12} KiB  {function}")
}
