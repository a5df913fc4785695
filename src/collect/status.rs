//! The status of the target without a scan, and the reasons for a missing report.

use std::sync::Arc;
use std::time::Duration;

use memprof_profile::Profile;
use memprof_sys::ids::Pid;

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The target has not started yet.
    #[error("the target has not started yet")]
    NoTarget,
    /// The report failed, for this reason.
    #[error("{0}")]
    Failed(String),
}

/// The status of the target without a scan.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The followed processes; empty if they have ended.
    pub pids: Vec<Pid>,
    /// The newest scan.
    pub last: Option<LastScan>,
}

/// The newest scan.
#[derive(Clone, Debug)]
pub struct LastScan {
    /// The number of its report.
    pub sequence: u64,
    /// The profile from the scan.
    pub profile: Arc<Profile>,
    /// Duration of the scan.
    pub took: Duration,
    /// Whether no hook has seen a change of the target's memory since.
    pub current: bool,
}
