//! A report as text: totals next to the kernel's, memory without a stack, losses, and the call tree or its changes.

use std::io::{self, Write};

use super::label_text::readable;
use super::overview::{Change, Overview};
use super::summary::{write_head, write_target};
use super::{ExportOptions, Exporter, Supports};
use memprof_profile::symbol::Symbols;
use memprof_profile::tree::{
    CHAIN, Direction, Layout, Limits, Merge, Naming, Paths, Reading, SELF, errors,
};
use memprof_profile::{FrameFilter, Kind, Margin, Profile, Report, Uncertainty};

/// By default, nodes smaller than 1/`SMALL` of the total are aggregated.
const SMALL: u64 = 200;

/// By default, the outermost function is first. A tree has one node per call site, with KiB and percent of the total and,
/// for estimates, their margin. A diff has one node per function, with the figures now and before, and the change. Figures
/// are in KiB; for kinds that count objects, they are numbers.
pub(super) const FORMAT: Exporter = Exporter {
    name: "text",
    about: "totals and the call tree, as plain text",
    extension: "txt",
    content_type: "text/plain; charset=utf-8",
    supports: Supports::EVERYTHING,
    usual_frames: Some(FrameFilter::Source),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    write_target(&report.profile, out)?;
    match &options.baseline {
        None if !report.profile.counts(Kind::Resident) => {
            writeln!(out, "Selected allocations alone, without resident memory.")?;
        }
        None => Overview::new(report, None, None).write_text(out)?,
        Some(baseline) => {
            Change::new(baseline, report, options.kind).write_text(out)?;
            // The tree of all changes may have thousands of lines.
            if options.threshold.is_none() {
                return Ok(());
            }
        }
    }
    writeln!(out)?;
    write_head(report, out)?;
    let kind = options.kind;
    let (unit, symbol) = (kind.unit(), kind.unit().symbol());
    let whole = kind.figure(&report.profile.total);
    let small = options.threshold.unwrap_or(whole / SMALL);
    let direction = options.direction.unwrap_or(Direction::OutermostFirst);
    let of = match kind {
        Kind::All => String::new(),
        kind => format!(" of {}", report.profile.label(kind)),
    };
    let (first, chain) = match direction {
        Direction::InnermostFirst => ("innermost", "calls the line above"),
        Direction::OutermostFirst => ("outermost", "called by the line above"),
    };
    let reading = |merge| Reading {
        direction,
        naming: Naming {
            merge,
            inlined: !options.no_inline,
        },
        kind,
    };
    let Some(baseline) = &options.baseline else {
        writeln!(
            out,
            "\nCall tree{of}, {first} function first; {CHAIN}is {chain}:"
        )?;
        let uncertainties = &report.profile.uncertainties;
        let has_errors = report.profile.has_errors(kind);
        let percent = |[figure]: [u64; 1], error: Option<u64>| {
            let percent = figure as f64 * 100.0 / whole.max(1) as f64;
            let row = format!("{:>12} {symbol} {percent:>5.1}%", unit.shown(figure));
            match error {
                _ if !has_errors => row,
                Some(error) => format!(
                    "{row} {:>12}",
                    Margin::from_standard_error(figure, error).shown(unit)
                ),
                None => format!("{row} {:>12}", ""),
            }
        };
        return write_tree(
            [report.side()],
            reading(Merge::Site),
            small,
            uncertainties,
            percent,
            out,
        );
    };
    writeln!(
        out,
        "\nDifference{of}, {first} function first; {CHAIN}is {chain}: now, before, change"
    )?;
    let sides = [baseline.side(), report.side()];
    let change = |figures: [u64; 2], _| {
        let [before, now] = figures.map(|figure| unit.shown(figure));
        let change = i128::from(now) - i128::from(before);
        format!("{now:>12} {symbol} {before:>12} {symbol} {change:>+12} {symbol}")
    };
    write_tree(sides, reading(Merge::Function), small, &[], change, out)
}

