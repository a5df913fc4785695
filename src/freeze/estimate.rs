//! What holding a process still for a scan will take, by what it took before.

use std::collections::HashMap;
use std::time::Duration;

use super::{Stood, threads};
use crate::event::Pid;

/// Where nothing is known: stopping a thread and letting it go, anything at all, and a GiB of 4 KiB pages.
/// Rather too little: what is tried once is known.
const THREAD: Duration = Duration::from_micros(6);
const BASE: Duration = Duration::from_micros(200);
const GIB: Duration = Duration::from_millis(4);

/// Fewer threads tell nothing of the cost of one.
const MANY: usize = 256;

/// What scans and stops took.
#[derive(Debug, Default)]
pub struct Costs {
    /// For a thread.
    thread: Option<Duration>,
    /// A scan, and how many bytes were resident then.
    scans: HashMap<Pid, (Duration, u64)>,
}

/// What a hold will need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Threads to stop.
    pub threads: usize,
    /// Bytes to scan.
    pub resident: u64,
    /// For stopping them and letting them go.
    pub stopping: Duration,
    /// For the scan.
    pub scan: Duration,
}

impl Need {
    /// For all of it.
    pub fn whole(&self) -> Duration {
        self.stopping + self.scan
    }

    /// The sum of both.
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
    /// What holding a process with so many bytes resident will need.
    pub fn need(&self, pid: Pid, resident: u64) -> Need {
        let threads = threads::count(pid);
        let each = self.thread.unwrap_or(THREAD);
        let (took, bytes) = self.scans.get(&pid).copied().unwrap_or((GIB, 1 << 30));
        // A small one takes what it takes whatever it holds.
        let share = (resident as f64 / bytes.max(1 << 20) as f64).max(0.0);
        Need {
            threads,
            resident,
            stopping: each.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX)),
            scan: BASE + took.mul_f64(share.min(1e6)),
        }
    }

    /// A scan of a process took so long.
    pub fn scanned(&mut self, pid: Pid, took: Duration, resident: u64) {
        self.scans.insert(pid, (took, resident));
    }

    /// A hold was so.
    pub fn stood(&mut self, stood: &Stood) {
        if stood.threads >= MANY {
            self.thread = Some(stood.stopping / u32::try_from(stood.threads).unwrap_or(u32::MAX));
        }
    }

    /// A hold was not tried because of this. It is in the end: the machine may have been busy when the cost was
    /// measured. (Scans are measured again with every report.)
    pub fn refused(&mut self) {
        self.thread = self.thread.map(|each| each * 9 / 10);
    }

    /// Forgets processes other than these.
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
