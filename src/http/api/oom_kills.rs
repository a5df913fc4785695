//! Kills of processes by the OOM killer, in replies.

use serde::Serialize;

use super::common::millis;
use memprof_profile::{OomKill, OomKills};
use memprof_sys::process::Container;

/// The number of kills, and the newest ones.
#[derive(Debug, Serialize)]
pub(super) struct OomKillsReply<'a> {
    count: u64,
    /// Oldest first.
    rows: Vec<OomKillRow<'a>>,
}

/// A killed process.
#[derive(Debug, Serialize)]
pub(super) struct OomKillRow<'a> {
    pid: u32,
    comm: &'a str,
    #[serde(flatten)]
    place: Option<&'a Container>,
    killed: u64,
    last: Option<Last>,
}

/// The last figures of a killed process.
#[derive(Debug, Serialize)]
struct Last {
    resident: u64,
    taken: u64,
    age_ms: u64,
    after_kill: bool,
}

impl<'a> From<&'a OomKills> for OomKillsReply<'a> {
    fn from(kills: &'a OomKills) -> OomKillsReply<'a> {
        OomKillsReply {
            count: kills.count,
            rows: kills.newest.iter().map(OomKillRow::from).collect(),
        }
    }
}

impl<'a> From<&'a OomKill> for OomKillRow<'a> {
    fn from(kill: &'a OomKill) -> OomKillRow<'a> {
        let age = kill.age().unwrap_or_default().as_millis();
        OomKillRow {
            pid: kill.pid.0,
            comm: &kill.comm,
            place: kill.container.as_ref(),
            killed: millis(kill.killed),
            last: kill.last.map(|last| Last {
                resident: last.resident,
                taken: millis(last.taken),
                age_ms: u64::try_from(age).unwrap_or(u64::MAX),
                after_kill: last.after_kill,
            }),
        }
    }
}
