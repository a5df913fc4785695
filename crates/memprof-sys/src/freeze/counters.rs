//! The kernel's memory counters of a stopped process.

use crate::ids::Pid;
use crate::kernel_version::KernelVersion;
use crate::residency::figures;

/// The first kernel with exact counters (commit 82241a83cd15, "mm: fix the inaccurate memory statistics issue for users").
const EXACT: KernelVersion = KernelVersion(6, 16);

/// A process's anonymous memory, resident and swapped out, in bytes, without a page table walk. `None` if the kernel's counters are
/// not exact or cannot be read.
pub fn anonymous(pid: Pid) -> Option<[u64; 2]> {
    if KernelVersion::running() < EXACT {
        return None;
    }
    let status = figures::status(pid).ok()?;
    Some([status.rss_anon, status.swap])
}
