//! The JSON column of a connection: everything that is not searched.

use serde::{Deserialize, Serialize};

use super::entry::ConnectionEntry;
use crate::connection::State;
use crate::side::Both;
use crate::stream::Traffic;
use crate::time::Timestamp;

/// The rest of a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Details {
    connection_messages: [Option<String>; 2],
    metadata: [Option<String>; 2],
    acks: [Option<String>; 2],
    traffic: [Sums; 2],
    chunks: [u64; 2],
    state: State,
    reason: Option<String>,
    gaps: u64,
    remarks: Vec<(u64, String)>,
}

/// Sums of a direction, in bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Sums {
    captured: u64,
    repeated: u64,
    lost: u64,
    foreign: u64,
}

fn array<T: Clone, U>(both: &Both<T>, each: impl Fn(T) -> U) -> [U; 2] {
    [each(both.local.clone()), each(both.remote.clone())]
}

fn both<T, U>([local, remote]: [T; 2], each: impl Fn(T) -> U) -> Both<U> {
    Both {
        local: each(local),
        remote: each(remote),
    }
}

impl Details {
    pub(super) fn of(entry: &ConnectionEntry) -> Self {
        Self {
            connection_messages: array(&entry.connection_messages, |text| text),
            metadata: array(&entry.metadata, |text| text),
            acks: array(&entry.acks, |text| text),
            traffic: array(&entry.traffic, |traffic| Sums {
                captured: traffic.captured,
                repeated: traffic.repeated,
                lost: traffic.lost,
                foreign: traffic.foreign,
            }),
            chunks: array(&entry.chunks, |chunks| chunks),
            state: entry.status.state,
            reason: entry.status.reason.clone(),
            gaps: entry.status.gaps,
            remarks: entry
                .remarks
                .iter()
                .map(|(time, text)| (time.0, text.clone()))
                .collect(),
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the text; what cannot be read is as if it had not been known.
    pub(super) fn of_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Adds a remark.
    pub(super) fn remark(&mut self, time: Timestamp, text: &str) {
        self.remarks.push((time.0, text.to_owned()));
    }

    /// Completes a connection.
    pub(super) fn fill(self, entry: &mut ConnectionEntry) {
        entry.connection_messages = both(self.connection_messages, |text| text);
        entry.metadata = both(self.metadata, |text| text);
        entry.acks = both(self.acks, |text| text);
        entry.traffic = both(self.traffic, |sums| Traffic {
            captured: sums.captured,
            repeated: sums.repeated,
            lost: sums.lost,
            foreign: sums.foreign,
        });
        entry.chunks = both(self.chunks, |chunks| chunks);
        entry.status.state = self.state;
        entry.status.reason = self.reason;
        entry.status.gaps = self.gaps;
        let remarks = self.remarks.into_iter();
        entry.remarks = remarks
            .map(|(time, text)| (Timestamp(time), text))
            .collect();
    }
}
