//! Python's memory as text tables, in KiB.

use std::io::{self, Write};

use super::super::text_table::{Kib, TextTable, write_left};
use super::{BlockRole, PythonHeap, PythonRead};
use memprof_sys::text::printable;

impl PythonHeap {
    /// Writes the report as text, with at most `top` types.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub(crate) fn write_text(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        match self {
            PythonHeap::Read(read) => read.write_text(out, top),
            PythonHeap::Refused { reason } => {
                writeln!(
                    out,
                    "\nPython: its allocator's blocks were not read: {reason}"
                )
            }
        }
    }
}

impl PythonRead {
    fn write_text(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        let typed = 100.0 * self.typed_bytes as f64 / self.live_bytes.max(1) as f64;
        match self.arenas {
            0 => write!(out, "\nPython: blocks of {} in use: ", self.allocator)?,
            arenas => write!(
                out,
                "\nPython: {arenas} arenas with {} KiB; blocks in use: ",
                Kib(self.arena_bytes)
            )?,
        }
        writeln!(
            out,
            "{} KiB, of which {typed:.1} % are objects or memory of objects.",
            Kib(self.live_bytes)
        )?;
        writeln!(
            out,
            "By type, also larger blocks, which malloc has; memory of: items, keys, data that such objects refer to; held by: the\n\
             nearest object that leads to them, apart from collections"
        )?;
        let table = TextTable([14, 12]);
        let head = format!("{:<18}type", "example");
        table.row(out, [&"KiB", &"number"], head)?;
        for row in self.types.iter().take(top) {
            let what = match row.role {
                BlockRole::Object => printable(&row.name).into_owned(),
                BlockRole::Memory => format!("memory of {}", printable(&row.name)),
                BlockRole::Kept => "(freed objects, kept for reuse)".to_owned(),
                BlockRole::Unknown => "(not known)".to_owned(),
            };
            let holder = row.held_by.first().map_or_else(String::new, |by| {
                let share = 100.0 * by.bytes as f64 / row.bytes.max(1) as f64;
                format!(", {share:.0} % held by {}", printable(&by.name))
            });
            let what = format!("{:<#18x}{what}{holder}", row.example);
            table.row(out, [&Kib(row.bytes), &row.count], what)?;
        }
        let hidden = self.types.len().saturating_sub(top) as u64;
        write_left(out, 22, hidden + self.types_left_out)
    }
}
