//! Whether the target stood still for a report.

use std::time::Duration;

/// Whether the target of a report stood still for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// It ran: the kernel's figures before and after are the bracket around the total.
    #[default]
    Ran,
    /// It stood still for so long, all of it at once.
    Still(Duration),
    /// Each process stood still for its own scan, one after the other.
    InTurn {
        /// The longest that one of them did.
        longest: Duration,
        /// All of them together.
        sum: Duration,
    },
    /// It was to stand still, but ran.
    Failed {
        /// Why.
        why: String,
        /// For how long it was tried: it stood still then.
        stood: Duration,
    },
}

impl Hold {
    /// How long the target stood still; of several processes that did in turn, the longest.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            Hold::Still(lasted) => Some(*lasted),
            Hold::InTurn { longest, .. } => Some(*longest),
            Hold::Ran | Hold::Failed { .. } => None,
        }
    }

    /// How long any of it stood still for this report, in vain included.
    pub fn cost(&self) -> Duration {
        match self {
            Hold::Ran => Duration::ZERO,
            Hold::Still(time) | Hold::InTurn { sum: time, .. } => *time,
            Hold::Failed { stood, .. } => *stood,
        }
    }

    /// Whether several processes stood still one after the other.
    pub fn in_turn(&self) -> bool {
        matches!(self, Hold::InTurn { .. })
    }

    /// Why the target ran, although it was to stand still.
    pub fn failed(&self) -> Option<&str> {
        match self {
            Hold::Failed { why, .. } => Some(why),
            Hold::Ran | Hold::Still(_) | Hold::InTurn { .. } => None,
        }
    }
}
