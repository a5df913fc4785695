//! Sums the bytes of pymalloc's arenas by kind.

use super::super::address_map::Cells;
use super::super::memory::{Run, overlapping};
use super::super::report::HeapRegion;
use super::super::zero_pages::ZeroRuns;
use super::{FREE, POOL_HEADER, PythonMemory};

/// Number of blocks or pools, bytes, and resident bytes.
type Sums = (u64, u64, u64);

impl PythonMemory {
    /// The rows of all arenas. Adds them to `cells` as well. `pages` are the resident runs of the process, by
    /// address.
    pub(crate) fn rows(&self, pages: &[Run], cells: &mut Cells) -> [(HeapRegion, Sums); 4] {
        rows(self, pages, cells)
    }

    /// Adds all bytes to the uses of pages of zeroes.
    pub(crate) fn add_zeroes(&self, zero: &mut ZeroRuns) {
        self.for_each_part(|part| zero.add((part.start, part.end), part.what));
    }
}

fn rows(pymalloc: &PythonMemory, pages: &[Run], cells: &mut Cells) -> [(HeapRegion, Sums); 4] {
    let mut rows = Rows {
        pages,
        cells,
        sums: PARTS.map(|what| (what, Sums::default())),
    };
    pymalloc.for_each_part(|part| rows.add(&part));
    rows.sums
}

/// The kinds of parts.
const PARTS: [HeapRegion; 4] = [
    HeapRegion::PythonLive,
    HeapRegion::PythonFree,
    HeapRegion::PythonPools,
    HeapRegion::PythonOverhead,
];

/// Adjacent blocks, pools or other bytes of an arena that are alike.
pub(super) struct Part {
    pub what: HeapRegion,
    /// Number of blocks or pools.
    pub number: u64,
    pub start: u64,
    pub end: u64,
    /// Size of the blocks, in bytes; 0 if there are none.
    pub block: u64,
}

impl PythonMemory {
    /// Visits all bytes of all arenas, in address order.
    pub(super) fn for_each_part(&self, mut visit: impl FnMut(Part)) {
        let mut part = |what, number, start, end, block| {
            visit(Part {
                what,
                number,
                start,
                end,
                block,
            });
        };
        let [live, free, pools, overhead] = PARTS;
        let mut all = self.pools.iter().peekable();
        for arena in &self.arenas {
            part(overhead, 0, arena.start, arena.pools, 0);
            while let Some(pool) = all.next_if(|pool| pool.at < arena.end) {
                let end = pool.at + self.pool_size;
                if pool.block == 0 {
                    part(pools, 1, pool.at, end, 0);
                    continue;
                }
                let mut at = pool.at + POOL_HEADER;
                part(overhead, 0, pool.at, at, 0);
                let blocks = &self.blocks[pool.first..pool.first + pool.count];
                for alike in blocks.chunk_by(|a, b| (*a == FREE) == (*b == FREE)) {
                    let to = at + alike.len() as u64 * pool.block;
                    let what = if alike[0] == FREE { free } else { live };
                    part(what, alike.len() as u64, at, to, pool.block);
                    at = to;
                }
                part(overhead, 0, at, end, 0);
            }
            let end = arena.pools + arena.count * self.pool_size;
            let unused = (end - arena.unused) / self.pool_size;
            part(pools, unused, arena.unused, end, 0);
            part(overhead, 0, end, arena.end, 0);
        }
    }
}

struct Rows<'a> {
    /// The resident runs from the current address on.
    pages: &'a [Run],
    cells: &'a mut Cells,
    sums: [(HeapRegion, Sums); 4],
}

impl Rows<'_> {
    /// Adds bytes. Addresses must ascend.
    fn add(&mut self, part: &Part) {
        let (start, end) = (part.start, part.end);
        let behind = self.pages.iter().take_while(|run| run.end <= start).count();
        self.pages = &self.pages[behind..];
        let resident: u64 = overlapping(self.pages, start, end)
            .map(|run| run.len())
            .sum();
        let runs = overlapping(self.pages, start, end);
        self.cells.add((start, end), part.what, runs);
        for (_, sums) in self.sums.iter_mut().filter(|(what, _)| *what == part.what) {
            sums.0 += part.number;
            sums.1 += end - start;
            sums.2 += resident;
        }
    }
}
