//! Processes that the out-of-memory killer has killed, in the form of saved profiles.

use serde::{Deserialize, Serialize};

use super::parts::{time, unix_ms};
use super::place::ContainerLabels;
use super::schema::Bounded;
use crate::{self as profile, LastFigures};
use memprof_sys::ids::Pid;

/// Number of all kills, and the newest of them, oldest first.
#[derive(Serialize, Deserialize)]
pub struct OomKills {
    count: u64,
    newest: Bounded<OomKill, { profile::OomKills::MAX_KILLS }>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OomKill {
    pid: u32,
    comm: String,
    place: Option<ContainerLabels>,
    killed_unix_ms: u64,
    last: Option<Last>,
}

/// The last figures of a killed process: resident bytes, and whether their scan began after the kill.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Last {
    resident: u64,
    taken_unix_ms: u64,
    after_kill: bool,
}

impl OomKills {
    /// Converts the kills; `None` if there were none.
    pub fn from_kills(kills: &profile::OomKills) -> Option<OomKills> {
        let newest = kills.newest.iter().map(OomKill::from).collect();
        (kills.count > 0).then_some(OomKills {
            count: kills.count,
            newest: Bounded(newest),
        })
    }
}

impl From<&profile::OomKill> for OomKill {
    fn from(kill: &profile::OomKill) -> OomKill {
        OomKill {
            pid: kill.pid.0,
            comm: kill.comm.clone(),
            place: kill.container.as_ref().map(ContainerLabels::from),
            killed_unix_ms: unix_ms(kill.killed),
            last: kill.last.map(|last| Last {
                resident: last.resident,
                taken_unix_ms: unix_ms(last.taken),
                after_kill: last.after_kill,
            }),
        }
    }
}

impl From<OomKills> for profile::OomKills {
    fn from(kills: OomKills) -> profile::OomKills {
        profile::OomKills {
            count: kills.count,
            newest: kills.newest.0.into_iter().map(OomKill::read).collect(),
        }
    }
}

impl OomKill {
    fn read(self) -> profile::OomKill {
        let last = self.last.map(|last| LastFigures {
            resident: last.resident,
            taken: time(last.taken_unix_ms, 0),
            after_kill: last.after_kill,
        });
        profile::OomKill {
            pid: Pid(self.pid),
            comm: self.comm,
            container: self.place.map(Into::into),
            killed: time(self.killed_unix_ms, 0),
            last,
        }
    }
}
