//! The heap by stack as text tables, in KiB.

use std::fmt::Display;
use std::io::{self, Write};

use super::super::grown_by::GrownBy;
use super::super::text_table::{Kib, TextTable, write_left};
use super::{ByStack, Estimated, HeadOf, RestKind, RestRow};
use memprof_sys::text::printable;

/// Maximum number of callers below an allocation, and their maximum indentation in columns.
const CALLERS: usize = 12;
const INDENT: usize = 12;

impl ByStack {
    /// Writes the report as text, with at most `top` rows per list.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write_text(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        let counts = &self.samples;
        match self.every {
            true => writeln!(
                out,
                "\nBy stack, in KiB: each allocation was a sample, and {} of them are in use. Nothing is estimated.",
                counts.joined
            ),
            false => writeln!(
                out,
                "\nBy stack, in KiB: estimated from {} live samples, each figure with its standard error. \"< N\": not told from 0.",
                counts.joined
            ),
        }?;
        for (number, what) in [
            (counts.gone, "whose chunk is no longer in use were left out"),
            (counts.empty, "of no bytes were left out"),
            (
                counts.lost,
                "were dropped, because the table was full: their chunks have no stack",
            ),
            (
                counts.unsent,
                "did not reach memprof, which could not keep up: chunks of those that were not freed have no stack",
            ),
        ] {
            if number > 0 {
                writeln!(out, "{number} samples {what}.")?;
            }
        }
        writeln!(
            out,
            "resident: of reachable chunks with headers, of that overhead: headers and rounding; pinned: free bytes on \
             their pages;\nlive: requested bytes, resident or not, also of unreachable chunks"
        )?;
        if !self.every {
            writeln!(
                out,
                "The figures are within 1.96 standard errors in 95 % of cases, pinned in 83 to 90 %: few chunks may pin most."
            )?;
        }
        let table = TextTable([22, 11, 22, 22, 22, 9]);
        let head: [&dyn Display; 6] = [
            &"resident",
            &"overhead",
            &"pinned",
            &"unreachable",
            &"live",
            &"samples",
        ];
        table.row(out, head, "stack")?;
        for row in self.rows.iter().take(top) {
            let cells: [&dyn Display; 6] = [
                &estimate(row.resident),
                &Kib(row.overhead),
                &estimate(row.pinned),
                &estimate(row.unreachable),
                &estimate(row.live),
                &row.samples,
            ];
            let mut frames = frames(&row.stack, &row.places);
            table.row(out, cells, frames.next().unwrap_or_default())?;
            write_callers(table, frames, out)?;
        }
        let table = TextTable([22]);
        let hidden = self.rows.iter().skip(top);
        let more = self.left_out + hidden.clone().count() as u64;
        if more > 0 {
            let bytes = self.left_out_bytes + hidden.map(|row| row.total()).sum::<u64>();
            table.row(out, [&Kib(bytes)], format!("{more} more stacks"))?;
        }
        for row in &self.free_pages {
            let of = match &row.grown_by {
                Some(stack) => format!("brought in by {}", printable(stack)),
                None => "it is not known who brought them in".to_owned(),
            };
            table.row(out, [&Kib(row.resident)], format!("free pages, {of}"))?;
        }
        for row in &self.rest {
            write_rest(row, out)?;
        }
        let verdict = if self.sum() == self.total {
            ""
        } else {
            ", which the rows are not"
        };
        let sum = "anonymous memory: the sum of resident, pinned and unreachable";
        table.row(out, [&Kib(self.total)], format!("{sum}{verdict}"))?;
        self.write_leaks(out, top)
    }

    fn write_leaks(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        if self.leaks.is_empty() {
            return Ok(());
        }
        writeln!(
            out,
            "\nUnreachable by stack, in bytes (parts of the rows above). resident: with headers"
        )?;
        let table = TextTable([24, 22, 24, 9]);
        let head: [&dyn Display; 4] = [&"requested", &"allocations", &"resident", &"samples"];
        table.row(out, head, "stack, and what leads to them")?;
        for row in self.leaks.iter().take(top) {
            let head = match &row.head {
                HeadOf::Itself => "nothing leads to them".to_owned(),
                HeadOf::Stack(stack) => format!("a chunk of {} leads to them", printable(stack)),
                HeadOf::NotSampled => "a chunk that was not sampled leads to them".to_owned(),
            };
            let cells: [&dyn Display; 4] = [
                &whole(row.requested.bytes, row.requested.error),
                &whole(row.allocations.number, row.allocations.error),
                &whole(row.unreachable.bytes, row.unreachable.error),
                &row.samples,
            ];
            let mut frames = frames(&row.stack, &row.places);
            let innermost = frames.next().unwrap_or_default();
            table.row(
                out,
                cells,
                format!("{innermost}; {head}, as {:#x}", row.example),
            )?;
            write_callers(table, frames, out)?;
        }
        let hidden = self.leaks.len().saturating_sub(top) + self.leaks_left_out as usize;
        write_left(out, 22, hidden as u64)
    }
}

