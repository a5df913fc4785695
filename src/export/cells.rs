//! Rows of comma-separated values, as RFC 4180 has them.

use std::borrow::Cow;
use std::io::{self, Write};

use csv::{Terminator, Writer, WriterBuilder};

/// Writes rows to `out`.
pub(super) fn writer(out: &mut dyn Write) -> Writer<&mut dyn Write> {
    WriterBuilder::new()
        .terminator(Terminator::CRLF)
        .from_writer(out)
}

/// The error of `out` that a row failed with.
pub(super) fn failed(error: csv::Error) -> io::Error {
    error.into()
}

/// A text that no spreadsheet takes for a formula: names come from files that nobody vouches for.
/// What could begin one (also behind what a program skips) gets an apostrophe in front.
pub(super) fn text(cell: &str) -> Cow<'_, str> {
    match cell.trim_start().chars().next() {
        Some(
            '=' | '+' | '-' | '@' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}' | '|' | '%',
        ) => Cow::Owned(format!("'{cell}")),
        _ if cell.starts_with(['\t', '\r', '\n']) => Cow::Owned(format!("'{cell}")),
        _ => Cow::Borrowed(cell),
    }
}
