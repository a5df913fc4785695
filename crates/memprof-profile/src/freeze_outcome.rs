//! Whether the target was frozen for a report.

use std::time::Duration;

/// Whether the target was frozen for a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FreezeOutcome {
    /// The target was running. The kernel's figures before and after only bound the total.
    #[default]
    Ran,
    /// All processes were frozen at the same time, for this duration.
    Still(Duration),
    /// Each process was frozen during its own scan, one process after the other.
    InTurn {
        /// The longest freeze of one process.
        longest: Duration,
        /// The sum over all processes.
        sum: Duration,
    },
    /// Freezing was requested but failed. The target was running during the scan.
    Failed {
        /// The error.
        why: String,
        /// Duration of the attempt, during which the target was frozen.
        stood: Duration,
    },
}

impl FreezeOutcome {
    /// Duration of the freeze; for processes frozen in turn, the longest freeze of one process.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            FreezeOutcome::Still(lasted) => Some(*lasted),
            FreezeOutcome::InTurn { longest, .. } => Some(*longest),
            FreezeOutcome::Ran | FreezeOutcome::Failed { .. } => None,
        }
    }

    /// Total duration for which processes were frozen for this report, including failed attempts.
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

    /// The error if freezing failed.
    pub fn failed(&self) -> Option<&str> {
        match self {
            FreezeOutcome::Failed { why, .. } => Some(why),
            FreezeOutcome::Ran | FreezeOutcome::Still(_) | FreezeOutcome::InTurn { .. } => None,
        }
    }
}
