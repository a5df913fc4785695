//! The two ends of a connection.

use std::fmt;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The node that is recorded.
    Local,
    /// Its peer.
    Remote,
}

impl Side {
    /// Both ends.
    pub const BOTH: [Self; 2] = [Self::Local, Self::Remote];

    /// The opposite end.
    pub fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }

    /// The name of the direction in which this end sends, as seen by the node: `outgoing` or `incoming`.
    pub fn direction(self) -> &'static str {
        match self {
            Self::Local => "outgoing",
            Self::Remote => "incoming",
        }
    }
}

/// Writes `local` or `remote`.
impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Remote => "remote",
        })
    }
}

/// A value for each end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Both<T> {
    /// The value of the recorded node's end.
    pub local: T,
    /// The value of the peer's end.
    pub remote: T,
}

impl<T> Both<T> {
    /// The value of one end.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }

    /// The value of one end, to change it.
    pub fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Local => &mut self.local,
            Side::Remote => &mut self.remote,
        }
    }
}
