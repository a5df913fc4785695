//! Whether the target was frozen for a report.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::saved::nanos;

/// Whether the target was frozen for a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum FreezeOutcome {
    /// The target was running. The kernel's figures before and after only bound the total.
    #[default]
    Ran,
    /// All processes were frozen at the same time.
    Still {
        /// Duration of the freeze.
        #[serde(rename = "lastedNs", with = "nanos")]
        lasted: Duration,
    },
    /// Each process was frozen during its own scan, one process after the other.
    #[serde(rename = "in turn")]
    InTurn {
        /// The longest freeze of one process.
        #[serde(rename = "longestNs", with = "nanos")]
        longest: Duration,
        /// The sum over all processes.
        #[serde(rename = "sumNs", with = "nanos")]
        sum: Duration,
    },
    /// Freezing was requested but failed. The target was running during the scan.
    Failed {
        /// The error.
        why: String,
        /// Duration of the attempt, during which the target was frozen.
        #[serde(rename = "stoodNs", with = "nanos")]
        stood: Duration,
    },
}

impl FreezeOutcome {
    /// Duration of the freeze; for processes frozen in turn, the longest freeze of one process.
    pub fn lasted(&self) -> Option<Duration> {
        match self {
            FreezeOutcome::Still { lasted }
            | FreezeOutcome::InTurn {
                longest: lasted, ..
            } => Some(*lasted),
            FreezeOutcome::Ran | FreezeOutcome::Failed { .. } => None,
        }
    }

    /// Total duration for which processes were frozen for this report, including failed attempts.
    pub fn cost(&self) -> Duration {
        match self {
            FreezeOutcome::Ran => Duration::ZERO,
            FreezeOutcome::Still { lasted: time } | FreezeOutcome::InTurn { sum: time, .. } => {
                *time
            }
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
            FreezeOutcome::Ran | FreezeOutcome::Still { .. } | FreezeOutcome::InTurn { .. } => None,
        }
    }
}
