//! The overview as text.

use std::io::{self, Write};

use super::{FunctionRow, Grows, Overview, PeakCard};
use memprof_sys::text::{printable, size};

impl Overview {
    /// Writes the sentences and the rows of functions as text.
    ///
    /// # Errors
    /// If writing to `out` fails.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.made_of.sentence)?;
        for card in self.order {
            match card {
                // What a program that has ended holds at its end is in the tables.
                "grows" if self.order[0] != "peak" => self.grows.write_text(out)?,
                "peak" => self.peak.iter().try_for_each(|peak| peak.write_text(out))?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Grows {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.sentence)?;
        write_rows(&self.rows, out)
    }
}

impl PeakCard {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.sentence)?;
        write_rows(&self.rows, out)
    }
}

fn write_rows(rows: &[FunctionRow], out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        let name = row.function.as_deref().map(printable);
        let name = name.as_deref().unwrap_or("[no symbol]");
        let rate = match row.per_hour {
            Some(rate) if rate >= 0 => format!("  +{} an hour", size(rate.cast_unsigned())),
            _ => String::new(),
        };
        writeln!(
            out,
            "{:>12}  {name} ({}){rate}",
            size(row.bytes),
            printable(&row.place)
        )?;
    }
    Ok(())
}
