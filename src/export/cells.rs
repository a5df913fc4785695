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

/// Converts the error of a row to that of `out`.
pub(super) fn failed(error: csv::Error) -> io::Error {
    error.into()
}

/// A text that no spreadsheet interprets as a formula, because names come from untrusted files.
/// A cell that could start a formula (also after skipped whitespace) gets an apostrophe in front.
pub(super) fn text(cell: &str) -> Cow<'_, str> {
    match cell.trim_start().chars().next() {
        Some(
            '=' | '+' | '-' | '@' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}' | '|' | '%',
        ) => Cow::Owned(format!("'{cell}")),
        _ if cell.starts_with(['\t', '\r', '\n']) => Cow::Owned(format!("'{cell}")),
        _ => Cow::Borrowed(cell),
    }
}
