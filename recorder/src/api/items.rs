//! Messages, connections and lines of the log as `/v4` has them.

use std::net::SocketAddr;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::old::{raw_json, side};
use super::peers::Peers;
use super::query::canonical;
use crate::p2p::json::Hex;
use crate::side::{Both, Side};
use crate::store::{ConnectionEntry, LogRow, MessageDetails, MessageRow};
use crate::stream::Traffic;
use crate::time::Timestamp;

/// A time: nanoseconds as text, since they exceed what numbers of JavaScript hold, and milliseconds.
#[derive(Serialize)]
pub(super) struct Time {
    time: String,
    time_ms: u64,
}

impl From<Timestamp> for Time {
    fn from(Timestamp(nanos): Timestamp) -> Self {
        Self {
            time: nanos.to_string(),
            time_ms: nanos / 1_000_000,
        }
    }
}

/// A message in a list.
#[derive(Serialize)]
pub(super) struct MessageItem<'a> {
    id: u64,
    #[serde(flatten)]
    time: Time,
    connection: String,
    peer_id: Option<String>,
    address: SocketAddr,
    initiator: Option<&'static str>,
    incoming: bool,
    kind: &'static str,
    category: &'static str,
    size: u64,
    preview: Option<&'a str>,
    hash: Option<&'a str>,
    error: Option<&'a str>,
}

impl<'a> MessageItem<'a> {
    pub(super) fn new(row: &'a MessageRow, peers: &mut Peers<'_>) -> Self {
        let peer = peers.of(row.connection);
        Self {
            id: row.id,
            time: row.time.into(),
            connection: row.connection.0.to_string(),
            peer_id: peer.peer_id.clone(),
            address: canonical(row.address),
            initiator: row.initiator.or(peer.initiator).map(side),
            incoming: row.sender == Side::Remote,
            kind: row.kind.name(),
            category: row.kind.category().name(),
            size: row.size,
            preview: row.preview.as_deref(),
            hash: row.hash.as_deref(),
            error: row.error.as_deref(),
        }
    }
}

/// A message with its bytes.
#[derive(Serialize)]
pub(super) struct DetailsItem<'a> {
    #[serde(flatten)]
    item: MessageItem<'a>,
    message: Option<&'a RawValue>,
    /// Whether `message` is missing because it is longer than 5 MiB.
    message_cut: bool,
    /// Captured bytes in hexadecimal.
    raw: String,
    /// Plain bytes in hexadecimal.
    plain: String,
    /// Whether bytes are missing in either: beyond the limit, or not stored any more.
    cut: bool,
}

impl<'a> DetailsItem<'a> {
    pub(super) fn new(details: &'a MessageDetails, peers: &mut Peers<'_>) -> Self {
        Self {
            item: MessageItem::new(&details.row, peers),
            message: raw_json(details.message.as_deref()),
            message_cut: details.too_long,
            raw: Hex(&details.raw).to_string(),
            plain: Hex(&details.plain).to_string(),
            cut: details.cut,
        }
    }
}

/// A connection.
#[derive(Serialize)]
pub(super) struct ConnectionItem<'a> {
    id: String,
    #[serde(flatten)]
    time: Time,
    address: SocketAddr,
    initiator: Option<&'static str>,
    peer_id: Option<&'a str>,
    versions: Sides<Option<Value>>,
    metadata: Sides<Option<Value>>,
    acks: Sides<Option<Value>>,
    last: String,
    ended: Option<String>,
    /// `open`, `seen` or `unseen`.
    end: &'static str,
    state: &'static str,
    reason: Option<&'a str>,
    bytes: Bytes,
    chunks: Chunks,
    ignored: Option<&'a str>,
    remarks: Vec<Remark<'a>>,
}

/// A value of each end.
#[derive(Serialize)]
struct Sides<T> {
    local: T,
    remote: T,
}

/// Bytes by direction, as the node sees it.
#[derive(Serialize)]
struct Bytes {
    sent: u64,
    received: u64,
    /// Bytes of both directions that were not captured.
    lost: u64,
    /// How often bytes were not captured.
    gaps: u64,
}

/// Chunks by direction, as the node sees it.
#[derive(Serialize)]
struct Chunks {
    sent: u64,
    received: u64,
}

#[derive(Serialize)]
struct Remark<'a> {
    #[serde(flatten)]
    time: Time,
    text: &'a str,
}

impl<'a> From<&'a ConnectionEntry> for ConnectionItem<'a> {
    fn from(entry: &'a ConnectionEntry) -> Self {
        let sent = |traffic: Traffic| traffic.captured.saturating_add(traffic.lost);
        let Both { local, remote } = entry.traffic;
        let remark = |(time, text): &'a (Timestamp, String)| Remark {
            time: (*time).into(),
            text,
        };
        Self {
            id: entry.id.0.to_string(),
            time: Timestamp(entry.id.0).into(),
            address: canonical(entry.address),
            initiator: entry.initiator.map(side),
            peer_id: entry.peer_id.as_deref(),
            versions: json_of(&entry.connection_messages),
            metadata: json_of(&entry.metadata),
            acks: json_of(&entry.acks),
            last: entry.last.0.to_string(),
            ended: entry.ended.map(|time| time.0.to_string()),
            end: match (entry.ended, entry.status.end_unseen) {
                (Some(_), _) => "seen",
                (None, true) => "unseen",
                (None, false) => "open",
            },
            state: entry.status.state.name(),
            reason: entry.status.reason.as_deref(),
            bytes: Bytes {
                sent: sent(local),
                received: sent(remote),
                lost: local.lost.saturating_add(remote.lost),
                gaps: entry.status.gaps,
            },
            chunks: Chunks {
                sent: entry.chunks.local,
                received: entry.chunks.remote,
            },
            ignored: entry.ignored.as_deref(),
            remarks: entry.remarks.iter().map(remark).collect(),
        }
    }
}

/// JSON that is stored as text; nothing for what is no JSON.
fn json_of(texts: &Both<Option<String>>) -> Sides<Option<Value>> {
    let json = |text: &Option<String>| serde_json::from_str(text.as_deref()?).ok();
    Sides {
        local: json(&texts.local),
        remote: json(&texts.remote),
    }
}

/// A line of the log.
#[derive(Serialize)]
pub(super) struct LogItem<'a> {
    id: u64,
    #[serde(flatten)]
    time: Time,
    level: &'static str,
    section: &'a str,
    message: &'a str,
}

impl<'a> From<&'a LogRow> for LogItem<'a> {
    fn from(row: &'a LogRow) -> Self {
        Self {
            id: row.id,
            time: row.time.into(),
            level: row.level.name(),
            section: &row.section,
            message: &row.message,
        }
    }
}
