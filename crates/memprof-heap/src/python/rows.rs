//! Sums the bytes of pymalloc's arenas by kind.

use super::super::address_map::Cells;
use super::super::memory::{Run, overlapping};
use super::super::report::HeapRegion;
use super::{FREE, POOL_HEADER, Pymalloc};

/// Number of blocks or pools, bytes, and resident bytes.
type Sums = (u64, u64, u64);

impl Pymalloc {
    /// The rows of all arenas. Adds them to `cells` as well. `pages` are the resident runs of the process, by
    /// address.
    pub(crate) fn rows(&self, pages: &[Run], cells: &mut Cells) -> [(HeapRegion, Sums); 4] {
        rows(self, pages, cells)
    }
}

fn rows(pymalloc: &Pymalloc, pages: &[Run], cells: &mut Cells) -> [(HeapRegion, Sums); 4] {
    let mut rows = Rows {
        pages,
        cells,
        sums: [
            HeapRegion::PythonLive,
            HeapRegion::PythonFree,
            HeapRegion::PythonPools,
            HeapRegion::PythonOverhead,
        ]
        .map(|what| (what, Sums::default())),
    };
    let [live, free, pools, overhead] = [0, 1, 2, 3];
    let mut all = pymalloc.pools.iter().peekable();
    for arena in &pymalloc.arenas {
        rows.add(overhead, 0, arena.start, arena.pools);
        while let Some(pool) = all.next_if(|pool| pool.at < arena.end) {
            let end = pool.at + pymalloc.pool_size;
            if pool.block == 0 {
                rows.add(pools, 1, pool.at, end);
                continue;
            }
            let mut at = pool.at + POOL_HEADER;
            rows.add(overhead, 0, pool.at, at);
            let blocks = &pymalloc.blocks[pool.first..pool.first + pymalloc.capacity(pool)];
            for alike in blocks.chunk_by(|a, b| (*a == FREE) == (*b == FREE)) {
                let to = at + alike.len() as u64 * pool.block;
                let row = if alike[0] == FREE { free } else { live };
                rows.add(row, alike.len() as u64, at, to);
                at = to;
            }
            rows.add(overhead, 0, at, end);
        }
        let end = arena.pools + arena.count * pymalloc.pool_size;
        let unused = (end - arena.unused) / pymalloc.pool_size;
        rows.add(pools, unused, arena.unused, end);
        rows.add(overhead, 0, end, arena.end);
    }
    rows.sums
}

struct Rows<'a> {
    /// The resident runs from the current address on.
    pages: &'a [Run],
    cells: &'a mut Cells,
    sums: [(HeapRegion, Sums); 4],
}

impl Rows<'_> {
    /// Adds bytes. Addresses must ascend.
    fn add(&mut self, row: usize, number: u64, start: u64, end: u64) {
        let behind = self.pages.iter().take_while(|run| run.end <= start).count();
        self.pages = &self.pages[behind..];
        let resident: u64 = overlapping(self.pages, start, end)
            .map(|run| run.len())
            .sum();
        let (what, sums) = &mut self.sums[row];
        let runs = overlapping(self.pages, start, end);
        self.cells.add((start, end), *what, runs);
        sums.0 += number;
        sums.1 += end - start;
        sums.2 += resident;
    }
}
