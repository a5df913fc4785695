//! Functions as comma-separated values: self and total bytes of each. For kinds that count objects, columns are named
//! `self_objects` and so on.
//!
//! One row per function of a file, largest total first. Code of a file without symbols is one row with an empty name.
//! Memory outside functions has rows at the end: `[before attach: MAPPING]`, `[no stack]` and `[unknown]` (stacks that end
//! in code of no known file). The column `self_bytes` thus adds up to the total of the report.
//!
//! A diff has the baseline's bytes in two more columns. If bytes by stack are estimates, two more columns have standard
//! errors: of both figures, or in a diff of their differences. A cell that a spreadsheet could interpret as a formula
//! begins with an apostrophe.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::{ExportOptions, Exporter, Supports, cells};
use memprof_profile::measure::Unit;
use memprof_profile::symbol::Symbols;
use memprof_profile::tree::{Category, Label, Table};
use memprof_profile::{FrameFilter, Profile, Report};
use memprof_sys::text::printable;

pub(super) const FORMAT: Exporter = Exporter {
    name: "functions",
    about: "one row per function: its self and total memory",
    extension: "functions.csv",
    content_type: "text/csv; charset=utf-8",
    supports: Supports {
        kind: true,
        threshold: true,
        difference: true,
        ..Supports::NOTHING
    },
    usual_frames: Some(FrameFilter::Source),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    match &options.baseline {
        None => write_table([report.side()], options, out),
        Some(baseline) => write_table([report.side(), baseline.side()], options, out),
    }
}

/// Writes a table with the columns of each side: the current profile and, for a diff, the baseline.
fn write_table<const N: usize>(
    sides: [(&Profile, &Symbols); N],
    options: &ExportOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let threshold = options.threshold.unwrap_or_default();
    let kind = options.kind;
    let estimated = sides.iter().any(|(profile, _)| profile.has_errors(kind));
    let mut table = Table::new(sides, kind, !options.no_inline);
    // Totals of functions overlap, so their sum is meaningless.
    let (mut small, no_total) = ([0; N], [0; N]);
    table.rows.retain(|row| {
        let keep = row.total.into_iter().max() >= Some(threshold);
        if !keep {
            (0..N).for_each(|side| small[side] += row.own[side]);
        }
        keep
    });
    table.rows.sort_by_key(|row| {
        let sizes = Reverse((row.total[0], row.own[0]));
        (sizes, row.code.path.as_os_str(), row.code.function)
    });
    table
        .others
        .sort_by_key(|(label, bytes)| (Reverse(bytes[0]), *label));

    let mut rows = Rows::<N>::new(kind.unit(), estimated, out)?;
    for row in &table.rows {
        let function = printable(row.code.function.unwrap_or_default());
        let path = row.code.path.to_string_lossy();
        let file = printable(&path);
        let words = [&function, &file, category(row.code.category.0)];
        rows.write(row.own, row.total, row.errors, words)?;
    }
    for (label, bytes) in &table.others {
        let label = label.to_string();
        rows.write(*bytes, *bytes, [0; 2], [&printable(&label), "", ""])?;
    }
    if small != [0; N] {
        let label = Label::BelowThreshold.to_string();
        rows.write(small, no_total, [0; 2], [&label, "", ""])?;
    }
    rows.out.flush()
}

struct Rows<'o, const N: usize> {
    out: csv::Writer<&'o mut dyn Write>,
    /// Whether there are columns of standard errors.
    estimated: bool,
}

impl<'o, const N: usize> Rows<'o, N> {
    fn new(unit: Unit, estimated: bool, out: &'o mut dyn Write) -> io::Result<Self> {
        let (mut out, unit) = (cells::writer(out), unit.name());
        let sides = ["", "_before"].into_iter().take(N);
        let heads =
            sides.flat_map(|side| [format!("self{side}_{unit}"), format!("total{side}_{unit}")]);
        let errors = ["self", "total"].into_iter().filter(|_| estimated);
        let errors = errors.map(|what| format!("{what}_error_{unit}"));
        let words = ["function", "file", "category"].map(str::to_owned);
        let others = errors.chain(words);
        out.write_record(heads.chain(others))
            .map_err(cells::failed)?;
        Ok(Rows { out, estimated })
    }

    fn write(
        &mut self,
        own: [u64; N],
        total: [u64; N],
        errors: [u64; 2],
        words: [&str; 3],
    ) -> io::Result<()> {
        let bytes = own.into_iter().zip(total);
        let bytes = bytes.flat_map(|(own, total)| [own.to_string(), total.to_string()]);
        let errors = errors.into_iter().filter(|_| self.estimated);
        let errors = errors.map(|error| error.to_string());
        let words = words.map(|word| cells::text(word).into_owned());
        self.out
            .write_record(bytes.chain(errors).chain(words))
            .map_err(cells::failed)
    }
}

fn category(category: Category) -> &'static str {
    match category {
        Category::OwnOther => "own",
        Category::OwnRust => "own, Rust",
        Category::Runtime => "runtime",
        Category::Library => "library",
    }
}
