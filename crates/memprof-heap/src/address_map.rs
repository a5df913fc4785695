//! The heap by address: how much of each address range is live, free or not resident.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::memory::Run;
use super::report::HeapRegion;

/// Maximum number of cells. Beyond it, the cell size is doubled.
const MAX_CELLS: usize = 2048;
/// Initial size of a cell, in bytes.
const SMALLEST: u64 = 4096;

/// Heap bytes in one cell. Bytes that are neither live, free nor overhead are not resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// All heap bytes, resident or not.
    pub bytes: u64,
    /// Resident contents of chunks in use.
    pub live: u64,
    /// Resident free bytes.
    pub free: u64,
    /// Resident bytes of the allocator's own structures.
    pub own: u64,
}

/// Serialized as the array `[bytes, live, free, own]`, because a map has many cells.
impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        [self.bytes, self.live, self.free, self.own].serialize(to)
    }
}

/// A run of adjacent cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapMapRange", extend("additionalProperties" = false))]
pub struct MapRange {
    /// Address of the first cell.
    pub start: u64,
    /// The cells, in address order. Each is `[bytes, live, free, own]`: the heap bytes in the cell, and of these the
    /// resident ones that are live, free and the allocator's own. The rest is not resident.
    #[schemars(with = "Vec<[u64; 4]>")]
    pub cells: Vec<Cell>,
}

/// The address ranges that contain heap memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "HeapMap", extend("additionalProperties" = false))]
pub struct AddressMap {
    /// Size of a cell, in bytes.
    pub cell: u64,
    /// The ranges, in address order.
    pub ranges: Vec<MapRange>,
}

/// Adds up the heap's bytes by cell.
#[derive(Debug)]
pub(super) struct Cells {
    size: u64,
    /// Keyed by cell number: address divided by `size`.
    cells: BTreeMap<u64, Cell>,
    /// The cell being added to. Chunks arrive in address order, so it rarely changes.
    current: (u64, Cell),
}

/// The field of a cell that bytes are added to.
#[derive(Clone, Copy, Debug)]
enum CellField {
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

    /// Adds heap bytes of one kind; `resident` yields their resident runs.
    pub(super) fn add(
        &mut self,
        (start, end): (u64, u64),
        what: HeapRegion,
        resident: impl Iterator<Item = Run>,
    ) {
        self.count(start, end, CellField::All);
        let role = match what {
            what if what.is_live() => CellField::Live,
            what if what.is_overhead() => CellField::Own,
            _ => CellField::Free,
        };
        resident.for_each(|run| self.count(run.start, run.end, role));
    }

    fn count(&mut self, start: u64, end: u64, role: CellField) {
        let mut at = start;
        while at < end {
            let number = at / self.size;
            if number != self.current.0 {
                self.turn_to(number);
                // The cell size may have doubled, which changes the number.
                continue;
            }
            let stop = number.saturating_add(1).saturating_mul(self.size).min(end);
            let cell = &mut self.current.1;
            *match role {
                CellField::All => &mut cell.bytes,
                CellField::Live => &mut cell.live,
                CellField::Free => &mut cell.free,
                CellField::Own => &mut cell.own,
            } += stop - at;
            at = stop;
        }
    }

    /// Stores the current cell and makes the cell `number` current. Doubles the cell size while there are too many
    /// cells.
    fn turn_to(&mut self, number: u64) {
        let (last, cell) = std::mem::take(&mut self.current);
        if cell != Cell::default() {
            self.cells.insert(last, cell);
        }
        let mut number = number;
        while self.cells.len() > MAX_CELLS {
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

    /// Returns the map of all bytes added so far.
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
        // Two pages of a chunk, of which the first is resident; a free chunk; a header far away.
        cells.add(
            (4096, 12288),
            HeapRegion::Live,
            [run(4096, 8192)].into_iter(),
        );
        cells.add(
            (12288, 13288),
            HeapRegion::Small,
            [run(12288, 13288)].into_iter(),
        );
        cells.add(
            (1 << 30, (1 << 30) + 16),
            HeapRegion::Overhead,
            [run(1 << 30, (1 << 30) + 16)].into_iter(),
        );
        // Python's arenas are added last, whatever their addresses.
        cells.add(
            (13288, 16384),
            HeapRegion::PythonLive,
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

    /// The number of cells is bounded for a heap of any size, and no byte is lost.
    #[test]
    fn cells_grow_with_the_heap() {
        let mut cells = Cells::new();
        cells.add((1 << 20, 1 << 45), HeapRegion::Live, std::iter::empty());
        let chunks = (0..100_000u64).map(|n| (1 << 46) + n * 100_000);
        for at in chunks {
            cells.add(
                (at, at + 50),
                HeapRegion::Small,
                [run(at, at + 50)].into_iter(),
            );
        }
        cells.add(
            (u64::MAX - 10, u64::MAX),
            HeapRegion::Top,
            std::iter::empty(),
        );
        let map = cells.map();
        let all: Vec<Cell> = map.ranges.iter().flat_map(|r| r.cells.clone()).collect();
        assert!(all.len() <= MAX_CELLS + 1, "{}", all.len());
        let bytes: u64 = all.iter().map(|cell| cell.bytes).sum();
        assert_eq!(bytes, (1 << 45) - (1 << 20) + 100_000 * 50 + 10);
        let free: u64 = all.iter().map(|cell| cell.free).sum();
        assert_eq!(free, 100_000 * 50);
    }
}
