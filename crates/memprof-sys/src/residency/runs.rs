//! Joins neighbouring pages of one kind into runs.

use super::page::{PageKind, PageRun};
use crate::ids::Addr;

/// Joins pushed ranges and reports a run when it ends, at [`Runs::flush`], or on drop.
pub(super) struct Runs<F: FnMut(PageRun)> {
    found: F,
    current: Option<PageRun>,
}

impl<F: FnMut(PageRun)> Runs<F> {
    pub(super) fn new(found: F) -> Runs<F> {
        Runs {
            found,
            current: None,
        }
    }

    /// Adds the addresses `start..end`, which must not lie before the range added last.
    pub(super) fn push(&mut self, (start, end): (u64, u64), kind: PageKind, huge: bool) {
        if let Some(run) = &mut self.current
            && run.end.0 == start
            && run.kind == kind
            && run.huge == huge
        {
            run.end = Addr(end);
            return;
        }
        self.flush();
        self.current = Some(PageRun {
            start: Addr(start),
            end: Addr(end),
            kind,
            huge,
            maps: None,
        });
    }

    /// Reports the pending run.
    pub(super) fn flush(&mut self) {
        if let Some(run) = self.current.take() {
            (self.found)(run);
        }
    }
}

impl<F: FnMut(PageRun)> Drop for Runs<F> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        let mut seen = Vec::new();
        let mut runs = Runs::new(|r: PageRun| seen.push((r.start.0, r.end.0, r.kind, r.huge)));
        runs.push((1, 2), PageKind::Anon, false);
        runs.push((2, 3), PageKind::Anon, false);
        runs.push((3, 4), PageKind::Swap, false);
        runs.push((5, 6), PageKind::Swap, false);
        runs.push((6, 7), PageKind::Swap, true);
        drop(runs);
        let expected = [
            (1, 3, PageKind::Anon, false),
            (3, 4, PageKind::Swap, false),
            (5, 6, PageKind::Swap, false),
            (6, 7, PageKind::Swap, true),
        ];
        assert_eq!(seen, expected);
    }
}
