//! Sums what pymalloc's blocks hold, for the join with samples.

use super::super::by_stack::{Holdings, Owner, RangeUse};
use super::super::chunks::ChunkKind;
use super::super::memory::{Run, overlapping};
use super::super::report::HeapRegion;
use super::PythonMemory;

impl PythonMemory {
    /// Adds all bytes of all arenas to `holdings`. `pages` are the resident runs of the process, by address.
    pub(crate) fn hold(&self, pages: &[Run], holdings: &mut Holdings) {
        let mut pages = pages;
        self.for_each_part(|part| {
            let behind = pages.iter().take_while(|run| run.end <= part.start).count();
            pages = &pages[behind..];
            let add = |holdings: &mut Holdings, start: u64, end: u64, how| {
                for run in overlapping(pages, start, end) {
                    holdings.add(run.start, run.end, how);
                }
            };
            match part.what {
                HeapRegion::PythonLive => {
                    for number in 0..part.number {
                        let start = part.start + number * part.block;
                        let end = start + part.block;
                        holdings.begin(
                            Owner::Python,
                            ChunkKind::Live,
                            part.block,
                            start,
                            part.block,
                        );
                        add(holdings, start, end, RangeUse::Object);
                        holdings.end();
                    }
                }
                HeapRegion::PythonOverhead => add(holdings, part.start, part.end, RangeUse::Own),
                _ => add(holdings, part.start, part.end, RangeUse::Free),
            }
        });
        holdings.finish();
    }
}
