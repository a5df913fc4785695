//! Sets and maps of half-open ranges of addresses, bounded in size.

mod map;
mod set;

pub use map::RangeMap;
pub use set::RangeSet;

/// The limit on ranges was reached. Ranges that did not fit are dropped; the ranges kept are correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table of address ranges is full; {dropped} ranges were dropped")]
pub struct Full {
    /// Ranges that this call dropped.
    pub dropped: u64,
}

#[cfg(test)]
mod tests;
