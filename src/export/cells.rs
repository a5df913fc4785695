//! Rows of comma-separated values, as in RFC 4180.

use std::borrow::Cow;
use std::io::{self, Write};

use csv::{Terminator, Writer, WriterBuilder};

/// Writes rows to `out`.
pub(super) fn writer(out: &mut dyn Write) -> Writer<&mut dyn Write> {
    WriterBuilder::new()
        .terminator(Terminator::CRLF)
        .from_writer(out)
}

/// Converts an error of the CSV writer to the underlying error of `out`.
pub(super) fn failed(error: csv::Error) -> io::Error {
    error.into()
}

/// Escapes a cell so that no spreadsheet interprets it as a formula, because names come from untrusted files. A cell that
/// could start a formula, even after skipped whitespace, is prefixed with an apostrophe.
pub(super) fn text(cell: &str) -> Cow<'_, str> {
    match cell.trim_start().chars().next() {
        Some(
            '=' | '+' | '-' | '@' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}' | '|' | '%',
        ) => Cow::Owned(format!("'{cell}")),
        _ if cell.starts_with(['\t', '\r', '\n']) => Cow::Owned(format!("'{cell}")),
        _ => Cow::Borrowed(cell),
    }
}
