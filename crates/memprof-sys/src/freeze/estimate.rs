//! Estimates how long a process must be stopped for a scan, from earlier measurements.

use std::collections::HashMap;
use std::time::Duration;

use super::{FreezeStats, threads};
use crate::ids::Pid;

/// Defaults without a measurement: stopping and releasing a thread, the fixed cost of a scan, and scanning a
/// GiB of 4 KiB pages. They are rather low, because one attempt gives a measurement.
const THREAD_TIME: Duration = Duration::from_micros(6);
const SCAN_BASE: Duration = Duration::from_micros(200);
const SCAN_GIB: Duration = Duration::from_millis(4);

/// Minimum number of threads in a freeze for measuring the cost per thread.
const MIN_MEASURED: usize = 256;

/// Measured times of scans and stops.
#[derive(Debug, Default)]
pub struct Costs {
    /// Time per thread for stopping and releasing.
    thread: Option<Duration>,
    /// Time of the last scan, and the bytes resident then.
    scans: HashMap<Pid, (Duration, u64)>,
}

/// The estimated cost of a freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Threads to stop.
    pub threads: usize,
    /// Bytes to scan.
    pub resident: u64,
    /// Time for stopping and releasing the threads.
    pub overhead: Duration,
    /// Time for the scan.
    pub scan: Duration,
}

impl Estimate {
    /// The total time.
    pub fn total(&self) -> Duration {
        self.overhead + self.scan
    }

    /// The sum of two estimates.
    pub fn plus(self, other: Estimate) -> Estimate {
        Estimate {
            threads: self.threads + other.threads,
            resident: self.resident + other.resident,
            overhead: self.overhead + other.overhead,
            scan: self.scan + other.scan,
        }
    }
}

impl Costs {
    /// The estimate for a process with `resident` bytes.
    pub fn estimate(&self, pid: Pid, resident: u64) -> Estimate {
        let threads = threads::count(pid);
        let each = self.thread.unwrap_or(THREAD_TIME);
        let (took, bytes) = self.scans.get(&pid).copied().unwrap_or((SCAN_GIB, 1 << 30));
        // Below 1 MiB the scan time does not depend on the resident bytes.
        let share = (resident as f64 / bytes.max(1 << 20) as f64).max(0.0);
        Estimate {
            threads,
            resident,
            overhead: each.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX)),
            scan: SCAN_BASE + took.mul_f64(share.min(1e6)),
        }
    }

    /// Records the time of a scan.
    pub fn record_scan(&mut self, pid: Pid, took: Duration, resident: u64) {
        self.scans.insert(pid, (took, resident));
    }

    /// Records the statistics of a freeze.
    pub fn record_freeze(&mut self, stats: &FreezeStats) {
        if stats.threads >= MIN_MEASURED {
            self.thread = Some(stats.overhead / u32::try_from(stats.threads).unwrap_or(u32::MAX));
        }
    }

    /// Lowers the cost per thread after a freeze was not tried because of the estimate, so that it is tried again
    /// eventually: the machine may have been busy during the measurement. (Every report measures scans again.)
    pub fn lower_estimate(&mut self) {
        self.thread = self.thread.map(|each| each * 9 / 10);
    }

    /// Forgets all processes except these.
    pub fn retain(&mut self, pids: &[Pid]) {
        self.scans.retain(|pid, _| pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: fn() -> Pid = || Pid(std::process::id());

    #[test]
    fn a_scan_takes_what_the_last_one_took() {
        let mut costs = Costs::default();
        let unknown = costs.estimate(OWN(), 10 << 30);
        assert!(unknown.threads > 0);
        assert_eq!(unknown.scan, SCAN_BASE + SCAN_GIB * 10);
        costs.record_scan(OWN(), Duration::from_millis(100), 10 << 30);
        let estimate = costs.estimate(OWN(), 20 << 30);
        assert_eq!(estimate.scan, SCAN_BASE + Duration::from_millis(200));
        costs.retain(&[]);
        assert_eq!(costs.estimate(OWN(), 10 << 30).scan, unknown.scan);
    }

    #[test]
    fn what_was_too_much_is_tried_again_in_the_end() {
        let mut costs = Costs::default();
        let stats = |threads| FreezeStats {
            threads,
            overhead: Duration::from_secs(1),
            duration: Duration::from_secs(1),
        };
        costs.record_freeze(&stats(MIN_MEASURED - 1));
        assert_eq!(costs.thread, None);
        costs.record_freeze(&stats(1000));
        assert_eq!(costs.thread, Some(Duration::from_millis(1)));
        for _ in 0..50 {
            costs.lower_estimate();
        }
        assert!(costs.thread < Some(Duration::from_micros(10)));
    }
}
