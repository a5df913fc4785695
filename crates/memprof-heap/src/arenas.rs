//! The heap by arena: bytes in use, free, overhead and resident.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::report::HeapRegion;
use super::text_table::{Kib, TextTable, write_left};

/// Maximum number of rows. Further arenas are added up in one extra row.
const MAX_ROWS: usize = 1000;

/// The kind of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaKind {
    /// glibc's main arena.
    Main,
    /// A glibc arena other than the main one, created for threads.
    Thread,
    /// All chunks with mappings of their own.
    Mapped,
    /// A jemalloc arena, or jemalloc's own blocks, which belong to no arena.
    Jemalloc,
    /// The heap of another allocator.
    Allocator,
    /// The arenas of Python's own allocator.
    Python,
    /// Arenas that are not listed.
    Other,
}

/// An arena. Sizes are in bytes, whether resident or not, unless the field says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct ArenaRow {
    /// The kind of the arena.
    pub kind: ArenaKind,
    /// Name of the arena. It contains the address of a glibc thread arena, and the index of a jemalloc arena.
    pub name: String,
    /// Number of chunks or blocks in use.
    pub chunks: u64,
    /// Bytes of contents of chunks in use.
    pub live: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes of the allocator's own structures.
    pub overhead: u64,
    /// Resident bytes: live, free and overhead together.
    pub resident: u64,
}

