//! Cache of replies for the newest report; each reply is built once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use super::reply_builder::NamedReply;

/// Maximum number of cached replies: enough for a few clients with different requests. The oldest is evicted first.
const KEPT: usize = 16;

pub(super) type Cell = Arc<OnceCell<NamedReply>>;

/// Cells for replies of the newest report. The lock is taken only to find a cell, not while the cell is filled.
#[derive(Debug)]
pub(super) struct Cache {
    entries: Mutex<Entries>,
    budget: usize,
}

#[derive(Debug, Default)]
struct Entries {
    sequence: u64,
    cells: VecDeque<(String, Cell)>,
}

impl Cache {
    /// A cache of at most `budget` bytes, enforced by `trim`.
    pub(super) fn new(budget: usize) -> Cache {
        Cache {
            entries: Mutex::default(),
            budget,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts the oldest replies until the rest fits the budget.
    pub(super) fn trim(&self) {
        self.lock().trim(self.budget);
    }

    /// Evicts all finished replies. Replies under construction stay shared.
    pub(super) fn clear(&self) {
        self.lock().trim(0);
    }

    /// The cell shared by equal requests for the same report. A report older than the newest one gets a new, uncached
    /// cell.
    pub(super) fn cell(&self, sequence: u64, request: &str) -> Cell {
        let mut entries = self.lock();
        if sequence < entries.sequence {
            return Cell::default();
        }
        if sequence > entries.sequence {
            entries.cells.clear();
            entries.sequence = sequence;
        }
        if let Some((_, cell)) = entries.cells.iter().find(|(r, _)| r == request) {
            return Arc::clone(cell);
        }
        entries.trim(self.budget);
        if entries.cells.len() == KEPT {
            entries.cells.pop_front();
        }
        let cell = Cell::default();
        entries
            .cells
            .push_back((request.to_owned(), Arc::clone(&cell)));
        cell
    }
}

impl Entries {
    fn trim(&mut self, budget: usize) {
        let size = |(_, cell): &(String, Cell)| cell.get().map_or(0, |(body, _)| body.len());
        let mut kept: usize = self.cells.iter().map(size).sum();
        while kept > budget
            && let Some(oldest) = self.cells.iter().position(|cell| size(cell) > 0)
        {
            kept -= self.cells.remove(oldest).map_or(0, |cell| size(&cell));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_shared_and_bounded() {
        let cache = Cache::new(100);
        let ask = |threshold: u64| threshold.to_string();
        let first = cache.cell(1, &ask(0));
        assert!(Arc::ptr_eq(&first, &cache.cell(1, &ask(0))));
        assert!(!Arc::ptr_eq(&first, &cache.cell(1, "short")));
        for threshold in 1..100 {
            cache.cell(1, &ask(threshold));
        }
        assert_eq!(cache.lock().cells.len(), KEPT);
        assert!(!Arc::ptr_eq(&first, &cache.cell(1, &ask(0))));
        let newer = cache.cell(2, &ask(0));
        assert!(!Arc::ptr_eq(&newer, &cache.cell(1, &ask(0))));
        assert!(Arc::ptr_eq(&newer, &cache.cell(2, &ask(0))));
    }

    #[test]
    fn bytes_are_bounded_and_what_is_being_made_stays() {
        let cache = Cache::new(100);
        let ask = |threshold: u64| threshold.to_string();
        let making = cache.cell(1, &ask(0));
        for threshold in 1..5 {
            let made = cache.cell(1, &ask(threshold));
            made.set((vec![0; 40].into(), None)).unwrap();
        }
        cache.trim();
        let kept: Vec<_> = cache.lock().cells.iter().map(|(r, _)| r.clone()).collect();
        assert_eq!(kept, [ask(0), ask(3), ask(4)]);
        assert!(Arc::ptr_eq(&making, &cache.cell(1, &ask(0))));
    }
}
