//! The kernel's counters of a stopped process.

use crate::ids::Pid;
use crate::kernel_version::KernelVersion;
use crate::residency::figures;

/// The first kernel whose counters are exact (commit 82241a83cd15, "mm: fix the inaccurate memory statistics issue for users").
const EXACT: KernelVersion = KernelVersion(6, 16);

/// A process's anonymous memory, resident and swapped out, in bytes, without a walk of its page tables; `None` if the
/// kernel's counters are not exact, or cannot be read.
pub fn anonymous(pid: Pid) -> Option<[u64; 2]> {
    if KernelVersion::running() < EXACT {
        return None;
    }
    let status = figures::status(pid).ok()?;
    Some([status.rss_anon, status.swap])
}
