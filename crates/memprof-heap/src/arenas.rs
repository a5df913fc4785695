//! The heap by arena: how much of each is in use, free, and in memory.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::report::What;
use super::text::{kib, write_left};

/// Maximum number of rows; arenas beyond are added up in one more.
const MAX_ROWS: usize = 1000;

/// What kind of arena it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaKind {
    /// glibc's main arena.
    Main,
    /// Another arena of glibc's, which it makes for threads.
    Thread,
    /// The chunks that have mappings of their own.
    Mapped,
    /// One of jemalloc's arenas, or its own blocks, which belong to none.
    Jemalloc,
    /// The arenas of Python's own allocator.
    Python,
    /// Arenas that are not listed.
    Other,
}

/// An arena. Sizes are in bytes, resident or not unless they say so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArenaRow {
    /// What kind it is.
    pub kind: ArenaKind,
    /// Its name; that of a thread arena of glibc's has the arena's address, that of jemalloc's the index.
    pub name: String,
    /// Number of chunks or blocks in use.
    pub chunks: u64,
    /// Contents of chunks in use.
    pub live: u64,
    /// Free bytes.
    pub free: u64,
    /// The allocator's own.
    pub overhead: u64,
    /// Those of all three that are in memory.
    pub resident: u64,
}

impl ArenaRow {
    /// All of its bytes.
    pub fn bytes(&self) -> u64 {
        self.live + self.free + self.overhead
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// glibc's, by number; the main one is 0.
    Arena(usize),
    Mapped,
    /// jemalloc's, by its index.
    Jemalloc(u16),
    JemallocOwn,
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
    fn add(&mut self, what: What, chunks: u64, bytes: u64, resident: u64) {
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

/// Sums while the heap is added.
#[derive(Debug)]
pub(super) struct Arenas {
    sums: HashMap<Key, Sum>,
    /// The arena that is being added, and its sums so far.
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
    /// What is added next belongs to glibc's arena with this number.
    pub(super) fn begin(&mut self, arena: usize) {
        self.switch(Key::Arena(arena));
    }

    /// What is added next is a chunk with a mapping of its own.
    pub(super) fn begin_mapped(&mut self) {
        self.switch(Key::Mapped);
    }

    /// What is added next belongs to the arena of jemalloc's with this index.
    pub(super) fn begin_jemalloc(&mut self, arena: u16) {
        self.switch(Key::Jemalloc(arena));
    }

    /// What is added next is one of jemalloc's own blocks.
    pub(super) fn begin_jemalloc_own(&mut self) {
        self.switch(Key::JemallocOwn);
    }

    /// What is added next belongs to Python's allocator.
    pub(super) fn begin_python(&mut self) {
        self.switch(Key::Python);
    }

    fn switch(&mut self, key: Key) {
        if self.current.0 != key {
            self.sums.insert(self.current.0, self.current.1);
            self.current = (key, self.sums.get(&key).copied().unwrap_or_default());
        }
    }

    /// Adds bytes, and the chunks that begin there.
    pub(super) fn add(&mut self, what: What, chunks: u64, bytes: u64, resident: u64) {
        self.current.1.add(what, chunks, bytes, resident);
    }

    /// The arenas that have bytes, those with the most resident ones first. `addresses` are those of glibc's.
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

/// Writes at most `top` arenas as text, in KiB. One alone has the figures of the whole heap.
pub(super) fn write_text(rows: &[ArenaRow], out: &mut dyn Write, top: usize) -> io::Result<()> {
    if rows.len() < 2 {
        return Ok(());
    }
    writeln!(
        out,
        "\nArenas, in KiB; what is in use, free and the allocator's own is resident or not:"
    )?;
    writeln!(
        out,
        "{:>14}{:>12}{:>14}{:>14}{:>12}  arena",
        "resident", "chunks", "live", "free", "own"
    )?;
    for row in rows.iter().take(top) {
        writeln!(
            out,
            "{:>14.1}{:>12}{:>14.1}{:>14.1}{:>12.1}  {}",
            kib(row.resident),
            row.chunks,
            kib(row.live),
            kib(row.free),
            kib(row.overhead),
            row.name
        )?;
    }
    write_left(out, rows.len().saturating_sub(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_in_one_arena() {
        let mut arenas = Arenas::default();
        arenas.add(What::Live, 1, 100, 50);
        arenas.begin(1);
        arenas.add(What::Top, 1, 7, 7);
        arenas.begin_mapped();
        arenas.add(What::LiveMapped, 1, 1000, 0);
        arenas.begin(0);
        arenas.add(What::Overhead, 0, 16, 16);
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
            arenas.add(What::Live, 1, 8, number as u64);
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
