//! Processes that the kernel's out-of-memory killer has killed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Profile;
use super::saved::{bounded, slice, unix_ms};
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Followed processes that the out-of-memory killer has killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKills {
    /// Number of kills since memprof began.
    pub count: u64,
    /// The newest kills, in chronological order.
    #[serde(
        serialize_with = "slice",
        deserialize_with = "bounded::<{ OomKills::MAX_KILLS }, OomKill, _, _>"
    )]
    pub newest: Arc<[OomKill]>,
}

/// A followed process that the out-of-memory killer has killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKill {
    /// The process id, which may have been reused since.
    pub pid: Pid,
    /// The process name.
    pub comm: String,
    /// The container; `None` if unknown.
    #[serde(rename = "place")]
    pub container: Option<Container>,
    /// Time of the kill.
    #[serde(rename = "killedUnixMs", with = "unix_ms")]
    pub killed: SystemTime,
    /// The last figures of the process; `None` if it was killed before its first scan.
    pub last: Option<LastFigures>,
}

/// The last figures of a killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFigures {
    /// Resident bytes.
    pub resident: u64,
    /// Time of the figures.
    #[serde(rename = "takenUnixMs", with = "unix_ms")]
    pub taken: SystemTime,
    /// Whether the scan began after the kill, while the memory was not yet freed. The figures are then complete.
    #[serde(rename = "afterKill")]
    pub after_kill: bool,
}

impl OomKills {
    /// Maximum length of the list of kills.
    pub(crate) const MAX_KILLS: usize = 64;

    /// The list with one more kill.
    pub fn with(&self, kill: OomKill) -> OomKills {
        let left_out = (self.newest.len() + 1).saturating_sub(OomKills::MAX_KILLS);
        let kept = self.newest.iter().skip(left_out).cloned();
        OomKills {
            newest: kept.chain([kill]).collect(),
            count: self.count + 1,
        }
    }
}

impl OomKill {
    /// Time from the last figures to the kill; zero if the figures are newer than the kill. `None` without figures.
    pub fn age(&self) -> Option<Duration> {
        let taken = self.last?.taken;
        Some(self.killed.duration_since(taken).unwrap_or_default())
    }
}

/// Formats the last figures and their age at the kill.
impl fmt::Display for OomKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.last else {
            return f.write_str("ended before its first profile");
        };
        let kib = last.resident / 1024;
        if last.after_kill {
            return write!(f, "{kib} KiB resident in a profile made after the kill");
        }
        let age = self.age().unwrap_or_default();
        let age = match age.as_secs() {
            0 => format!("{} ms", age.as_millis()),
            _ => format!("{:.1} s", age.as_secs_f64()),
        };
        write!(
            f,
            "{kib} KiB resident in its last profile, {age} before the kill"
        )
    }
}

impl Profile {
    /// The figures of a process in this profile, as the last ones before its kill, or after it if `after_kill`; `None` if
    /// the process is not in this profile. `killed` is the time of the kill by the wall clock and in ns of
    /// `CLOCK_MONOTONIC`.
    pub fn last_figures(
        &self,
        pid: Pid,
        killed: (SystemTime, u64),
        after_kill: bool,
    ) -> Option<LastFigures> {
        let total = match &self.target.pids[..] {
            [one] if *one == pid => self.total,
            _ => self.processes.iter().find(|share| share.pid == pid)?.total,
        };
        Some(LastFigures {
            resident: total.usage.resident(),
            taken: self.taken_by_clock_of(killed),
            after_kill,
        })
    }

    /// When this profile was taken, in terms of the wall clock at another moment. The wall clock may have been set in
    /// between.
    fn taken_by_clock_of(&self, (then, then_ns): (SystemTime, u64)) -> SystemTime {
        let apart = Duration::from_nanos(self.taken_ns.abs_diff(then_ns));
        let taken = match self.taken_ns <= then_ns {
            true => then.checked_sub(apart),
            false => then.checked_add(apart),
        };
        taken.unwrap_or(then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(pid: u32, killed: SystemTime, taken: SystemTime, after_kill: bool) -> OomKill {
        OomKill {
            pid: Pid(pid),
            comm: "x".to_owned(),
            container: None,
            killed,
            last: Some(LastFigures {
                resident: 4096,
                taken,
                after_kill,
            }),
        }
    }

    #[test]
    fn the_newest_are_listed_and_all_are_counted() {
        let now = SystemTime::now();
        let mut kills = OomKills::default();
        for pid in 1..=OomKills::MAX_KILLS as u32 + 3 {
            kills = kills.with(kill(pid, now, now, false));
        }
        assert_eq!(kills.newest.len(), OomKills::MAX_KILLS);
        assert_eq!(kills.newest[0].pid, Pid(4));
        assert_eq!(kills.count, OomKills::MAX_KILLS as u64 + 3);
    }

    #[test]
    fn how_old_figures_were_is_said() {
        let (now, later) = (SystemTime::now(), Duration::from_millis(80));
        let said = |killed, taken, after| kill(1, killed, taken, after).to_string();
        let before = "4 KiB resident in its last profile";
        assert_eq!(
            said(now + later, now, false),
            format!("{before}, 80 ms before the kill")
        );
        assert_eq!(
            said(now + later * 20, now, false),
            format!("{before}, 1.6 s before the kill")
        );
        // A scan that was in progress during the kill.
        assert_eq!(
            said(now, now + later, false),
            format!("{before}, 0 ms before the kill")
        );
        assert_eq!(
            said(now, now + later, true),
            "4 KiB resident in a profile made after the kill"
        );
        let never = OomKill {
            last: None,
            ..kill(1, now, now, false)
        };
        assert_eq!(never.to_string(), "ended before its first profile");
    }
}
