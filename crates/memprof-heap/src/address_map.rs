//! The heap by address: how much of each part of the address space is live, free or not in memory.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::memory::Run;
use super::report::What;

/// Maximum number of cells. If there are more, each is made twice as large.
const MOST: usize = 2048;
/// The smallest cell, in bytes.
const SMALLEST: u64 = 4096;

/// Bytes of the heap in one cell. What is neither live, free nor the allocator's own is not resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// All of them.
    pub bytes: u64,
    /// Resident contents of chunks in use.
    pub live: u64,
    /// Resident free bytes.
    pub free: u64,
    /// The allocator's own resident bytes.
    pub own: u64,
}

/// As `[bytes, live, free, own]`: there are many.
impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        [self.bytes, self.live, self.free, self.own].serialize(to)
    }
}

/// Cells next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapRange {
    /// Address of the first one.
    pub start: u64,
    /// The cells, in address order.
    pub cells: Vec<Cell>,
}

/// The parts of the address space that have a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AddressMap {
    /// Size of a cell, in bytes.
    pub cell: u64,
    /// The parts, in address order.
    pub ranges: Vec<MapRange>,
}

/// Adds up cells.
#[derive(Debug)]
pub(super) struct Cells {
    size: u64,
    /// By number: address divided by size.
    cells: BTreeMap<u64, Cell>,
    /// The cell that is being added to: chunks come in address order.
    current: (u64, Cell),
}

/// Part of a cell's bytes.
#[derive(Clone, Copy, Debug)]
enum Role {
    All,
    Live,
    Free,
    Own,
}

impl Cells {
    pub(super) fn new() -> Cells {
        Cells {
            size: SMALLEST,
            cells: BTreeMap::new(),
            current: Default::default(),
        }
    }

    /// Adds bytes of the heap; `resident` are the runs of them that are in memory.
    pub(super) fn add(
        &mut self,
        (start, end): (u64, u64),
        what: What,
        resident: impl Iterator<Item = Run>,
    ) {
        self.count(start, end, Role::All);
        let role = match what {
            what if what.is_live() => Role::Live,
            what if what.is_overhead() => Role::Own,
            _ => Role::Free,
        };
        resident.for_each(|run| self.count(run.start, run.end, role));
    }

    fn count(&mut self, start: u64, end: u64, role: Role) {
        let mut at = start;
        while at < end {
            let number = at / self.size;
            if number != self.current.0 {
                self.turn_to(number);
                // The cells may be larger now.
                continue;
            }
            let stop = number.saturating_add(1).saturating_mul(self.size).min(end);
            let cell = &mut self.current.1;
            *match role {
                Role::All => &mut cell.bytes,
                Role::Live => &mut cell.live,
                Role::Free => &mut cell.free,
                Role::Own => &mut cell.own,
            } += stop - at;
            at = stop;
        }
    }

    /// Keeps the current cell, and goes on with this one.
    fn turn_to(&mut self, number: u64) {
        let (last, cell) = std::mem::take(&mut self.current);
        if cell != Cell::default() {
            self.cells.insert(last, cell);
        }
        let mut number = number;
        while self.cells.len() > MOST {
            self.size *= 2;
            number /= 2;
            let mut larger: BTreeMap<u64, Cell> = BTreeMap::new();
            for (number, cell) in std::mem::take(&mut self.cells) {
                larger.entry(number / 2).or_default().add(cell);
            }
            self.cells = larger;
        }
        let cell = self.cells.remove(&number).unwrap_or_default();
        self.current = (number, cell);
    }

    /// The map of what was added.
    pub(super) fn map(&mut self) -> AddressMap {
        self.turn_to(u64::MAX);
        let mut ranges: Vec<MapRange> = Vec::new();
        let mut next = None;
        for (&number, &cell) in &self.cells {
            if next != Some(number) {
                ranges.push(MapRange {
                    start: number * self.size,
                    cells: Vec::new(),
                });
            }
            if let Some(range) = ranges.last_mut() {
                range.cells.push(cell);
            }
            next = Some(number + 1);
        }
        AddressMap {
            cell: self.size,
            ranges,
        }
    }
}

impl Cell {
    fn add(&mut self, other: Cell) {
        self.bytes += other.bytes;
        self.live += other.live;
        self.free += other.free;
        self.own += other.own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> Run {
        Run {
            start,
            end,
            resident: true,
        }
    }

    #[test]
    fn cells_say_what_is_where() {
        let mut cells = Cells::new();
        // Two pages of a chunk, of which the first is resident; a free chunk; far away a header.
        cells.add((4096, 12288), What::Live, [run(4096, 8192)].into_iter());
        cells.add((12288, 13288), What::Small, [run(12288, 13288)].into_iter());
        cells.add(
            (1 << 30, (1 << 30) + 16),
            What::Overhead,
            [run(1 << 30, (1 << 30) + 16)].into_iter(),
        );
        // Python's arenas come last, wherever they are.
        cells.add(
            (13288, 16384),
            What::PythonLive,
            [run(13288, 16384)].into_iter(),
        );
        let map = cells.map();
        let cell = |bytes, live, free, own| Cell {
            bytes,
            live,
            free,
            own,
        };
        assert_eq!(map.cell, 4096);
        assert_eq!(
            map.ranges[0],
            MapRange {
                start: 4096,
                cells: vec![
                    cell(4096, 4096, 0, 0),
                    cell(4096, 0, 0, 0),
                    cell(4096, 3096, 1000, 0)
                ]
            }
        );
        assert_eq!(map.ranges[1].start, 1 << 30);
        assert_eq!(map.ranges[1].cells, [cell(16, 0, 0, 16)]);
    }

    /// A heap of any size has few cells, at once, and nothing of it is lost.
    #[test]
    fn cells_grow_with_the_heap() {
        let mut cells = Cells::new();
        cells.add((1 << 20, 1 << 45), What::Live, std::iter::empty());
        let chunks = (0..100_000u64).map(|n| (1 << 46) + n * 100_000);
        for at in chunks {
            cells.add((at, at + 50), What::Small, [run(at, at + 50)].into_iter());
        }
        cells.add((u64::MAX - 10, u64::MAX), What::Top, std::iter::empty());
        let map = cells.map();
        let all: Vec<Cell> = map.ranges.iter().flat_map(|r| r.cells.clone()).collect();
        assert!(all.len() <= MOST + 1, "{}", all.len());
        let bytes: u64 = all.iter().map(|cell| cell.bytes).sum();
        assert_eq!(bytes, (1 << 45) - (1 << 20) + 100_000 * 50 + 10);
        let free: u64 = all.iter().map(|cell| cell.free).sum();
        assert_eq!(free, 100_000 * 50);
    }
}
