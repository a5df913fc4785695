//! Resident memory in the latest reports, for the curve.

use std::collections::VecDeque;

/// Maximum number of values.
const MAX_VALUES: usize = 600;

/// Resident bytes of the latest reports, oldest first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    pub(super) fn push(&mut self, resident: u64) {
        if self.0.len() == MAX_VALUES {
            self.0.pop_front();
        }
        self.0.push_back(resident);
    }

    /// The newest values, at most `most`, newest first.
    pub(super) fn newest(&self, most: usize) -> impl ExactSizeIterator<Item = u64> + Clone {
        self.0.iter().rev().take(most).copied()
    }
}
