//! Sets and maps of half-open ranges of addresses, bounded in size.

mod map;
mod set;

pub use map::RangeMap;
pub use set::RangeSet;

use std::fmt;

/// The limit on ranges was reached: what did not fit is forgotten, never kept wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Ranges that this call forgot.
    pub dropped: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the table of address ranges is full, {} forgotten",
            self.dropped
        )
    }
}

impl std::error::Error for Full {}

#[cfg(test)]
mod tests;
