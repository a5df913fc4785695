//! The tables of types and roots as text.

use std::io::{self, Write};

use super::roots::{Retained, RootKind};
use super::text_table::{Kib, TextTable, write_left};
use super::types::{TypeKind, Types};
use memprof_sys::text::printable;

impl Types {
    /// Writes at most `top` types; with `roots`, also what leads to them.
    pub(super) fn write_text(
        &self,
        out: &mut dyn Write,
        top: usize,
        roots: bool,
    ) -> io::Result<()> {
        let share = |bytes: u64| 100.0 * bytes as f64 / self.bytes.max(1) as f64;
        writeln!(
            out,
            "\nObjects by type, largest sums first. Of their bytes, {:.1} % have a type with a name; {:.1} % look like text, \
             addresses\nor zeroes.{}",
            share(self.named),
            share(self.recognized),
            if roots {
                " Below each, what leads to it first:"
            } else {
                ""
            }
        )?;
        if let Some(why) = self
            .debug_info
            .as_ref()
            .and_then(|info| info.incomplete.as_deref())
        {
            writeln!(
                out,
                "Not all debug information was used: {}.",
                printable(why)
            )?;
        }
        let table = TextTable([14, 11, 13]);
        let head = format!("{:<16}type", "example");
        table.row(out, [&"KiB", &"objects", &"unreachable"], head)?;
        for row in self.rows.iter().take(top) {
            let name = match row.kind {
                TypeKind::Text | TypeKind::Pointers | TypeKind::Zeroes => {
                    row.kind.name().to_owned()
                }
                kind => format!("{}: {}", kind.name(), printable(&row.name)),
            };
            let name = format!("{:<#16x}{name}", row.example);
            table.row(out, [&Kib(row.bytes), &row.count, &row.unreachable], name)?;
            for by in row.retained_by.iter().filter(|_| roots) {
                let root = root(by.kind, &by.root);
                TextTable([42, 11]).row(out, [&Kib(by.bytes), &by.count], root)?;
            }
        }
        let hidden = self.rows.len().saturating_sub(top) as u64;
        write_left(out, 14, hidden + self.left_out)
    }
}

impl Retained {
    /// Name of the root that leads to one of the largest objects.
    pub(super) fn root_name(&self, address: u64) -> Option<&str> {
        let root = self.largest.iter().find(|root| root.address == address)?;
        Some(&root.root)
    }

    /// Writes at most `top` roots.
    pub(super) fn write_text(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        writeln!(
            out,
            "\nRoots, by what they lead to first (the nearest root of each object; conservative: any word counts as an \
             address):"
        )?;
        let table = TextTable([14, 11]);
        table.row(out, [&"KiB", &"objects"], "root")?;
        for row in self.roots.iter().take(top) {
            let root = root(row.kind, &row.name);
            table.row(out, [&Kib(row.bytes), &row.count], root)?;
        }
        let hidden = self.roots.len().saturating_sub(top) as u64;
        write_left(out, 14, hidden + self.left_out)
    }
}

fn root(kind: RootKind, name: &str) -> String {
    let name = printable(name);
    match kind {
        RootKind::Variable => format!("variable {name}"),
        RootKind::Thread | RootKind::Mapping | RootKind::Missing => name.to_string(),
        RootKind::Other => "roots that were too many to be told apart".to_owned(),
    }
}
