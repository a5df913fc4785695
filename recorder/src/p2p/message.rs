//! Messages: their kinds, and decoding one of them.
//!
//! A peer message is a length of four bytes, a tag of two, and a body. Decoding never fails as a whole: the kind is always known,
//! and what breaks the grammar is an error with its offset, beside the message if it could be read.

pub mod blocks;
pub mod branches;
mod kind;
pub mod operations;
pub mod peers;
pub mod protocols;

use serde::Serialize;

pub use kind::{Category, Kind, Layer};

use self::blocks::{BlockHeaderMessage, GetBlockHeaders, GetPredecessorHeader, PredecessorHeader};
use self::branches::{
    Chain, Checkpoint, CurrentBranch, CurrentHead, Deactivate, GetProtocolBranch, ProtocolBranch,
};
use self::operations::{
    GetOperations, GetOperationsForBlocks, OperationMessage, OperationsForBlocks,
};
use self::peers::{Advertise, Swap};
use self::protocols::{GetProtocols, ProtocolMessage};
use super::base58::{BlockHash, OperationHash};
use super::handshake::{Ack, ConnectionMessage, Metadata};
use super::json::Hex;
use super::read::{Cursor, Decode, DecodeError, Reason};

/// Bytes of a peer message's length.
pub const LENGTH: usize = 4;
/// Bytes of a peer message's length and tag.
pub const HEADER: usize = LENGTH + 2;
/// Maximum length of a peer message by protocol, in bytes.
pub const MAX_LENGTH: u64 = 100 << 20;

