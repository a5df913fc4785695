//! Whether the target was frozen for a report.

use std::time::Duration;

/// Whether the target was frozen for a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FreezeOutcome {
    /// It was running: the total is only bounded by the kernel's figures before and after.
    #[default]
    Ran,
    /// All processes were frozen at the same time, for this long.
    Still(Duration),
    /// Each process was frozen during its own scan, one after the other.
    InTurn {
        /// The longest time that one process was frozen.
        longest: Duration,
        /// The sum over all processes.
        sum: Duration,
    },
    /// Freezing was requested but failed; the target was running.
    Failed {
        /// Why.
        why: String,
        /// Duration of the attempt; the target was frozen during it.
        stood: Duration,
    },
}

impl FreezeOutcome {
    /// How long the target was frozen; for processes frozen in turn, the longest time.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            FreezeOutcome::Still(lasted) => Some(*lasted),
            FreezeOutcome::InTurn { longest, .. } => Some(*longest),
            FreezeOutcome::Ran | FreezeOutcome::Failed { .. } => None,
        }
    }

    /// How long any process was frozen for this report, failed attempts included.
    pub fn cost(&self) -> Duration {
        match self {
            FreezeOutcome::Ran => Duration::ZERO,
            FreezeOutcome::Still(time) | FreezeOutcome::InTurn { sum: time, .. } => *time,
            FreezeOutcome::Failed { stood, .. } => *stood,
        }
    }

    /// Whether several processes were frozen one after the other.
    pub fn in_turn(&self) -> bool {
        matches!(self, FreezeOutcome::InTurn { .. })
    }

    /// Why freezing failed, if it did.
    pub fn failed(&self) -> Option<&str> {
        match self {
            FreezeOutcome::Failed { why, .. } => Some(why),
            FreezeOutcome::Ran | FreezeOutcome::Still(_) | FreezeOutcome::InTurn { .. } => None,
        }
    }
}
