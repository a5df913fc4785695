//! Events: what a store of messages takes.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::nodes::Node;
use super::remark::{Ignored, Remark};
use crate::p2p::json::{self, Json};
use crate::p2p::message::{Category, Kind, Message};
use crate::p2p::read::DecodeError;
use crate::side::Side;
use crate::time::Timestamp;

/// Something that happened on a connection, in the order of the bytes of each direction.
///
/// Of a recognised connection, each captured byte is in exactly one [`Event::Chunk`] or [`Event::Unframed`], and each byte that was
/// not captured in one [`Remark::BytesLost`].
#[derive(Debug)]
pub enum Event<'a> {
    /// The connection is one of a node's. Always the first event but for [`Event::Ignored`], after which there are none.
    Recognised {
        /// The node.
        node: &'a Arc<Node>,
        /// When the bytes were captured that show it.
        time: Timestamp,
    },
    /// The connection is not recorded.
    Ignored {
        /// The reason.
        reason: Ignored,
        /// When the bytes were captured that show it.
        time: Timestamp,
    },
    /// The first encrypted chunk was decrypted, which proves who opened the connection.
    Established {
        /// Who opened it.
        initiator: Side,
        /// When the chunk was captured.
        time: Timestamp,
    },
    /// A chunk.
    Chunk(ChunkEvent<'a>),
    /// A message, after the chunk that has its end.
    Message(&'a MessageEvent<'a>),
    /// Bytes of incomplete chunks, or among which no chunks are known: beside lost bytes.
    Unframed {
        /// The sender.
        sender: Side,
        /// Offset of the first byte in the direction.
        offset: u64,
        /// When they were captured.
        time: Timestamp,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Something unusual, for the list of connections.
    Remark {
        /// When the bytes were captured that show it.
        time: Timestamp,
        /// The remark.
        remark: Remark,
    },
}

/// A chunk.
#[derive(Clone, Copy, Debug)]
pub struct ChunkEvent<'a> {
    /// The sender.
    pub sender: Side,
    /// The number in the direction, from 0.
    pub number: u64,
    /// Offset of the first byte in the direction.
    pub offset: u64,
    /// When the first byte was captured.
    pub began: Timestamp,
    /// When the last byte was captured.
    pub time: Timestamp,
    /// The captured bytes, with the length.
    pub raw: &'a [u8],
    /// The plain text: of chunk 0, all bytes but the length; nothing if it cannot be decrypted.
    pub plain: Option<&'a [u8]>,
}

/// A message.
#[derive(Clone, Debug)]
pub struct MessageEvent<'a> {
    /// The sender.
    pub sender: Side,
    /// The kind.
    pub kind: Kind,
    /// When the first byte of its first chunk was captured.
    pub began: Timestamp,
    /// When the last byte of its last chunk was captured.
    pub time: Timestamp,
    /// Numbers of its chunks; all of them were events before.
    pub chunks: RangeInclusive<u64>,
    /// Offsets of these chunks in the direction.
    pub raw: Range<u64>,
    /// Where the message begins in the plain text of its first chunk.
    pub start: usize,
    /// Its size, in bytes; of an unfinished message, of what was captured.
    pub size: u64,
    /// Its bytes; only the first ones if it is too long to be decoded.
    pub plain: &'a [u8],
    /// The message, unless it breaks the grammar.
    pub message: Option<Message<'a>>,
    /// How it breaks the grammar, or which limit it exceeds.
    pub error: Option<DecodeError>,
}

impl MessageEvent<'_> {
    /// Maximum size of a preview, in bytes.
    pub const PREVIEW: usize = 100;

    /// The category.
    pub fn category(&self) -> Category {
        self.kind.category()
    }

    /// The JSON, cut after `limit` bytes; nothing if the message was not decoded.
    pub fn json(&self, limit: usize) -> Option<Json> {
        self.message.as_ref().map(|m| json::json(m, limit))
    }

    /// The first bytes of the JSON.
    pub fn preview(&self) -> Option<String> {
        self.json(Self::PREVIEW).map(|json| json.text)
    }

    /// The hash of the block or the operation in the message, as text.
    pub fn content_hash(&self) -> Option<String> {
        let hash = self.message.as_ref()?.content_hash()?;
        Some(hash.to_string())
    }
}
