//! Processes that have ended.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::saved::{bounded, unix_ms};
use super::{Amounts, Peak};
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Followed processes that have ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ended {
    /// The newest ended processes that had been scanned, in the order in which they ended.
    #[serde(deserialize_with = "bounded::<{ Ended::MAX_PROCESSES }, EndedProcess, _, _>")]
    pub processes: Vec<EndedProcess>,
    /// Number of processes that ended without a scan since memprof began. Their memory is unknown.
    pub unscanned: u64,
}

impl Ended {
    /// Maximum number of processes.
    pub const MAX_PROCESSES: usize = 1024;
}

/// A followed process that has ended, with its last figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndedProcess {
    /// The process id, which may have been reused since.
    pub pid: Pid,
    /// The process name.
    pub comm: String,
    /// The container; `None` if unknown.
    #[serde(rename = "place", skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// The memory of the process at its last scan.
    pub total: Amounts,
    /// Time of the last scan.
    #[serde(rename = "scannedUnixMs", with = "unix_ms")]
    pub scanned: SystemTime,
    /// The peak of the process; `None` in files of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// Time at which the process had ended, accurate to a few milliseconds.
    #[serde(rename = "endedUnixMs", with = "unix_ms")]
    pub ended: SystemTime,
}