impl GrownBy {
    /// Writes the stacks that brought in pages of zeroes, at most `top`.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write_zeroes(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        writeln!(
            out,
            "\nResident pages that contain only zeroes, in KiB, by the stack that brought them in:"
        )?;
        let table = TextTable([14]);
        if let Some(why) = &self.error {
            return table.text(out, format!("not known: {}", printable(why)));
        }
        for row in self.rows.iter().take(top) {
            let mut frames = frames(&row.stack, &[]);
            table.row(out, [&Kib(row.bytes)], frames.next().unwrap_or_default())?;
            write_callers(table, frames, out)?;
        }
        let hidden = self.rows.iter().skip(top).map(|row| row.bytes);
        match hidden.sum::<u64>() + self.left_out_bytes {
            0 => Ok(()),
            rest => table.row(out, [&Kib(rest)], "other stacks"),
        }
    }
}

/// The frames of a stack in the syntax of folded stacks, innermost first, each with its place.
fn frames<'a>(
    stack: &'a str,
    places: &'a [Option<String>],
) -> impl ExactSizeIterator<Item = String> + 'a {
    let names: Vec<&str> = stack.split(';').collect();
    let frames = names.into_iter().enumerate().rev();
    frames.map(|(at, name)| match places.get(at) {
        Some(Some(place)) => format!("{} ({})", printable(name), printable(place)),
        _ => printable(name).into_owned(),
    })
}

/// Writes callers below an allocation, so that the eye goes from it outwards.
fn write_callers<const N: usize>(
    table: TextTable<N>,
    callers: impl ExactSizeIterator<Item = String>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let more = callers.len().saturating_sub(CALLERS);
    let indent = |depth: usize| depth.min(INDENT) + 1;
    for (depth, caller) in callers.take(CALLERS).enumerate() {
        table.text(out, format!("{:1$}{caller}", "", indent(depth)))?;
    }
    match more {
        0 => Ok(()),
        more => table.text(
            out,
            format!("{:1$}{more} more callers", "", indent(CALLERS)),
        ),
    }
}

/// Formats an estimate with its error. An estimate that is not significantly above 0 is shown as an upper limit: the
/// estimate plus twice its error.
fn estimate(of: Estimated) -> String {
    let (bytes, error) = (Kib(of.bytes), Kib(of.error));
    match of {
        Estimated { error: 0, .. } => bytes.to_string(),
        _ if of.bytes < 2 * of.error => format!("< {}", Kib(of.bytes + 2 * of.error)),
        _ => format!("{bytes} ± {error}"),
    }
}

/// Like [`estimate`], for whole bytes or numbers.
fn whole(of: u64, error: u64) -> String {
    match error {
        0 => of.to_string(),
        _ if of < 2 * error => format!("< {}", of + 2 * error),
        _ => format!("{of} ± {error}"),
    }
}

fn write_rest(row: &RestRow, out: &mut dyn Write) -> io::Result<()> {
    let what = match row.kind {
        RestKind::BeforeSampling => "in use, allocated before sampling began",
        RestKind::NotSampled => "in use, not sampled although sampling began with the program",
        RestKind::TooFewSamples => "in use, too few samples",
        RestKind::AllocatorOwn => "the allocator's own",
        RestKind::Python => "Python's own allocator",
        RestKind::Other => "outside the heap",
    };
    let name = row.name.iter().map(|name| format!(": {name}"));
    let sizes = row
        .sizes
        .iter()
        .map(|[from, to]| format!(", chunks of {from} to {to} bytes"));
    let more: String = name.chain(sizes).collect();
    let lost = if row.unreachable { ", unreachable" } else { "" };
    let figure = match row.kind {
        RestKind::BeforeSampling | RestKind::NotSampled => estimate(row.resident),
        _ => Kib(row.resident.bytes).to_string(),
    };
    let pinned = match row.pinned {
        0 => String::new(),
        pinned => Kib(pinned).to_string(),
    };
    let text = format!("{what}{more}{lost}");
    TextTable([22, 11, 22]).row(out, [&figure, &"", &pinned], text)
}
