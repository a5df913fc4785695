//! Processes that have ended.

use std::time::SystemTime;

use super::Amounts;
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Followed processes that have ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The newest of those that had been scanned, in the order of their ends.
    pub processes: Vec<EndedProcess>,
    /// How many ended without a scan since memprof began: what they held is not known.
    pub unscanned: u64,
}

impl Ended {
    /// Maximum number of processes.
    pub const MOST: usize = 1024;
}

/// A followed process that has ended, with its last figures.
#[derive(Clone, Debug)]
pub struct EndedProcess {
    /// Its process id, which another process may have by now.
    pub pid: Pid,
    /// Its name.
    pub comm: String,
    /// Where it ran; `None` if that is not known.
    pub container: Option<Container>,
    /// What it held at its last scan.
    pub total: Amounts,
    /// When that was.
    pub scanned: SystemTime,
    /// When it had ended, to some milliseconds.
    pub ended: SystemTime,
}
