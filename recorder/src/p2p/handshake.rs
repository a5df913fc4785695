//! The messages of the handshake: the connection message in clear, then metadata and the answer, one chunk each.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::json::{Hex, Text};
use super::message::peers::Point;
use super::read::{Cursor, Decode, DecodeError, Dynamic, List, Reason, sequences};

/// Bytes of the connection message before its versions.
const BEFORE_VERSIONS: usize = 2 + 32 + 24 + 24;
/// Bounds of the connection message in bytes, to tell it from other protocols by its length alone. A chain name has 13 to 40.
const PLAUSIBLE: std::ops::RangeInclusive<usize> = BEFORE_VERSIONS + 8..=1024;
/// Maximum number of peers in a refusal.
const MAX_PEERS: usize = 100;
/// Maximum number of versions in a connection message; early nodes sent several.
const MAX_VERSIONS: usize = 64;

/// The connection message: a node's key and versions, sent before encryption begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMessage<'a> {
    /// The port on which it listens; 0: none.
    pub port: u16,
    /// Public key of the node.
    pub public_key: [u8; 32],
    /// The stamp of its proof of work.
    pub proof_of_work_stamp: [u8; 24],
    /// Random bytes, from which the nonces are derived.
    pub message_nonce: [u8; 24],
    /// The versions that it speaks; nodes of today send one.
    pub versions: List<'a, Version<'a>, MAX_VERSIONS>,
}

sequences! {
    /// A version of the protocol.
    pub struct Version<'a> {
        /// The network, `TEZOS_MAINNET` for example; nodes of the data-availability layer add `DAL_`.
        pub chain_name: Text<'a>,
        /// Version of the peer messages.
        pub distributed_db_version: u16,
        /// Version of the handshake.
        pub p2p_version: u16,
    }

    /// Chunk 1: how the sender takes part in the network.
    pub struct Metadata {
        /// It wants no operations that are not yet in blocks.
        pub disable_mempool: bool,
        /// It must not be advertised to others.
        pub private_node: bool,
    }

    /// A refusal.
    pub struct Nack<'a> {
        /// The reason.
        pub motive: Motive,
        /// Other nodes to try.
        pub potential_peers_to_connect: Dynamic<List<'a, Point<'a>, MAX_PEERS>>,
    }
}

impl ConnectionMessage<'_> {
    /// True if chunk 0 is too short for anything but a version: not even the public key and the stamps are complete.
    pub fn is_too_short(body: &[u8]) -> bool {
        body.len() < BEFORE_VERSIONS
    }

    /// True if a chunk of that length, in bytes, may be a connection message. Text, TLS and SSH are none.
    pub fn is_plausible(length: usize) -> bool {
        PLAUSIBLE.contains(&length)
    }

    /// The public key in the body of chunk 0, even if the rest does not follow the grammar.
    pub fn public_key(body: &[u8]) -> Option<&[u8; 32]> {
        body.get(2..)?.first_chunk()
    }

    /// True if the sender is a node of the data-availability layer.
    pub fn is_dal(&self) -> bool {
        let first = self.versions.iter().next();
        first.is_some_and(|version| version.chain_name.0.starts_with(b"DAL_"))
    }
}

impl<'a> Decode<'a> for ConnectionMessage<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let message = Self {
            port: u16::decode(cursor)?,
            public_key: cursor.array()?,
            proof_of_work_stamp: cursor.array()?,
            message_nonce: cursor.array()?,
            versions: List::decode(cursor)?,
        };
        if message.versions.is_empty() {
            let (needed, left) = (8, 0);
            return Err(cursor.error(Reason::Short { needed, left }));
        }
        Ok(message)
    }
}

/// `version` is the first one; `other_versions` exists only if there are more.
impl Serialize for ConnectionMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("port", &self.port)?;
        map.serialize_entry("public_key", &Hex(&self.public_key))?;
        map.serialize_entry("proof_of_work_stamp", &Hex(&self.proof_of_work_stamp))?;
        map.serialize_entry("message_nonce", &Hex(&self.message_nonce))?;
        let mut versions = self.versions.iter();
        map.serialize_entry("version", &versions.next())?;
        if self.versions.len() > 1 {
            map.serialize_entry("other_versions", &versions.collect::<Vec<_>>())?;
        }
        map.end()
    }
}

/// Chunk 2: whether the sender accepts the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ack<'a> {
    /// It accepts.
    Ack,
    /// It refuses, without a reason: to peers that speak version 0 of the handshake.
    NackV0,
    /// It refuses.
    Nack(Nack<'a>),
}

impl<'a> Decode<'a> for Ack<'a> {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let offset = cursor.offset();
        match u8::decode(cursor)? {
            0 => Ok(Self::Ack),
            0xff => Ok(Self::NackV0),
            1 => Nack::decode(cursor).map(Self::Nack),
            value => {
                let reason = Reason::Tag {
                    of: "answer",
                    value,
                };
                Err(DecodeError { offset, reason })
            }
        }
    }
}

/// Why a node refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Motive(pub i16);

impl<'a> Decode<'a> for Motive {
    fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        i16::decode(cursor).map(Self)
    }
}

/// Writes the motive's name, or `Unknown(42)`.
impl std::fmt::Display for Motive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            0 => "NoMotive",
            1 => "TooManyConnections",
            2 => "UnknownChainName",
            3 => "DeprecatedP2pVersion",
            4 => "DeprecatedDistributedDbVersion",
            5 => "AlreadyConnected",
            other => return write!(f, "Unknown({other})"),
        })
    }
}

impl Serialize for Motive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::json;
    use super::*;

    fn connection_message(chains: &[&str]) -> Vec<u8> {
        let mut bytes = [&[0x26, 4][..], &[1; 32], &[2; 24], &[3; 24]].concat();
        for chain in chains {
            bytes.extend((chain.len() as u32).to_be_bytes());
            bytes.extend(chain.as_bytes());
            bytes.extend([0, 2, 0, 1]);
        }
        bytes
    }

    #[test]
    fn a_connection_message_has_one_version_or_more() {
        let bytes = connection_message(&["TEZOS_MAINNET"]);
        let message = ConnectionMessage::decode(&mut Cursor::new(&bytes)).unwrap();
        assert!(!message.is_dal());
        let expected = format!(
            r#"{{"port":9732,"public_key":"{}","proof_of_work_stamp":"{}","message_nonce":"{}","version":{{"chain_name":"TEZOS_MAINNET","distributed_db_version":2,"p2p_version":1}}}}"#,
            "01".repeat(32),
            "02".repeat(24),
            "03".repeat(24)
        );
        assert_eq!(json(&message, 1000).text, expected);

        let bytes = connection_message(&["DAL_X", "Y"]);
        let message = ConnectionMessage::decode(&mut Cursor::new(&bytes)).unwrap();
        assert!(message.is_dal());
        assert!(json(&message, 1000).text.contains("other_versions"));

        assert!(ConnectionMessage::decode(&mut Cursor::new(&connection_message(&[]))).is_err());
        assert!(ConnectionMessage::decode(&mut Cursor::new(&bytes[..bytes.len() - 1])).is_err());
    }

    #[test]
    fn other_protocols_are_no_connection_message() {
        for first in [
            &b"GET "[..],
            b"\x16\x03\x01\x02",
            b"SSH-",
            b"POST",
            b"\0\0\0\0",
        ] {
            let length = super::super::chunk::size(first).unwrap() - 2;
            assert!(!ConnectionMessage::is_plausible(length), "{first:?}");
        }
        let usual = connection_message(&["TEZOS_MAINNET"]).len();
        assert!(ConnectionMessage::is_plausible(usual));
    }
}
