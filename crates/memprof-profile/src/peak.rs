//! The moment at which the target had the most resident memory.

use std::cmp::Reverse;
use std::time::Duration;

use memprof_sys::text::grouped;
use serde::{Deserialize, Serialize};

use super::Profile;
use memprof_sys::ids::Pid;

/// The highest resident memory of the target so far, in bytes. The fields are those of saved profiles.
///
/// # Examples
///
/// ```
/// use memprof_profile::Peak;
///
/// let (rss, high_water) = (142_380 << 10, Some(142_912 << 10));
/// let peak = Peak { rss, high_water, processes: 1, after_ms: 3210, is_shown: true };
/// assert_eq!(peak.to_string(), "at its peak (142,380 KiB of 142,912 KiB VmHWM, after 3.2 s)");
/// assert_eq!(peak.highest(), 142_912 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peak {
    /// Resident memory (anonymous, shared and of files) at the highest moment of which memprof has a profile.
    pub rss: u64,
    /// The kernel's figure for the highest moment: `VmHWM`; of several processes, the highest sum of their counters that memprof
    /// saw. `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_water: Option<u64>,
    /// Number of processes at that moment; 0 in files of versions that did not count them.
    #[serde(default)]
    pub processes: u32,
    /// Time from the start of following the target to that moment, in milliseconds.
    pub after_ms: u64,
    /// Whether the profile that has this value shows that moment.
    pub is_shown: bool,
}

impl Peak {
    /// The peak of `processes` processes after a time of following them, for a profile that does not show it. The kernel updates its
    /// figure when memory shrinks, so that `rss` may be above it.
    pub fn new(rss: u64, high_water: Option<u64>, processes: usize, after: Duration) -> Peak {
        Peak {
            rss,
            high_water: high_water.map(|bytes| bytes.max(rss)),
            processes: processes as u32,
            after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            is_shown: false,
        }
    }

    /// Time from the start of following the target to the peak.
    pub fn after(&self) -> Duration {
        Duration::from_millis(self.after_ms)
    }

    /// The highest resident memory, in bytes: the kernel's figure if it is known.
    pub fn highest(&self) -> u64 {
        self.high_water.unwrap_or(0).max(self.rss)
    }
}

impl std::fmt::Display for Peak {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let after = self.after().as_secs_f64();
        write!(f, "at its peak ({} KiB", grouped(self.rss >> 10))?;
        if let Some(bytes) = self.high_water {
            write!(f, " of {} KiB", grouped(bytes >> 10))?;
        }
        match (self.processes, self.high_water) {
            (0 | 1, Some(_)) => write!(f, " VmHWM")?,
            (0 | 1, None) => {}
            (several, _) => write!(f, " in {several} processes")?,
        }
        write!(f, ", after {after:.1} s)")
    }
}

/// The peak of one of several processes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessPeak<'a> {
    /// The process.
    pub pid: Pid,
    /// The process name.
    pub comm: &'a str,
    /// The peak.
    pub peak: Peak,
    /// Whether the process runs.
    pub alive: bool,
}

impl Profile {
    /// The peaks of the processes, of those that run and of those that have ended, the highest first. Empty if there was never more than
    /// one process.
    pub fn process_peaks(&self) -> Vec<ProcessPeak<'_>> {
        let running = self.members().into_iter().filter_map(|member| {
            Some(ProcessPeak {
                pid: member.pid,
                comm: member.comm,
                peak: member.peak?,
                alive: self.target.alive,
            })
        });
        let ended = self.ended.processes.iter().filter_map(|ended| {
            Some(ProcessPeak {
                pid: ended.pid,
                comm: &ended.comm,
                peak: ended.peak?,
                alive: false,
            })
        });
        let mut peaks: Vec<_> = running.chain(ended).collect();
        peaks.sort_by_key(|process| Reverse(process.peak.highest()));
        match peaks.len() {
            0 | 1 => Vec::new(),
            _ => peaks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_not_said() {
        let mut peak = Peak {
            rss: 4096 << 10,
            high_water: None,
            processes: 1,
            after_ms: 1500,
            is_shown: true,
        };
        assert_eq!(peak.to_string(), "at its peak (4,096 KiB, after 1.5 s)");
        peak.processes = 3;
        let several = "at its peak (4,096 KiB in 3 processes, after 1.5 s)";
        assert_eq!(peak.to_string(), several);
        peak.high_water = Some(5000 << 10);
        let both = "at its peak (4,096 KiB of 5,000 KiB in 3 processes, after 1.5 s)";
        assert_eq!(peak.to_string(), both);
    }

    #[test]
    fn the_kernels_figure_counts_unless_it_is_older() {
        let peak = |high_water| Peak {
            rss: 100,
            high_water,
            processes: 1,
            after_ms: 0,
            is_shown: false,
        };
        let highest = [None, Some(90), Some(110)].map(|high| peak(high).highest());
        assert_eq!(highest, [100, 100, 110]);
    }
}
