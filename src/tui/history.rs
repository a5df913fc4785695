//! Resident memory over the latest reports, for the curve.

use std::collections::VecDeque;

/// Reports that are kept.
const MOST: usize = 600;

/// Resident bytes of the latest reports, the newest last.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    pub(super) fn push(&mut self, resident: u64) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(resident);
    }

    /// The newest ones, at most so many, the newest first.
    pub(super) fn newest(&self, most: usize) -> impl ExactSizeIterator<Item = u64> + Clone {
        self.0.iter().rev().take(most).copied()
    }
}
