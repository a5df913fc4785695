//! Processes that the kernel has killed because memory had run out.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Profile;
use crate::event::Pid;
use crate::target::Container;

/// Followed processes that the out-of-memory killer has killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    /// The newest ones, in the order in which they were killed.
    pub newest: Arc<[OomKill]>,
    /// How many there were since memprof began.
    pub count: u64,
}

/// A followed process that the out-of-memory killer has killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// Its process id, which another process may have by now.
    pub pid: Pid,
    /// Its name.
    pub comm: String,
    /// Where it ran; `None` if that is not known.
    pub container: Option<Container>,
    /// When it was killed.
    pub killed: SystemTime,
    /// Its last figures; `None` if it was killed before it was scanned.
    pub last: Option<LastFigures>,
}

/// The last figures of a process that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFigures {
    /// Its resident bytes.
    pub resident: u64,
    /// When they were taken: before the kill, or after it, if the memory was still there.
    pub taken: SystemTime,
}

impl OomKills {
    /// Most kills that are listed.
    pub(crate) const MOST: usize = 64;

    /// The list with one more.
    pub fn with(&self, kill: OomKill) -> OomKills {
        let left_out = (self.newest.len() + 1).saturating_sub(OomKills::MOST);
        let kept = self.newest.iter().skip(left_out).cloned();
        OomKills {
            newest: kept.chain([kill]).collect(),
            count: self.count + 1,
        }
    }
}

impl OomKill {
    /// How long before the kill its last figures were taken; zero if it was after it.
    pub fn age(&self) -> Option<Duration> {
        let taken = self.last?.taken;
        Some(self.killed.duration_since(taken).unwrap_or_default())
    }

    /// Whether its last figures were taken after the kill, so that nothing is missing from them.
    pub fn is_of_its_end(&self) -> bool {
        self.last.is_some_and(|last| last.taken >= self.killed)
    }
}

/// Its last figures, and how old they were at the kill.
impl fmt::Display for OomKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.last else {
            return f.write_str("ended before its first profile");
        };
        let kib = last.resident / 1024;
        if self.is_of_its_end() {
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
    /// A process's figures, as the last ones before it was killed; `None` if it is not in this profile.
    pub(crate) fn last_figures(&self, pid: Pid) -> Option<LastFigures> {
        let total = match &self.target.pids[..] {
            [one] if *one == pid => self.total,
            _ => self.processes.iter().find(|share| share.pid == pid)?.total,
        };
        Some(LastFigures {
            resident: total.usage.resident(),
            taken: self.taken,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(pid: u32, killed: SystemTime, taken: SystemTime) -> OomKill {
        OomKill {
            pid: Pid(pid),
            comm: "x".to_owned(),
            container: None,
            killed,
            last: Some(LastFigures { resident: 1, taken }),
        }
    }

    #[test]
    fn the_newest_are_listed_and_all_are_counted() {
        let now = SystemTime::now();
        let mut kills = OomKills::default();
        for pid in 1..=OomKills::MOST as u32 + 3 {
            kills = kills.with(kill(pid, now, now));
        }
        assert_eq!(kills.newest.len(), OomKills::MOST);
        assert_eq!(kills.newest[0].pid, Pid(4));
        assert_eq!(kills.count, OomKills::MOST as u64 + 3);
    }

    #[test]
    fn figures_are_of_before_or_of_the_end() {
        let (now, later) = (SystemTime::now(), Duration::from_millis(80));
        let before = kill(1, now + later, now);
        assert_eq!((before.age(), before.is_of_its_end()), (Some(later), false));
        let after = kill(1, now, now + later);
        let age = Some(Duration::ZERO);
        assert_eq!((after.age(), after.is_of_its_end()), (age, true));
        assert!(
            before
                .to_string()
                .ends_with("last profile, 80 ms before the kill")
        );
        let older = kill(1, now + later * 20, now);
        assert!(
            older
                .to_string()
                .ends_with("last profile, 1.6 s before the kill")
        );
        assert!(after.to_string().contains("made after the kill"), "{after}");
        let never = OomKill {
            last: None,
            ..after
        };
        assert_eq!((never.age(), never.is_of_its_end()), (None, false));
    }
}
