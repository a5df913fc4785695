//! The resident pages of a heap, for lookups of the stacks that brought them in.

use super::memory::{Run, overlapping};
use memprof_sys::ids::Addr;
use memprof_sys::residency::{PageKind, PageRun, Vma, page_size};

/// The resident pages of a heap at the moment of its snapshot.
#[derive(Clone, Debug, Default)]
pub struct HeapPages {
    /// The process's mappings, by address.
    pub vmas: Vec<Vma>,
    /// The pages, by address, each run with the index of its mapping.
    pub runs: Vec<(usize, PageRun)>,
    /// Resident bytes of the heap on pages that it shares with other memory: where it does not begin or end on a page
    /// boundary.
    pub(crate) shared: u64,
    /// The process's resident pages that contain only zeroes, in the heap or not.
    pub(crate) zero: Vec<Run>,
}

impl HeapPages {
    /// Selects the pages of these ranges. `pages` are the resident runs of the process. All are in address order.
    pub(super) fn select(vmas: Vec<Vma>, pages: &[Run], ranges: &[Run]) -> HeapPages {
        let page = page_size();
        let (mut runs, mut shared) = (Vec::new(), 0);
        for (index, vma) in vmas.iter().enumerate() {
            for range in overlapping(ranges, vma.start.0, vma.end.0) {
                for run in overlapping(pages, range.start, range.end) {
                    let (start, end) = (run.start.next_multiple_of(page), run.end / page * page);
                    let whole = end.saturating_sub(start);
                    shared += run.len() - whole;
                    if whole > 0 {
                        runs.push((index, anonymous(start, end)));
                    }
                }
            }
        }
        HeapPages {
            vmas,
            runs,
            shared,
            zero: Vec::new(),
        }
    }

    /// Restricts to these runs.
    pub fn only(&self, runs: impl Iterator<Item = Run>) -> HeapPages {
        let runs: Vec<Run> = runs.collect();
        HeapPages::select(self.vmas.clone(), &runs, &runs)
    }

    /// The process's resident pages that contain only zeroes.
    pub fn only_zeroes(&self) -> HeapPages {
        self.only(self.zero.iter().copied())
    }

    /// Resident bytes of the heap on pages that it shares with other memory.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// All resident bytes of the heap.
    pub fn bytes(&self) -> u64 {
        let whole: u64 = self.runs.iter().map(|(_, run)| run.len()).sum();
        whole + self.shared
    }
}

fn anonymous(start: u64, end: u64) -> PageRun {
    PageRun {
        start: Addr(start),
        end: Addr(end),
        kind: PageKind::Anon,
        huge: false,
        maps: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_sys::residency::proc_maps;

    #[test]
    fn each_byte_is_on_a_page_or_shared() {
        let page = page_size();
        let maps = b"10000000-10100000 rw-p 00000000 00:00 0 [heap]\n20000000-20100000 rw-p 00000000 00:00 0\n";
        let vmas = proc_maps::parse(maps).unwrap();
        let run = |start, end| Run {
            start,
            end,
            resident: true,
        };
        let pages = [
            run(0x1000_0000, 0x1000_0000 + 3 * page),
            run(0x2000_0000, 0x2000_0000 + 9 * page),
        ];
        // The heap begins in the middle of a page, and has a hole.
        let ranges = [
            run(0x1000_0000 + 100, 0x1010_0000),
            run(0x2000_0000 + page, 0x2000_0000 + 3 * page),
        ];
        let found = HeapPages::select(vmas, &pages, &ranges);
        let starts: Vec<_> = found
            .runs
            .iter()
            .map(|(vma, run)| (*vma, run.start.0, run.len()))
            .collect();
        assert_eq!(
            starts,
            [
                (0, 0x1000_0000 + page, 2 * page),
                (1, 0x2000_0000 + page, 2 * page)
            ]
        );
        assert_eq!(found.shared, page - 100);
        assert_eq!(found.bytes(), 5 * page - 100);
    }
}
