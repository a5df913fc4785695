//! What a store is given.

use std::net::SocketAddr;

use crate::connection::State;
use crate::p2p::message::{Category, Kind};
use crate::side::{Both, Side};
use crate::stream::Traffic;
use crate::time::Timestamp;

/// A connection's id: when it was opened or first seen, in nanoseconds since 1970. The source makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Something to store.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A connection, as it is known now; replaces what was stored of it.
    Connection(Box<ConnectionEntry>),
    /// A chunk, or bytes outside of chunks.
    Chunk(ChunkEntry),
    /// A message. Its chunks came before.
    Message(Box<MessageEntry>),
    /// A line of the node's log.
    Log(LogEntry),
}

/// A connection of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionEntry {
    /// The id.
    pub id: ConnectionId,
    /// The peer's address.
    pub address: SocketAddr,
    /// Who opened it, if that is known.
    pub initiator: Option<Side>,
    /// The peer's id, `id…`, once its connection message was read.
    pub peer_id: Option<String>,
    /// JSON of both connection messages, as [`MessageDetails::message`](super::MessageDetails::message) has it.
    pub connection_messages: Both<Option<String>>,
    /// JSON of both metadata messages.
    pub metadata: Both<Option<String>>,
    /// JSON of both answers to the handshake.
    pub acks: Both<Option<String>>,
    /// When its last byte was captured.
    pub last: Timestamp,
    /// When it ended, if that was seen.
    pub ended: Option<Timestamp>,
    /// How far its recording has come.
    pub status: ConnectionStatus,
    /// Bytes that each side sent, and those of them that were not captured.
    pub traffic: Both<Traffic>,
    /// Number of chunks of each side.
    pub chunks: Both<u64>,
    /// Why it is not recorded, if it is not.
    pub ignored: Option<String>,
    /// Remarks in order, at most some hundreds: the comments of the original API.
    pub remarks: Vec<(Timestamp, String)>,
}

/// How far the recording of a connection has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The state.
    pub state: State,
    /// The name of the reason for it, in snake case.
    pub reason: Option<String>,
    /// Number of gaps: of times that bytes were not captured.
    pub gaps: u64,
    /// True if nothing more is recorded and the end was not seen, so that its time is not known.
    pub end_unseen: bool,
}

/// A chunk, or bytes outside of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// The connection.
    pub connection: ConnectionId,
    /// Who sent it.
    pub sender: Side,
    /// The number in the direction; `None` for bytes among which no chunks are known.
    pub number: Option<u64>,
    /// Offset of the first byte in the direction.
    pub offset: u64,
    /// When the last byte was captured.
    pub time: Timestamp,
    /// The captured bytes, with the length.
    pub raw: Vec<u8>,
    /// The plain text; `None` if it cannot be decrypted.
    pub plain: Option<Vec<u8>>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageEntry {
    /// The connection.
    pub connection: ConnectionId,
    /// The peer's address.
    pub address: SocketAddr,
    /// Who opened the connection, if that is known.
    pub initiator: Option<Side>,
    /// Who sent the message.
    pub sender: Side,
    /// The kind.
    pub kind: Kind,
    /// When the last byte was captured.
    pub time: Timestamp,
    /// First and last number of its chunks.
    pub chunks: (u64, u64),
    /// Where it begins in the plain text of its first chunk.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The first bytes of its JSON, at most [`PREVIEW`](crate::connection::MessageEvent::PREVIEW).
    pub preview: Option<String>,
    /// The hash of the block or operation in it, in base58.
    pub hash: Option<String>,
    /// How it breaks the grammar.
    pub error: Option<String>,
}

impl MessageEntry {
    /// The category.
    pub fn category(&self) -> Category {
        self.kind.category()
    }
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The time that the line has, else when it was received.
    pub time: Timestamp,
    /// The level.
    pub level: Level,
    /// The part of the node that wrote it; empty if the line has none.
    pub section: String,
    /// The text.
    pub message: String,
}

/// The level of a line, from the least to the most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Level {
    Trace,
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Fatal,
}

impl Level {
    /// All levels, in that order.
    pub const ALL: [Self; 7] = [
        Self::Trace,
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Fatal,
    ];

    /// The name as the API writes it: `Warning`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "Trace",
            Self::Debug => "Debug",
            Self::Info => "Info",
            Self::Notice => "Notice",
            Self::Warning => "Warning",
            Self::Error => "Error",
            Self::Fatal => "Fatal",
        }
    }

    /// The level with a name, in any case; `warn` is `Warning`.
    pub fn of_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("warn") {
            return Some(Self::Warning);
        }
        let mut all = Self::ALL.into_iter();
        all.find(|level| level.name().eq_ignore_ascii_case(name))
    }
}
