//! Processes that have ended.

use std::time::SystemTime;

use super::Amounts;
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Followed processes that have ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The newest ended processes that had been scanned, in the order in which they ended.
    pub processes: Vec<EndedProcess>,
    /// Number of processes that ended without a scan since memprof began. Their memory is unknown.
    pub unscanned: u64,
}

impl Ended {
    /// Maximum number of processes.
    pub const MAX_PROCESSES: usize = 1024;
}

/// A followed process that has ended, with its last figures.
#[derive(Clone, Debug)]
pub struct EndedProcess {
    /// The process id, which may have been reused since.
    pub pid: Pid,
    /// The process name.
    pub comm: String,
    /// The container; `None` if unknown.
    pub container: Option<Container>,
    /// The memory of the process at its last scan.
    pub total: Amounts,
    /// Time of the last scan.
    pub scanned: SystemTime,
    /// Time at which the process had ended, accurate to a few milliseconds.
    pub ended: SystemTime,
}
