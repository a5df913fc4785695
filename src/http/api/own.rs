//! Resource usage of memprof itself.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// memprof's own resident memory, in bytes; 0 if it cannot be read.
pub(super) fn rss() -> u64 {
    let status = figures::status(Pid(std::process::id()));
    status.map_or(0, |s| s.rss_anon + s.rss_file + s.rss_shmem)
}

/// User and system CPU time of memprof itself.
pub(super) fn cpu() -> Duration {
    let usage = match getrusage(UsageWho::RUSAGE_SELF) {
        Ok(usage) => usage,
        // `RUSAGE_SELF` cannot fail.
        Err(_) => return Duration::ZERO,
    };
    let duration = |time: nix::sys::time::TimeVal| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    duration(usage.user_time()) + duration(usage.system_time())
}