/// A message. Its JSON is that of the original network recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Message<'a> {
    /// Chunk 0.
    Connection(ConnectionMessage<'a>),
    /// Chunk 1.
    Metadata(Metadata),
    /// Chunk 2.
    Ack(Ack<'a>),
    /// A message of the chunks after these.
    Peer(PeerMessage<'a>),
}

/// A message that peers exchange after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "see Kind, which has the same names")]
pub enum PeerMessage<'a> {
    Disconnect,
    Bootstrap,
    Advertise(Advertise<'a>),
    SwapRequest(Swap<'a>),
    SwapAck(Swap<'a>),
    GetCurrentBranch(Chain),
    CurrentBranch(CurrentBranch<'a>),
    Deactivate(Deactivate),
    GetCurrentHead(Chain),
    CurrentHead(CurrentHead<'a>),
    GetBlockHeaders(GetBlockHeaders<'a>),
    BlockHeader(BlockHeaderMessage<'a>),
    GetOperations(GetOperations<'a>),
    Operation(OperationMessage<'a>),
    GetProtocols(GetProtocols<'a>),
    Protocol(ProtocolMessage<'a>),
    GetOperationHashesForBlocks(Opaque<'a>),
    OperationHashesForBlocks(Opaque<'a>),
    GetOperationsForBlocks(GetOperationsForBlocks<'a>),
    OperationsForBlocks(OperationsForBlocks<'a>),
    GetCheckpoint(Chain),
    Checkpoint(Checkpoint<'a>),
    GetProtocolBranch(GetProtocolBranch),
    ProtocolBranch(ProtocolBranch<'a>),
    GetPredecessorHeader(GetPredecessorHeader),
    PredecessorHeader(PredecessorHeader<'a>),
    DalGraft(Opaque<'a>),
    DalPrune(Opaque<'a>),
    DalIhave(Opaque<'a>),
    DalIwant(Opaque<'a>),
    DalSubscribe(Opaque<'a>),
    DalUnsubscribe(Opaque<'a>),
    DalMessageWithHeader(Opaque<'a>),
    Unknown(Unknown<'a>),
}

/// A message whose body is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Opaque<'a> {
    /// The body.
    pub body: Hex<'a>,
}

/// A message whose tag is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown<'a> {
    /// The tag.
    pub tag: u16,
    /// The body.
    pub body: Hex<'a>,
}

/// Hash by which the same content is recognised in other connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentHash {
    /// The hash of the block header in the message.
    Block(BlockHash),
    /// The hash of the operation in the message.
    Operation(OperationHash),
}

impl std::fmt::Display for ContentHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block(hash) => hash.fmt(f),
            Self::Operation(hash) => hash.fmt(f),
        }
    }
}

impl Message<'_> {
    /// The hash of the block or the operation that the message announces or brings. It is computed at each call.
    pub fn content_hash(&self) -> Option<ContentHash> {
        let Self::Peer(message) = self else {
            return None;
        };
        let header = match message {
            PeerMessage::Operation(message) => {
                return Some(ContentHash::Operation(message.operation.hash()));
            }
            PeerMessage::CurrentBranch(message) => &message.current_branch.current_head.0,
            PeerMessage::CurrentHead(message) => &message.current_block_header.0,
            PeerMessage::BlockHeader(message) => &message.block_header,
            PeerMessage::Checkpoint(message) => &message.header,
            PeerMessage::ProtocolBranch(message) => &message.locator.current_head.0,
            PeerMessage::PredecessorHeader(message) => &message.header,
            _ => return None,
        };
        Some(ContentHash::Block(header.hash()))
    }
}

/// The result of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// The kind, which the tag or the chunk's number determines.
    pub kind: Kind,
    /// The message; absent if it could not be read to its end.
    pub message: Option<Message<'a>>,
    /// Why it could not be read, or which rule it breaks.
    pub error: Option<DecodeError>,
}

impl<'a> Decoded<'a> {
    fn read(
        kind: Kind,
        mut cursor: Cursor<'a>,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<Message<'a>, DecodeError>,
    ) -> Self {
        let read = read(&mut cursor);
        let (message, error) = match read {
            Ok(message) => (Some(message), cursor.finish()),
            Err(error) => (None, Some(error)),
        };
        Self {
            kind,
            message,
            error,
        }
    }

    /// A message that is not decoded.
    pub(crate) fn failed(kind: Kind, offset: usize, reason: Reason) -> Self {
        let error = DecodeError { offset, reason };
        Self {
            kind,
            message: None,
            error: Some(error),
        }
    }
}

/// Decodes the plain text of a chunk of the handshake: `number` is at most 2.
pub fn decode_handshake(number: u64, body: &[u8]) -> Decoded<'_> {
    let cursor = Cursor::new(body);
    match number {
        0 => Decoded::read(Kind::ConnectionMessage, cursor, |c| {
            ConnectionMessage::decode(c).map(Message::Connection)
        }),
        1 => Decoded::read(Kind::Metadata, cursor, |c| {
            Metadata::decode(c).map(Message::Metadata)
        }),
        _ => Decoded::read(Kind::AckMessage, cursor, |c| {
            Ack::decode(c).map(Message::Ack)
        }),
    }
}

/// Decodes one peer message, with its length and its tag.
///
/// # Examples
///
/// ```
/// use tezos_recorder::p2p::json::json;
/// use tezos_recorder::p2p::message::{Kind, Layer, decode};
///
/// let decoded = decode(&[0, 0, 0, 6, 0, 0x13, 0x22, 0xc0, 0x6d, 0x04], Layer::Node);
/// assert_eq!(decoded.kind, Kind::GetCurrentHead);
/// let json = json(&decoded.message, 1000).text;
/// assert_eq!(json, r#"{"GetCurrentHead":{"chain_id":"NetXNp9yg4GyMqg"}}"#);
/// ```
pub fn decode(bytes: &[u8], layer: Layer) -> Decoded<'_> {
    let mut cursor = Cursor::new(bytes);
    let header = u32::decode(&mut cursor).and_then(|n| Ok((n, u16::decode(&mut cursor)?)));
    let (length, tag) = match header {
        Ok(header) => header,
        Err(_) if bytes.len() == LENGTH => return Decoded::failed(Kind::Unknown, 0, Reason::NoTag),
        Err(error) => return Decoded::failed(Kind::Unknown, error.offset, error.reason),
    };
    let kind = Kind::of_tag(tag, layer);
    if length as usize != bytes.len() - LENGTH {
        let (declared, bytes) = (length.into(), bytes.len() - LENGTH);
        cursor.note(0, Reason::OtherLength { declared, bytes });
    }
    if let Some(limit) = kind.limit().filter(|limit| bytes.len() - HEADER > *limit) {
        let bytes = bytes.len() - HEADER;
        cursor.note(0, Reason::TooLong { bytes, limit });
    }
    Decoded::read(kind, cursor, |c| {
        peer_message(kind, tag, c).map(Message::Peer)
    })
}

fn peer_message<'a>(
    kind: Kind,
    tag: u16,
    c: &mut Cursor<'a>,
) -> Result<PeerMessage<'a>, DecodeError> {
    use PeerMessage as M;
    Ok(match kind {
        Kind::Disconnect => M::Disconnect,
        Kind::Bootstrap => M::Bootstrap,
        Kind::Advertise => M::Advertise(Advertise::decode(c)?),
        Kind::SwapRequest => M::SwapRequest(Swap::decode(c)?),
        Kind::SwapAck => M::SwapAck(Swap::decode(c)?),
        Kind::GetCurrentBranch => M::GetCurrentBranch(Chain::decode(c)?),
        Kind::CurrentBranch => M::CurrentBranch(CurrentBranch::decode(c)?),
        Kind::Deactivate => M::Deactivate(Deactivate::decode(c)?),
        Kind::GetCurrentHead => M::GetCurrentHead(Chain::decode(c)?),
        Kind::CurrentHead => M::CurrentHead(CurrentHead::decode(c)?),
        Kind::GetBlockHeaders => M::GetBlockHeaders(GetBlockHeaders::decode(c)?),
        Kind::BlockHeader => M::BlockHeader(BlockHeaderMessage::decode(c)?),
        Kind::GetOperations => M::GetOperations(GetOperations::decode(c)?),
        Kind::Operation => M::Operation(OperationMessage::decode(c)?),
        Kind::GetProtocols => M::GetProtocols(GetProtocols::decode(c)?),
        Kind::Protocol => M::Protocol(ProtocolMessage::decode(c)?),
        Kind::GetOperationHashesForBlocks => M::GetOperationHashesForBlocks(opaque(c)),
        Kind::OperationHashesForBlocks => M::OperationHashesForBlocks(opaque(c)),
        Kind::GetOperationsForBlocks => {
            M::GetOperationsForBlocks(GetOperationsForBlocks::decode(c)?)
        }
        Kind::OperationsForBlocks => M::OperationsForBlocks(OperationsForBlocks::decode(c)?),
        Kind::GetCheckpoint => M::GetCheckpoint(Chain::decode(c)?),
        Kind::Checkpoint => M::Checkpoint(Checkpoint::decode(c)?),
        Kind::GetProtocolBranch => M::GetProtocolBranch(GetProtocolBranch::decode(c)?),
        Kind::ProtocolBranch => M::ProtocolBranch(ProtocolBranch::decode(c)?),
        Kind::GetPredecessorHeader => M::GetPredecessorHeader(GetPredecessorHeader::decode(c)?),
        Kind::PredecessorHeader => M::PredecessorHeader(PredecessorHeader::decode(c)?),
        Kind::DalGraft => M::DalGraft(opaque(c)),
        Kind::DalPrune => M::DalPrune(opaque(c)),
        Kind::DalIhave => M::DalIhave(opaque(c)),
        Kind::DalIwant => M::DalIwant(opaque(c)),
        Kind::DalSubscribe => M::DalSubscribe(opaque(c)),
        Kind::DalUnsubscribe => M::DalUnsubscribe(opaque(c)),
        Kind::DalMessageWithHeader => M::DalMessageWithHeader(opaque(c)),
        // Chunks of the handshake have no tag, so that no tag gives their kinds.
        Kind::ConnectionMessage | Kind::Metadata | Kind::AckMessage | Kind::Unknown => {
            let body = Hex(c.rest());
            M::Unknown(Unknown { tag, body })
        }
    })
}

fn opaque<'a>(cursor: &mut Cursor<'a>) -> Opaque<'a> {
    let body = Hex(cursor.rest());
    Opaque { body }
}
