//! What changed between two reports: the total, then the functions of the program that grew most.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use super::functions::{OwnFunction, own_functions_by};
use memprof_profile::measure::Unit;
use memprof_profile::{Kind, Report};
use memprof_sys::text::size;

/// Number of functions that grew.
const GREW: usize = 10;
/// Number of functions that shrank.
const SHRANK: usize = 3;

/// The difference of two reports.
pub(crate) struct Change<'a> {
    kind: Kind,
    /// What is compared, before and now: resident memory as ps shows it, or the figure of the kind.
    total: [u64; 2],
    /// The functions whose figure changed, with the figure before.
    rows: Vec<(OwnFunction<'a>, u64)>,
    /// The change of memory without a stack.
    without_stack: i64,
}

impl<'a> Change<'a> {
    /// The difference of a kind's figures.
    pub fn new(before: &'a Report, now: &'a Report, kind: Kind) -> Change<'a> {
        let total = [before, now].map(|report| kind.figure(&report.profile.total));
        let [old, new] = [before, now].map(|report| own_functions_by(report, kind));
        let mut known: HashMap<String, OwnFunction<'a>> = old
            .into_iter()
            .map(|function| (function.key(), function))
            .collect();
        let mut rows: Vec<(OwnFunction<'a>, u64)> = new
            .into_iter()
            .map(|function| {
                let before = known.remove(&function.key());
                (function, before.map_or(0, |before| before.bytes))
            })
            .collect();
        rows.extend(known.into_values().map(|function| {
            let before = function.bytes;
            (
                OwnFunction {
                    bytes: 0,
                    ..function
                },
                before,
            )
        }));
        rows.retain(|(function, before)| function.bytes != *before);
        rows.sort_by_key(|(function, before)| {
            (Reverse(change(*before, function.bytes)), function.key())
        });
        let without = |report: &Report| -> u64 {
            let rows = report.profile.not_observed.iter();
            rows.map(|row| kind.figure(&row.amounts)).sum()
        };
        Change {
            kind,
            total,
            rows,
            without_stack: change(without(before), without(now)),
        }
    }

    /// Writes the total and the functions that changed most.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let [before, now] = self.total;
        let of = match self.kind {
            Kind::All => "Anonymous and shared memory and page cache",
            kind => kind.name(),
        };
        let per_cent = match before {
            0 => String::new(),
            before => format!(
                ", {:+.1} %",
                100.0 * change(before, now) as f64 / before as f64
            ),
        };
        writeln!(
            out,
            "{of}: {} \u{2192} {} ({}{per_cent})",
            self.figure(before),
            self.figure(now),
            self.signed(change(before, now))
        )?;
        let grew = |(function, before): &&(OwnFunction<'_>, u64)| function.bytes > *before;
        let (grown, shrunk): (Vec<_>, Vec<_>) = self.rows.iter().partition(grew);
        match grown.is_empty() {
            true => writeln!(out, "\nNo function holds more than before.")?,
            false => writeln!(out, "\nGrew:")?,
        }
        self.write_rows(grown.iter().copied().take(GREW), out)?;
        write_more(grown.len().saturating_sub(GREW), out)?;
        if !shrunk.is_empty() {
            writeln!(out, "Shrank:")?;
        }
        self.write_rows(shrunk.iter().rev().copied().take(SHRANK), out)?;
        write_more(shrunk.len().saturating_sub(SHRANK), out)?;
        match self.without_stack {
            0 => Ok(()),
            bytes => writeln!(out, "Memory without a stack: {}", self.signed(bytes)),
        }
    }

    fn write_rows<'r>(
        &'r self,
        rows: impl Iterator<Item = &'r (OwnFunction<'a>, u64)>,
        out: &mut dyn Write,
    ) -> io::Result<()>
    where
        'a: 'r,
    {
        for (function, before) in rows {
            let change = self.signed(change(*before, function.bytes));
            writeln!(
                out,
                "{change:>14}  to {:>10}  {}",
                self.figure(function.bytes),
                function.text()
            )?;
        }
        Ok(())
    }

    fn figure(&self, figure: u64) -> String {
        match self.kind.unit() {
            Unit::Bytes => size(figure),
            Unit::Objects => figure.to_string(),
        }
    }

    fn signed(&self, change: i64) -> String {
        let sign = if change < 0 { "\u{2212}" } else { "+" };
        format!("{sign}{}", self.figure(change.unsigned_abs()))
    }
}

fn change(before: u64, now: u64) -> i64 {
    now.wrapping_sub(before).cast_signed()
}

fn write_more(more: usize, out: &mut dyn Write) -> io::Result<()> {
    match more {
        0 => Ok(()),
        more => writeln!(
            out,
            "{more:>14}  more; --threshold SIZE prints the call tree with all changes"
        ),
    }
}
