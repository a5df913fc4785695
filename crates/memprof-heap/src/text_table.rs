//! Rows of text tables: right-aligned columns, then text.

use std::fmt::{self, Display};
use std::io::{self, Write};

/// A table with columns of these widths.
#[derive(Clone, Copy)]
pub(super) struct TextTable<const N: usize>(pub [usize; N]);

impl<const N: usize> TextTable<N> {
    /// Writes one row. Cells are padded by their own `Display`.
    pub(super) fn row(
        self,
        out: &mut dyn Write,
        cells: [&dyn Display; N],
        text: impl Display,
    ) -> io::Result<()> {
        for (width, cell) in self.0.into_iter().zip(cells) {
            write!(out, "{cell:>width$}")?;
        }
        writeln!(out, "  {text}")
    }

    /// Writes a row with only text.
    pub(super) fn text(self, out: &mut dyn Write, text: impl Display) -> io::Result<()> {
        self.row(out, [&""; N], text)
    }
}

/// Writes how many rows of a list are not shown, if any.
pub(super) fn write_left(out: &mut dyn Write, width: usize, left: u64) -> io::Result<()> {
    match left {
        0 => Ok(()),
        _ => TextTable([width]).text(out, format!("{left} more")),
    }
}

/// Bytes, shown in KiB with one decimal.
#[derive(Clone, Copy)]
pub(super) struct Kib(pub u64);

impl Display for Kib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.1}", self.0 as f64 / 1024.0))
    }
}
