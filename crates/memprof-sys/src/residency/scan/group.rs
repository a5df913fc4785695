//! Scans neighbouring mappings as one range and splits the runs by mapping: with ten thousand mappings, one system call for each
//! would take longer than reading their pages.

use crate::residency::page::PageRun;
use crate::residency::policy::Policy;
use crate::residency::vma::Vma;

/// The number of mappings, starting with the first, that can be scanned as one range: they have the same policy, are in order with
/// gaps of at most `gap` bytes, and none of them is `alone`.
pub(super) fn together(vmas: &[Vma], gap: u64, alone: impl Fn(&Vma) -> bool) -> usize {
    let joined = |pair: &&[Vma]| {
        let [a, b] = pair else { return false };
        let near = b.start.0.checked_sub(a.end.0).is_some_and(|g| g <= gap);
        near && Policy::for_mapping(a) == Policy::for_mapping(b) && !alone(a) && !alone(b)
    };
    let rest = vmas.windows(2).take_while(joined).count();
    (rest + 1).min(vmas.len())
}

/// Splits runs, which arrive in address order, at the ends of mappings. Pages outside all mappings (mapped after the mappings were
/// read) are dropped.
pub(super) struct Cut<'v, F> {
    vmas: &'v [Vma],
    at: usize,
    first: usize,
    found: F,
}

impl<'v, F: FnMut(usize, PageRun)> Cut<'v, F> {
    /// Reports the runs in these mappings with the index of each mapping, counted from `first`.
    pub(super) fn new(vmas: &'v [Vma], first: usize, found: F) -> Cut<'v, F> {
        Cut {
            vmas,
            at: 0,
            first,
            found,
        }
    }

    pub(super) fn push(&mut self, mut run: PageRun) {
        let whole_end = run.end;
        while let Some(vma) = self.vmas.get(self.at) {
            run.start = run.start.max(vma.start);
            run.end = whole_end.min(vma.end);
            if run.start < run.end {
                (self.found)(self.first + self.at, run);
                run.start = run.end;
            }
            if vma.end > whole_end {
                return;
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Addr;
    use crate::residency::page::PageKind;
    use crate::residency::proc_maps;

    fn vmas(text: &[&str]) -> Vec<Vma> {
        proc_maps::parse(text.join("\n").as_bytes()).unwrap()
    }

    #[test]
    fn alike_and_near_ones_go_together() {
        let all = vmas(&[
            "1000-2000 rw-p 00000000 00:00 0 ",
            "2000-3000 r--p 00000000 00:00 0 ",
            "5000-6000 rw-p 00000000 00:00 0 ",
            "9000-a000 rw-p 00000000 00:00 0 ",
            "a000-b000 rw-p 00000000 08:01 7 /f",
            "c000-d000 rw-p 00000000 00:00 0 ",
            "b000-c000 rw-p 00000000 00:00 0 ",
        ]);
        let from = |i: usize| together(&all[i..], 0x2000, |v| v.start == Addr(0x1));
        assert_eq!(from(0), 3, "up to the large gap");
        assert_eq!(from(3), 1, "a file is not alike");
        assert_eq!((from(5), from(6)), (1, 1), "out of order");
        assert_eq!(together(&all, 0x2000, |v| v.start == Addr(0x2000)), 1);
        assert_eq!(together(&[], 0x2000, |_| false), 0);
    }

    #[test]
    fn runs_are_cut_at_the_mappings_and_gaps_left_out() {
        let all = vmas(&[
            "1000-2000 rw-p 00000000 00:00 0 ",
            "2000-4000 r--p 00000000 00:00 0 ",
            "6000-8000 rw-p 00000000 00:00 0 ",
        ]);
        let mut got = Vec::new();
        let mut cut = Cut::new(&all, 10, |i, r: PageRun| got.push((i, r.start.0, r.end.0)));
        for (start, end) in [
            (0, 0x3000),
            (0x3000, 0x5000),
            (0x5000, 0x6000),
            (0x6000, 0x7000),
            (0x7000, 0x9000),
            (0x9000, 0xa000),
        ] {
            cut.push(PageRun {
                start: Addr(start),
                end: Addr(end),
                kind: PageKind::Anon,
                huge: false,
                maps: None,
            });
        }
        assert_eq!(
            got,
            [
                (10, 0x1000, 0x2000),
                (11, 0x2000, 0x3000),
                (11, 0x3000, 0x4000),
                (12, 0x6000, 0x7000),
                (12, 0x7000, 0x8000)
            ]
        );
    }
}
