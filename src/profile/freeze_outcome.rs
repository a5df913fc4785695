//! Whether the target stood still for a report.

use std::time::Duration;

/// Whether the target of a report stood still for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FreezeOutcome {
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

impl FreezeOutcome {
    /// How long the target stood still; of several processes that did in turn, the longest.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            FreezeOutcome::Still(lasted) => Some(*lasted),
            FreezeOutcome::InTurn { longest, .. } => Some(*longest),
            FreezeOutcome::Ran | FreezeOutcome::Failed { .. } => None,
        }
    }

    /// How long any of it stood still for this report, in vain included.
    pub fn cost(&self) -> Duration {
        match self {
            FreezeOutcome::Ran => Duration::ZERO,
            FreezeOutcome::Still(time) | FreezeOutcome::InTurn { sum: time, .. } => *time,
            FreezeOutcome::Failed { stood, .. } => *stood,
        }
    }

    /// Whether several processes stood still one after the other.
    pub fn in_turn(&self) -> bool {
        matches!(self, FreezeOutcome::InTurn { .. })
    }

    /// Why the target ran, although it was to stand still.
    pub fn failed(&self) -> Option<&str> {
        match self {
            FreezeOutcome::Failed { why, .. } => Some(why),
            FreezeOutcome::Ran | FreezeOutcome::Still(_) | FreezeOutcome::InTurn { .. } => None,
        }
    }
}
