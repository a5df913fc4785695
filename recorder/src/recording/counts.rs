//! Numbers of connections.

/// Numbers of connections that a worker has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of a node that are followed now.
    pub open: u64,
    /// Connections that turned out to be none of a node's, or cannot be recorded.
    pub ignored: u64,
    /// Connections that were given up because there were too many.
    pub given_up: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            open: self.open + other.open,
            ignored: self.ignored + other.ignored,
            given_up: self.given_up + other.given_up,
        }
    }
}
