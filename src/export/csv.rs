//! Comma-separated values, one row per stack: the figure of each kind, the unwind outcome (`outcome`), and the frames.
//! Columns of figures are named `NAME_UNIT`, for example `anon_bytes`, for each of [`Kind::single`].
//!
//! `frames` is one cell in the syntax of folded stacks, by default with the outermost function first. For memory without a
//! stack, the cell is `[before attach: MAPPING]`, and the outcome is the reason.
//!
//! A diff has the baseline's figures in a second set of columns, `NAME_before_UNIT`, and one row for each path of names and
//! outcome.
//!
//! If bytes by stack are estimates, further columns, `NAME_error_UNIT`, have the standard error of each row's figure, for
//! the kinds that have errors. A diff has no such columns, because one of its rows may represent several stacks.
//!
//! A cell that a spreadsheet could interpret as a formula begins with an apostrophe.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use super::{ExportOptions, Exporter, Supports, cells, folded};
use memprof_profile::symbol::Symbols;
use memprof_profile::tree::{Direction, Label, Merge, Naming, errors, frame_labels};
use memprof_profile::{Amounts, Frame, FrameFilter, Kind, Profile, Report};

pub(super) const FORMAT: Exporter = Exporter {
    name: "csv",
    about: "one row per stack: bytes of each kind, outcome, frames",
    extension: "csv",
    content_type: "text/csv; charset=utf-8",
    supports: Supports {
        direction: true,
        difference: true,
        instead: "Its reader can select columns and rows.",
        ..Supports::NOTHING
    },
    usual_frames: Some(FrameFilter::Source),
    has_addresses: false,
    write,
};

fn write(report: &Report, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let Some(baseline) = &options.baseline else {
        let errors = Errors::new(&report.profile);
        let kinds = kinds(&[&report.profile]);
        let mut rows = Rows::new([NOW], kinds, &errors.kinds, out)?;
        let mut number = 0;
        each(report, options, |outcome, frames, amounts| {
            let errors = errors.for_row(number);
            number += 1;
            rows.write([amounts], errors, outcome, frames)
        })?;
        return rows.out.flush();
    };
    let mut both: BTreeMap<(String, &str), [Amounts; 2]> = BTreeMap::new();
    for (side, report) in [report, baseline].into_iter().enumerate() {
        each(report, options, |outcome, frames, amounts| {
            both.entry((frames.to_owned(), outcome)).or_default()[side] += *amounts;
            Ok(())
        })?;
    }
    let kinds = kinds(&[&report.profile, &baseline.profile]);
    let mut rows = Rows::new([NOW, BEFORE], kinds, &[], out)?;
    for ((frames, outcome), [now, before]) in &both {
        rows.write([now, before], std::iter::empty(), outcome, frames)?;
    }
    rows.out.flush()
}

/// Infixes of column names, after the name of a kind: for the current figures, the baseline's, and standard errors.
const NOW: &str = "";
const BEFORE: &str = "_before";
const ERROR: &str = "_error";

/// The standard errors of samples, by kind.
struct Errors {
    /// The kinds that have errors.
    kinds: Vec<Kind>,
    /// For each of these kinds, the errors of all samples, in its unit.
    of_samples: Vec<Vec<u64>>,
}

impl Errors {
    fn new(profile: &Profile) -> Errors {
        let has = |kind: &Kind| {
            profile
                .uncertainties
                .iter()
                .any(|uncertainty| uncertainty.is_in(*kind))
        };
        let kinds: Vec<Kind> = Kind::single().filter(has).collect();
        let errors = kinds.iter().map(|kind| errors::of_samples(profile, *kind));
        Errors {
            of_samples: errors.collect(),
            kinds,
        }
    }

    /// The errors of a row. Rows of memory without a stack come after those of the samples, and have no errors.
    fn for_row(&self, row: usize) -> impl Iterator<Item = u64> {
        let columns = self.of_samples.iter();
        columns.map(move |errors| errors.get(row).copied().unwrap_or(0))
    }
}

