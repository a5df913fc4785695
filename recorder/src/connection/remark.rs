//! Remarks on a connection: the comments of the API.

use std::fmt;

use crate::p2p::base58::PeerId;
use crate::p2p::pow::Target;
use crate::side::Side;

/// Something unusual on a connection of a node. Its text is that of the original network recorder, where that has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remark {
    /// The connection message of `sender` has no proof of work of that target.
    BadProofOfWork {
        /// The sender.
        sender: Side,
        /// The target.
        target: Target,
    },
    /// The connection message of `sender` is too short for its fields.
    TooShort {
        /// The sender.
        sender: Side,
        /// Its size without its length, in bytes.
        bytes: usize,
    },
    /// The first chunk of `sender` does not follow the grammar of a connection message.
    NotConnectionMessage {
        /// The sender.
        sender: Side,
    },
    /// The tag of a chunk does not match, although no bytes were lost before it.
    CannotDecrypt {
        /// The sender.
        sender: Side,
        /// Number of the chunk.
        chunk: u64,
    },
    /// Bytes were not captured.
    BytesLost {
        /// The sender.
        sender: Side,
        /// Number of the first chunk of which bytes are missing; an estimate while chunks are searched.
        chunk: u64,
        /// Offset of the first byte in the direction.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Decryption goes on after lost bytes.
    Resumed {
        /// The sender.
        sender: Side,
        /// Number of the chunk.
        chunk: u64,
        /// Offset of the chunk in the direction.
        offset: u64,
        /// Number of chunks that were lost, in whole or in part.
        lost: u64,
    },
    /// Chunks are not decrypted any more.
    Undecryptable {
        /// The sender.
        sender: Side,
        /// Number of the first such chunk.
        since: u64,
        /// The reason.
        reason: Undecryptable,
    },
}

/// Why chunks are not decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecryptable {
    /// Bytes of the connection message of `sender` are missing, and with them the nonces of both directions.
    ConnectionMessageLost {
        /// The sender.
        sender: Side,
    },
    /// The connection message of `sender` has no public key.
    NoPublicKey {
        /// The sender.
        sender: Side,
    },
    /// The connection message of `sender` did not come before the other side had sent more than is held.
    ConnectionMessageLate {
        /// The sender.
        sender: Side,
    },
    /// The next chunk after lost bytes was not found, in about two seconds of work or 1 MiB.
    NotFound,
}

impl fmt::Display for Undecryptable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionMessageLost { sender } => write!(
                f,
                "bytes of the {} connection message were lost, from which the nonces are derived",
                sender.direction()
            ),
            Self::NoPublicKey { sender } => write!(
                f,
                "the {} connection message has no public key",
                sender.direction()
            ),
            Self::ConnectionMessageLate { sender } => write!(
                f,
                "the {} connection message did not come",
                sender.direction()
            ),
            Self::NotFound => f.write_str("the next chunk was not found after lost bytes"),
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadProofOfWork { sender, target } => write!(
                f,
                "{} connection message bad proof-of-work, target: {target}",
                sender.direction()
            ),
            Self::TooShort { sender, bytes } => write!(
                f,
                "{} connection message is too short: {bytes} bytes",
                sender.direction()
            ),
            Self::NotConnectionMessage { sender } => write!(
                f,
                "{} data does not look like a connection message",
                sender.direction()
            ),
            Self::CannotDecrypt { sender, chunk } => write!(
                f,
                "{} chunk cannot decrypt, position: {chunk}",
                sender.direction()
            ),
            Self::BytesLost {
                sender,
                chunk,
                length,
                ..
            } => write!(
                f,
                "{} message lack chunks, at: {chunk} ({length} bytes were not captured)",
                sender.direction()
            ),
            Self::Resumed {
                sender,
                chunk,
                lost,
                ..
            } => write!(
                f,
                "{} chunks go on with {chunk}, {lost} were lost",
                sender.direction()
            ),
            Self::Undecryptable {
                sender,
                since,
                reason,
            } => write!(
                f,
                "{} chunks are undecryptable since chunk {since}: {reason}",
                sender.direction()
            ),
        }
    }
}

/// Why a connection is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The node's first bytes are not those of a connection message.
    NotP2p,
    /// The public key in the node's connection message is not that of a configured identity.
    OtherKey(PeerId),
    /// The peer sends and the node does not, as no node would.
    Silent,
    /// The connection was opened before the recorder started: its nonces are not known to anybody but both ends.
    OpenedBefore,
    /// The node's first bytes were lost, so that the connection cannot be recognised.
    FirstBytesLost,
    /// No identity was found before the connection had sent more than is held.
    IdentityLate,
    /// The connection ended before it was recognised.
    Ended,
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotP2p => "outgoing data does not look like a connection message",
            Self::OtherKey(_) => {
                "outgoing connection message public key does not match with identity"
            }
            Self::Silent => "the node does not send, so that this is no peer-to-peer connection",
            Self::OpenedBefore => {
                "opened before the recorder, so that its nonces are not known; it is recorded from its next handshake on"
            }
            Self::FirstBytesLost => "the first outgoing bytes were lost",
            Self::IdentityLate => "the node's identity was not found in time",
            Self::Ended => "it ended before the node had sent a connection message",
        })
    }
}