impl ArenaRow {
    /// All bytes of the arena, resident or not.
    pub fn bytes(&self) -> u64 {
        self.live + self.free + self.overhead
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A glibc arena, by number. The main arena is 0.
    Arena(usize),
    Mapped,
    /// A jemalloc arena, by index.
    Jemalloc(u16),
    JemallocOwn,
    /// Another allocator, by name.
    Allocator(&'static str),
    Python,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    chunks: u64,
    live: u64,
    free: u64,
    overhead: u64,
    resident: u64,
}

impl Sum {
    fn add(&mut self, what: HeapRegion, chunks: u64, bytes: u64, resident: u64) {
        let part = match what {
            what if what.is_live() => &mut self.live,
            what if what.is_overhead() => &mut self.overhead,
            _ => &mut self.free,
        };
        *part += bytes;
        self.resident += resident;
        self.chunks += if what.is_live() { chunks } else { 0 };
    }
}

/// Adds up the heap's bytes by arena.
#[derive(Debug)]
pub(super) struct Arenas {
    sums: HashMap<Key, Sum>,
    /// The arena being added to, and its sums so far.
    current: (Key, Sum),
}

impl Default for Arenas {
    fn default() -> Arenas {
        Arenas {
            sums: HashMap::new(),
            current: (Key::Arena(0), Sum::default()),
        }
    }
}

impl Arenas {
    /// Directs the next bytes to glibc's arena with this number.
    pub(super) fn begin(&mut self, arena: usize) {
        self.switch(Key::Arena(arena));
    }

    /// Directs the next bytes to the chunks with mappings of their own.
    pub(super) fn begin_mapped(&mut self) {
        self.switch(Key::Mapped);
    }

    /// Directs the next bytes to jemalloc's arena with this index.
    pub(super) fn begin_jemalloc(&mut self, arena: u16) {
        self.switch(Key::Jemalloc(arena));
    }

    /// Directs the next bytes to jemalloc's own blocks.
    pub(super) fn begin_jemalloc_own(&mut self) {
        self.switch(Key::JemallocOwn);
    }

    /// Directs the next bytes to another allocator.
    pub(super) fn begin_allocator(&mut self, name: &'static str) {
        self.switch(Key::Allocator(name));
    }

    /// Directs the next bytes to Python's allocator.
    pub(super) fn begin_python(&mut self) {
        self.switch(Key::Python);
    }

    fn switch(&mut self, key: Key) {
        if self.current.0 != key {
            self.sums.insert(self.current.0, self.current.1);
            self.current = (key, self.sums.get(&key).copied().unwrap_or_default());
        }
    }

    /// Adds bytes, and the number of chunks that begin in them.
    pub(super) fn add(&mut self, what: HeapRegion, chunks: u64, bytes: u64, resident: u64) {
        self.current.1.add(what, chunks, bytes, resident);
    }

    /// Returns the arenas that have bytes, in descending order of resident bytes. `addresses` are the addresses of
    /// glibc's arenas, by number.
    pub(super) fn rows(mut self, addresses: &[u64]) -> Vec<ArenaRow> {
        self.sums.insert(self.current.0, self.current.1);
        let mut rows: Vec<ArenaRow> = self
            .sums
            .into_iter()
            .map(|(key, sum)| row(key, sum, addresses))
            .filter(|row| row.bytes() > 0)
            .collect();
        rows.sort_by(|a, b| {
            (b.resident, b.bytes(), &a.name).cmp(&(a.resident, a.bytes(), &b.name))
        });
        if rows.len() > MAX_ROWS {
            let rest = rows.split_off(MAX_ROWS);
            rows.push(rest.into_iter().fold(empty(), added));
        }
        rows
    }
}

fn row(key: Key, sum: Sum, addresses: &[u64]) -> ArenaRow {
    let (kind, name) = match key {
        Key::Arena(0) => (ArenaKind::Main, "main arena".to_owned()),
        Key::Arena(number) => {
            let at = addresses.get(number).copied().unwrap_or_default();
            (ArenaKind::Thread, format!("arena at {at:#x}"))
        }
        Key::Mapped => (
            ArenaKind::Mapped,
            "chunks with mappings of their own".to_owned(),
        ),
        Key::Jemalloc(index) => (ArenaKind::Jemalloc, format!("jemalloc's arena {index}")),
        Key::JemallocOwn => (ArenaKind::Jemalloc, "jemalloc's own blocks".to_owned()),
        Key::Allocator(name) => (ArenaKind::Allocator, name.to_owned()),
        Key::Python => (ArenaKind::Python, "Python's arenas".to_owned()),
    };
    ArenaRow {
        kind,
        name,
        chunks: sum.chunks,
        live: sum.live,
        free: sum.free,
        overhead: sum.overhead,
        resident: sum.resident,
    }
}

fn empty() -> ArenaRow {
    ArenaRow {
        name: "other arenas".to_owned(),
        kind: ArenaKind::Other,
        ..row(Key::Mapped, Sum::default(), &[])
    }
}

fn added(sum: ArenaRow, row: ArenaRow) -> ArenaRow {
    ArenaRow {
        chunks: sum.chunks + row.chunks,
        live: sum.live + row.live,
        free: sum.free + row.free,
        overhead: sum.overhead + row.overhead,
        resident: sum.resident + row.resident,
        ..sum
    }
}

/// Writes at most `top` arenas as text, in KiB. Writes nothing for a single arena, which would repeat the figures of
/// the whole heap.
pub(super) fn write_text(rows: &[ArenaRow], out: &mut dyn Write, top: usize) -> io::Result<()> {
    if rows.len() < 2 {
        return Ok(());
    }
    writeln!(
        out,
        "\nArenas, in KiB; what is in use, free and the allocator's own is resident or not:"
    )?;
    let table = TextTable([14, 12, 14, 14, 12]);
    let head: [&dyn Display; 5] = [&"resident", &"chunks", &"live", &"free", &"own"];
    table.row(out, head, "arena")?;
    for row in rows.iter().take(top) {
        let [resident, live, free, own] = [row.resident, row.live, row.free, row.overhead].map(Kib);
        table.row(out, [&resident, &row.chunks, &live, &free, &own], &row.name)?;
    }
    write_left(out, 22, rows.len().saturating_sub(top) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_in_one_arena() {
        let mut arenas = Arenas::default();
        arenas.add(HeapRegion::Live, 1, 100, 50);
        arenas.begin(1);
        arenas.add(HeapRegion::Top, 1, 7, 7);
        arenas.begin_mapped();
        arenas.add(HeapRegion::LiveMapped, 1, 1000, 0);
        arenas.begin(0);
        arenas.add(HeapRegion::Overhead, 0, 16, 16);
        let rows = arenas.rows(&[0x1000, 0x2000]);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.chunks, row.bytes(), row.resident))
            .collect();
        assert_eq!(
            shown,
            [
                ("main arena", 1, 116, 66),
                ("arena at 0x2000", 0, 7, 7),
                ("chunks with mappings of their own", 1, 1000, 0),
            ]
        );
        assert_eq!(rows[0].overhead, 16);
    }

    #[test]
    fn arenas_beyond_the_limit_are_one_row() {
        let mut arenas = Arenas::default();
        for number in 0..MAX_ROWS + 5 {
            arenas.begin(number);
            arenas.add(HeapRegion::Live, 1, 8, number as u64);
        }
        let rows = arenas.rows(&[]);
        assert_eq!(rows.len(), MAX_ROWS + 1);
        let last = rows.last().unwrap();
        assert_eq!(
            (last.kind, last.chunks, last.live, last.resident),
            (ArenaKind::Other, 5, 40, 1 + 2 + 3 + 4)
        );
    }
}
