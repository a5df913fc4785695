//! The tables of types and roots as text.

use std::io::{self, Write};

use super::roots::{Retained, RootKind};
use super::types::{TypeKind, Types};
use memprof_sys::text::printable;

impl Types {
    /// Writes at most `top` types.
    pub(super) fn write_text(&self, out: &mut dyn Write, top: usize) -> io::Result<()> {
        let share = |bytes: u64| 100.0 * bytes as f64 / self.bytes.max(1) as f64;
        writeln!(
            out,
            "\nObjects by type, largest sums first. Of their bytes, {:.1} % have a type with a name; {:.1} % look like text, \
             addresses\nor zeroes. Below each, what leads to it first:",
            share(self.named),
            share(self.recognized)
        )?;
        writeln!(
            out,
            "{:>14}{:>11}{:>13}  {:<16}type",
            "KiB", "objects", "unreachable", "example"
        )?;
        for row in self.rows.iter().take(top) {
            let name = match row.kind {
                TypeKind::Text | TypeKind::Pointers | TypeKind::Zeroes => {
                    row.kind.name().to_owned()
                }
                kind => format!("{}: {}", kind.name(), printable(&row.name)),
            };
            writeln!(
                out,
                "{:>14.1}{:>11}{:>13}  {:<16}{name}",
                kib(row.bytes),
                row.count,
                row.unreachable,
                format!("{:#x}", row.example)
            )?;
            for by in &row.retained_by {
                writeln!(
                    out,
                    "{:>42.1}{:>11}  {}",
                    kib(by.bytes),
                    by.count,
                    root(by.kind, &by.root)
                )?;
            }
        }
        left(
            out,
            self.rows.len().saturating_sub(top) as u64 + self.left_out,
        )
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
        writeln!(out, "{:>14}{:>11}  root", "KiB", "objects")?;
        for row in self.roots.iter().take(top) {
            writeln!(
                out,
                "{:>14.1}{:>11}  {}",
                kib(row.bytes),
                row.count,
                root(row.kind, &row.name)
            )?;
        }
        left(
            out,
            self.roots.len().saturating_sub(top) as u64 + self.left_out,
        )
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

fn left(out: &mut dyn Write, more: u64) -> io::Result<()> {
    match more {
        0 => Ok(()),
        _ => writeln!(out, "{:>14}  {more} more", ""),
    }
}

fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}
