//! Hashes and identifiers, and their text: base58check with a prefix that makes it begin with fixed letters.

use std::fmt;

use blake2::digest::consts::{U16, U32};
use blake2::{Blake2b, Digest};
use serde::{Serialize, Serializer};
use sha2::Sha256;

use super::read::{Cursor, Decode, DecodeError};

/// Maximum of prefix, payload and checksum, in bytes.
const MAX_BYTES: usize = 3 + 32 + 4;
/// Maximum of the text: 138 characters for 100 bytes, rounded up.
const MAX_TEXT: usize = MAX_BYTES * 138 / 100 + 1;

/// Writes prefix and payload in base58 with a checksum.
fn write(f: &mut fmt::Formatter<'_>, prefix: &[u8], payload: &[u8]) -> fmt::Result {
    let mut bytes = [0; MAX_BYTES];
    let size = prefix.len() + payload.len();
    bytes[..prefix.len()].copy_from_slice(prefix);
    bytes[prefix.len()..size].copy_from_slice(payload);
    let checksum = Sha256::digest(Sha256::digest(&bytes[..size]));
    bytes[size..size + 4].copy_from_slice(&checksum[..4]);
    let mut text = [0; MAX_TEXT];
    let written = bs58::encode(&bytes[..size + 4]).onto(&mut text[..]);
    let text = written.ok().and_then(|length| text.get(..length));
    f.write_str(
        text.and_then(|t| str::from_utf8(t).ok())
            .ok_or(fmt::Error)?,
    )
}

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident: $size:literal bytes, $prefix:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub [u8; $size]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write(f, &$prefix, &self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'a> Decode<'a> for $name {
            fn decode(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
                cursor.array().map(Self)
            }
        }
    )*};
}

identifiers! {
    /// A chain, `Net…`.
    ChainId: 4 bytes, [87, 82, 0];
    /// A block, `B…`: the hash of its header.
    BlockHash: 32 bytes, [1, 52];
    /// An operation, `o…`: the hash of its branch and its data.
    OperationHash: 32 bytes, [5, 116];
    /// The operations of a block, `LLo…`.
    OperationListListHash: 32 bytes, [29, 159, 109];
    /// The state of the ledger, `Co…`.
    ContextHash: 32 bytes, [79, 199];
    /// A version of the economic protocol, `P…`.
    ProtocolHash: 32 bytes, [2, 170];
    /// A node, `id…`: the hash of its public key.
    PeerId: 16 bytes, [153, 103];
}

impl PeerId {
    /// The identifier of the node that has a public key.
    pub fn of(public_key: &[u8; 32]) -> Self {
        Self(Blake2b::<U16>::digest(public_key).into())
    }
}

impl BlockHash {
    /// The hash of a block's encoded header.
    pub fn of(header: &[u8]) -> Self {
        Self(hash(header))
    }
}

impl OperationHash {
    /// The hash of an operation's branch and data.
    pub fn of(operation: &[u8]) -> Self {
        Self(hash(operation))
    }
}

/// BLAKE2b-256.
fn hash(bytes: &[u8]) -> [u8; 32] {
    Blake2b::<U32>::digest(bytes).into()
}
