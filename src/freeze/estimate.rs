//! Estimates how long a process must be stopped for a scan, from earlier measurements.

use std::collections::HashMap;
use std::time::Duration;

use super::{Stood, threads};
use crate::event::Pid;

/// Defaults without a measurement: stopping and releasing a thread, the fixed cost of a scan, and scanning a
/// GiB of 4 KiB pages. They are rather low, because one attempt gives a measurement.
const THREAD: Duration = Duration::from_micros(6);
const BASE: Duration = Duration::from_micros(200);
const GIB: Duration = Duration::from_millis(4);

/// Minimum number of threads in a hold for measuring the cost per thread.
const MANY: usize = 256;

/// Measured times of scans and stops.
#[derive(Debug, Default)]
pub struct Costs {
    /// Time per thread for stopping and releasing.
    thread: Option<Duration>,
    /// Time of the last scan, and the bytes resident then.
    scans: HashMap<Pid, (Duration, u64)>,
}

/// The estimate for a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Threads to stop.
    pub threads: usize,
    /// Bytes to scan.
    pub resident: u64,
    /// Time for stopping and releasing the threads.
    pub stopping: Duration,
    /// Time for the scan.
    pub scan: Duration,
}

impl Need {
    /// The total time.
    pub fn whole(&self) -> Duration {
        self.stopping + self.scan
    }

    /// The sum of two estimates.
    pub fn and(self, other: Need) -> Need {
        Need {
            threads: self.threads + other.threads,
            resident: self.resident + other.resident,
            stopping: self.stopping + other.stopping,
            scan: self.scan + other.scan,
        }
    }
}

impl Costs {
    /// The estimate for a process with `resident` bytes.
    pub fn need(&self, pid: Pid, resident: u64) -> Need {
        let threads = threads::count(pid);
        let each = self.thread.unwrap_or(THREAD);
        let (took, bytes) = self.scans.get(&pid).copied().unwrap_or((GIB, 1 << 30));
        // Below 1 MiB the scan time does not depend on the resident bytes.
        let share = (resident as f64 / bytes.max(1 << 20) as f64).max(0.0);
        Need {
            threads,
            resident,
            stopping: each.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX)),
            scan: BASE + took.mul_f64(share.min(1e6)),
        }
    }

    /// Records the time of a scan.
    pub fn scanned(&mut self, pid: Pid, took: Duration, resident: u64) {
        self.scans.insert(pid, (took, resident));
    }

    /// Records the statistics of a hold.
    pub fn stood(&mut self, stood: &Stood) {
        if stood.threads >= MANY {
            self.thread = Some(stood.stopping / u32::try_from(stood.threads).unwrap_or(u32::MAX));
        }
    }

    /// Lowers the cost per thread after a hold was refused because of the estimate, so that it is tried again
    /// eventually: the machine may have been busy during the measurement. (Every report measures scans again.)
    pub fn refused(&mut self) {
        self.thread = self.thread.map(|each| each * 9 / 10);
    }

    /// Forgets all processes except these.
    pub fn keep(&mut self, pids: &[Pid]) {
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
        let unknown = costs.need(OWN(), 10 << 30);
        assert!(unknown.threads > 0);
        assert_eq!(unknown.scan, BASE + GIB * 10);
        costs.scanned(OWN(), Duration::from_millis(100), 10 << 30);
        let need = costs.need(OWN(), 20 << 30);
        assert_eq!(need.scan, BASE + Duration::from_millis(200));
        costs.keep(&[]);
        assert_eq!(costs.need(OWN(), 10 << 30).scan, unknown.scan);
    }

    #[test]
    fn what_was_too_much_is_tried_again_in_the_end() {
        let mut costs = Costs::default();
        let stood = |threads| Stood {
            threads,
            stopping: Duration::from_secs(1),
            lasted: Duration::from_secs(1),
        };
        costs.stood(&stood(MANY - 1));
        assert_eq!(costs.thread, None);
        costs.stood(&stood(1000));
        assert_eq!(costs.thread, Some(Duration::from_millis(1)));
        for _ in 0..50 {
            costs.refused();
        }
        assert!(costs.thread < Some(Duration::from_micros(10)));
    }
}
