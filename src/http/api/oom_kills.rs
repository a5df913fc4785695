//! Kills of processes by the OOM killer, in replies.

use schemars::JsonSchema;
use serde::Serialize;

use super::common::{ContainerLabels, millis};
use memprof_profile::{OomKill, OomKills};
use memprof_sys::process::Container;

/// The number of kills, and the newest ones.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OomKills")]
pub(super) struct OomKillsReply<'a> {
    /// Number of kills since memprof began, also in a reply for a part of the target.
    count: u64,
    /// The newest 64, oldest first.
    rows: Vec<OomKillRow<'a>>,
}

/// A process that the kernel has killed because memory had run out.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OomKill")]
pub(super) struct OomKillRow<'a> {
    pid: u32,
    /// Name of the process.
    comm: &'a str,
    #[serde(flatten)]
    #[schemars(with = "ContainerLabels")]
    place: Option<&'a Container>,
    /// When it was killed, in milliseconds since 1970-01-01 UTC.
    killed: u64,
    /// The last profile of the process; null if the process was killed before it was scanned.
    last: Option<Last>,
}

/// The last profile of a killed process.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "LastProfile")]
struct Last {
    /// Resident bytes of the process.
    resident: u64,
    /// End of the page scan, in milliseconds since 1970-01-01 UTC.
    taken: u64,
    /// Time from the scan to the kill, in milliseconds; 0 if the kill was first.
    age_ms: u64,
    /// Whether the scan was made after the kill, while the memory was still there: nothing is missing then.
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
