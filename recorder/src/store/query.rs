//! What a store is asked, and what it answers.

use std::net::{IpAddr, SocketAddr};

use super::entry::{ConnectionId, Level};
use crate::p2p::message::Kind;
use crate::side::Side;
use crate::time::Timestamp;

/// The order of rows, which are sorted by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Newest first.
    #[default]
    Backward,
    /// Oldest first.
    Forward,
}

/// Where rows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// The newest backward, the oldest forward.
    #[default]
    Start,
    /// This id, inclusive; beyond the newest it is the newest.
    Id(u64),
    /// Backward, rows with times not later; forward, later rows.
    Time(Timestamp),
}

/// A question for messages. All conditions must hold; of lists, one; empty lists are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MessageQuery {
    pub limit: u64,
    pub direction: Direction,
    pub position: Position,
    /// First and last time, inclusive.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub kinds: Vec<Kind>,
    pub sender: Option<Side>,
    pub initiator: Option<Side>,
    /// The peer's address and port; IPv4 addresses match their IPv6-mapped form.
    pub address: Option<SocketAddr>,
    /// The peer's address with any port.
    pub host: Option<IpAddr>,
    pub connection: Option<ConnectionId>,
    pub peer_id: Option<String>,
    /// The beginning of the hash of the block or operation.
    pub hash: Option<String>,
    /// Only with, or only without an error.
    pub error: Option<bool>,
}

/// A message in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MessageRow {
    /// Dense per node, from 0.
    pub id: u64,
    pub time: Timestamp,
    pub connection: ConnectionId,
    pub address: SocketAddr,
    pub initiator: Option<Side>,
    pub sender: Side,
    pub kind: Kind,
    /// In bytes.
    pub size: u64,
    pub preview: Option<String>,
    pub hash: Option<String>,
    pub error: Option<String>,
}

/// A message with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageDetails {
    /// The row.
    pub row: MessageRow,
    /// Its JSON as text, decoded again from the plain bytes; at most [`Reader::MAX_JSON`](super::Reader::MAX_JSON).
    pub message: Option<String>,
    /// Whether the JSON is left out because it is longer.
    pub too_long: bool,
    /// Its chunks as captured, one behind the other, cut after the limit of the question.
    pub raw: Vec<u8>,
    /// Its plain bytes, cut likewise.
    pub plain: Vec<u8>,
    /// Whether either was cut, or chunks of it are not stored any more.
    pub cut: bool,
}

/// A question for connections, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ConnectionQuery {
    pub limit: u64,
    pub direction: Direction,
    /// The first id, inclusive.
    pub cursor: Option<ConnectionId>,
    pub peer_id: Option<String>,
    pub host: Option<IpAddr>,
}

/// A question for chunks, in the order in which they were stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ChunkQuery {
    pub limit: u64,
    pub connection: Option<ConnectionId>,
    /// First and last time, inclusive.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// Leave the bytes out beyond this many of each chunk.
    pub max_bytes: Option<u64>,
}

/// A question for lines of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LogQuery {
    pub limit: u64,
    pub direction: Direction,
    pub position: Position,
    /// First and last time, inclusive.
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub levels: Vec<Level>,
    /// Words: `+required`, `-excluded`, `"a phrase"`; of the others, one. Never an error, whatever it is.
    pub text: Option<String>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LogRow {
    /// Dense per node, from 0.
    pub id: u64,
    pub time: Timestamp,
    pub level: Level,
    pub section: String,
    pub message: String,
}