/// Writes a tree as indented lines: columns of bytes, then the label. A call chain that does not branch is marked instead
/// of indented, because deep stacks would otherwise exceed the width of the screen.
fn write_tree<const N: usize>(
    sides: [(&Profile, &Symbols); N],
    reading: Reading,
    threshold: u64,
    uncertainties: &[Uncertainty],
    columns: impl Fn([u64; N], Option<u64>) -> String,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut paths = Paths::new(sides, reading);
    let limits = Limits {
        threshold,
        max_nodes: usize::MAX,
    };
    let rows = Layout::new(&mut paths, limits).rows;
    let errors = errors::of_rows(&paths, &rows, &[uncertainties], reading.kind);
    // The number of lines directly below each row: its children and, if it has children, its own bytes.
    let mut below = vec![0u32; rows.len()];
    for row in rows.iter().skip(1) {
        below[row.parent as usize] += 1;
    }
    for (below, row) in below.iter_mut().zip(&rows) {
        *below += u32::from(*below > 0 && row.own != [0; N]);
    }
    let mut depths: Vec<usize> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let parent = row.parent as usize;
        let branches = parent == 0 || below[parent] > 1;
        let depth = match at {
            0 => 0,
            _ => depths[parent] + usize::from(branches),
        };
        depths.push(depth);
        let mut line = |depth: usize, bytes, error, what: &str| {
            writeln!(out, "{}  {:2$}{what}", columns(bytes, error), "", depth * 2)
        };
        let [own_error, error] = match errors.get(at) {
            Some(errors) => errors.map(Some),
            None => [None; 2],
        };
        let chain = if branches || at == 0 { "" } else { CHAIN };
        let label = readable(paths.labels().get(row.label));
        line(depth, row.total, error, &format!("{chain}{label}"))?;
        if below[at] > 0 && row.own != [0; N] {
            line(depth + 1, row.own, own_error, SELF)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::export::testing::written;
    use crate::testing::{at, kib, profile, symbols};
    use memprof_profile::Losses;
    use memprof_profile::symbol::Language;
    use memprof_sys::residency::PageKind;

    #[test]
    fn the_whole_report() {
        let mut profile = profile(
            &[
                (&[at(1, 3), at(0, 2), at(0, 1)], kib(6000, 0)),
                (&[at(0, 4), at(0, 2), at(0, 1)], kib(2000, 1000)),
                (&[at(0, 5), at(0, 2), at(0, 1)], kib(4, 0)),
            ],
            &[kib(996, 0)],
        );
        profile.losses.add("events", 3);
        profile.losses.add(Losses::BLOCK_DEVICE, 478);
        profile.kernel_after.rss_anon -= 4096;
        let names = [
            (at(0, 1), "main", Language::Other),
            (at(1, 3), "mal\x1b]0;loc", Language::Other),
        ];
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&names)),
            sequence: 1,
        };
        let wanted = "\
node (pid 42)

RSS 8.8 MiB = 8.8 MiB anonymous
memprof has seen 7.8 MiB of 8.8 MiB arrive in 0.0 s: main (node) 7.8 MiB.
     7.8 MiB  main (node)

resident            9000 KiB  kernel: 9000 KiB before, 8996 KiB after; between
page cache          1000 KiB

Memory without a stack:
         996 KiB  [before attach: [heap]]

Stacks:
        9004 KiB  3 stacks complete

Losses:
           3      events
Not counted, in no figure above:
         478      block-device cache pages (file-system metadata)

Call tree, outermost function first; ↳ is called by the line above:
       10000 KiB 100.0%  all
        9004 KiB  90.0%    main (node+0x1)
        9004 KiB  90.0%    ↳ [no symbol] (node+0x2)
        6000 KiB  60.0%      mal\u{fffd}]0;loc (libc-2.31.so+0x3)
        3000 KiB  30.0%      [no symbol] (node+0x4)
           4 KiB   0.0%      [below threshold]
         996 KiB  10.0%    [before attach: [heap]]
";
        assert_eq!(written("text", &report), wanted);
    }

    #[test]
    fn estimates_have_a_margin() {
        let mut profile = profile(
            &[
                (&[at(0, 4), at(0, 1)], kib(8000, 0)),
                (&[at(0, 5), at(0, 1)], kib(100, 0)),
                (&[at(0, 1)], kib(900, 0)),
            ],
            &[],
        );
        let variance = (100.0 * 1024.0_f64).powi(2);
        let between = Uncertainty::between(PageKind::Anon, [Some(0), Some(1)], variance);
        profile.uncertainties = vec![between];
        let report = Report {
            profile: Arc::new(profile),
            symbols: Arc::new(symbols(&[(at(0, 1), "main", Language::Other)])),
            sequence: 1,
        };
        let text = written("text", &report);
        let wanted = "
        9000 KiB 100.0%               all
        9000 KiB 100.0%                 main (node+0x1)
         900 KiB  10.0%                   [self]
        8000 KiB  88.9%         ±196      [no symbol] (node+0x4)
         100 KiB   1.1%         <296      [no symbol] (node+0x5)
";
        assert!(text.contains(wanted), "{text}");
    }
}