/// Calls `row` with the outcome, the frames and the figures of every row, samples first.
fn each(
    report: &Report,
    options: &ExportOptions,
    mut row: impl FnMut(&'static str, &str, &Amounts) -> io::Result<()>,
) -> io::Result<()> {
    let profile = &report.profile;
    let direction = options.direction;
    let mut names = Cells::new(report.side(), options.no_inline);
    for sample in &profile.samples {
        let frames = names.frames(&sample.stack.frames, direction);
        row(sample.stack.outcome.label(), frames, &sample.amounts)?;
    }
    for lost in &profile.not_observed {
        let label = Label::NotObserved(&lost.mapping, lost.reason);
        row(lost.reason.label(), names.label(label), &lost.amounts)?;
    }
    Ok(())
}

/// Writes rows with the columns of one profile or of a diff.
struct Rows<'a> {
    out: csv::Writer<&'a mut dyn Write>,
    kinds: Vec<Kind>,
}

/// The kinds that have columns: those that were counted in at least one of the profiles.
fn kinds(sides: &[&Profile]) -> Vec<Kind> {
    let counted = |kind: &Kind| {
        kind.measure().always_stated || sides.iter().any(|profile| profile.counts(*kind))
    };
    Kind::single().filter(counted).collect()
}

impl<'a> Rows<'a> {
    fn new<const N: usize>(
        sides: [&str; N],
        kinds: Vec<Kind>,
        errors: &[Kind],
        out: &'a mut dyn Write,
    ) -> io::Result<Rows<'a>> {
        let mut out = cells::writer(out);
        let head = |kind: Kind, what: &str| format!("{}{what}_{}", kind.name(), kind.unit().name());
        let figures = sides
            .iter()
            .flat_map(|side| kinds.iter().map(move |kind| head(*kind, side)));
        let heads = figures.chain(errors.iter().map(|kind| head(*kind, ERROR)));
        let last = ["outcome", "frames"].map(str::to_owned);
        out.write_record(heads.chain(last)).map_err(cells::failed)?;
        Ok(Rows { out, kinds })
    }

    fn write<const N: usize>(
        &mut self,
        sides: [&Amounts; N],
        errors: impl Iterator<Item = u64>,
        outcome: &str,
        frames: &str,
    ) -> io::Result<()> {
        let figures = sides.iter();
        let figures = figures.flat_map(|amounts| {
            self.kinds
                .iter()
                .map(|kind| kind.figure(amounts).to_string())
        });
        let last = [outcome.to_owned(), cells::text(frames).into_owned()];
        self.out
            .write_record(
                figures
                    .chain(errors.map(|error| error.to_string()))
                    .chain(last),
            )
            .map_err(cells::failed)
    }
}

/// Formats stacks as cells. The name of each frame is looked up and escaped once.
pub(super) struct Cells<'a> {
    of: (&'a Profile, &'a Symbols),
    naming: Naming,
    /// The names at each frame, innermost first.
    escaped: HashMap<Frame, Vec<String>>,
    cell: String,
}

impl<'a> Cells<'a> {
    pub(super) fn new(of: (&'a Profile, &'a Symbols), no_inline: bool) -> Cells<'a> {
        Cells {
            of,
            naming: Naming {
                merge: Merge::Name,
                inlined: !no_inline,
            },
            escaped: HashMap::new(),
            cell: String::new(),
        }
    }

    fn label(&mut self, label: Label<'_>) -> &str {
        self.cell.clear();
        folded::escape(&label.to_string(), &mut self.cell);
        &self.cell
    }

    pub(super) fn frames(&mut self, stack: &[Frame], direction: Option<Direction>) -> &str {
        if stack.is_empty() {
            return self.label(Label::NoStack);
        }
        self.cell.clear();
        match direction {
            Some(Direction::InnermostFirst) => stack.iter().for_each(|f| self.push(*f, false)),
            _ => stack.iter().rev().for_each(|f| self.push(*f, true)),
        }
        &self.cell
    }

    fn push(&mut self, frame: Frame, outermost_first: bool) {
        let names = self.escaped.entry(frame).or_insert_with(|| {
            let labels = frame_labels(self.of, frame, self.naming);
            let escaped = labels.into_iter().map(|label| {
                let mut escaped = String::new();
                folded::escape(&label.to_string(), &mut escaped);
                escaped
            });
            escaped.collect()
        });
        let mut push = |name: &String| {
            if !self.cell.is_empty() {
                self.cell.push(';');
            }
            self.cell.push_str(name);
        };
        match outermost_first {
            true => names.iter().rev().for_each(&mut push),
            false => names.iter().for_each(&mut push),
        }
    }
}
