//! Hashes and identifiers, and their text: base58check with a prefix that makes it begin with fixed letters.

use std::fmt;

use blake2::digest::consts::{U16, U32};
use blake2::{Blake2b, Digest};
use serde::{Serialize, Serializer};
use sha2::Sha256;

use super::read::{Cursor, Decode, DecodeError};

/// Maximum of prefix, payload and checksum, in bytes.
const MAX_BYTES: usize = 3 + 32 + 4;
/// Maximum of the text: five digits are at least 29.2 bits.
const MAX_TEXT: usize = 5 * (8 * MAX_BYTES).div_ceil(29);
const DIGITS: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Writes prefix and payload in base58 with a checksum.
fn write(f: &mut fmt::Formatter<'_>, prefix: &[u8], payload: &[u8]) -> fmt::Result {
    let mut bytes = [0; MAX_BYTES];
    let size = prefix.len() + payload.len();
    bytes[..prefix.len()].copy_from_slice(prefix);
    bytes[prefix.len()..size].copy_from_slice(payload);
    let checksum = Sha256::digest(Sha256::digest(&bytes[..size]));
    bytes[size..size + 4].copy_from_slice(&checksum[..4]);
    let mut text = [0; MAX_TEXT];
    f.write_str(encode(&bytes[..size + 4], &mut text))
}

/// The bytes as a number in base 58. No prefix begins with 0, which would be a digit of its own for each such byte.
fn encode<'a>(bytes: &[u8], text: &'a mut [u8; MAX_TEXT]) -> &'a str {
    // Words of 32 bits are divided by 58⁵, which gives five digits at a time.
    let mut words = [0u32; MAX_BYTES.div_ceil(4)];
    for (word, part) in words.iter_mut().zip(bytes.rchunks(4)) {
        *word = part
            .iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    let mut start = text.len();
    while words.iter().any(|word| *word != 0) {
        let mut rest = 0;
        for word in words.iter_mut().rev() {
            let dividend = rest << 32 | u64::from(*word);
            *word = (dividend / 58u64.pow(5)) as u32;
            rest = dividend % 58u64.pow(5);
        }
        for _ in 0..5 {
            start -= 1;
            text[start] = DIGITS[(rest % 58) as usize];
            rest /= 58;
        }
    }
    let zeros = text[start..].iter().take_while(|digit| **digit == b'1');
    let start = start + zeros.count();
    str::from_utf8(&text[start..]).unwrap_or_default()
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
    pub fn from_public_key(public_key: &[u8; 32]) -> Self {
        Self(Blake2b::<U16>::digest(public_key).into())
    }
}

impl BlockHash {
    /// The hash of a block's encoded header.
    pub fn from_header(header: &[u8]) -> Self {
        Self(hash(header))
    }
}

impl OperationHash {
    /// The hash of an operation's branch and data.
    pub fn from_operation(operation: &[u8]) -> Self {
        Self(hash(operation))
    }
}

/// BLAKE2b-256.
fn hash(bytes: &[u8]) -> [u8; 32] {
    Blake2b::<U32>::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_those_of_a_plain_division(first in 1u8.., rest in proptest::collection::vec(any::<u8>(), 0..MAX_BYTES)) {
            let bytes = [&[first][..], &rest].concat();
            let (mut number, mut expected) = (bytes.clone(), Vec::new());
            while number.iter().any(|byte| *byte != 0) {
                let mut remainder = 0;
                for byte in &mut number {
                    let dividend = remainder << 8 | u32::from(*byte);
                    *byte = (dividend / 58) as u8;
                    remainder = dividend % 58;
                }
                expected.insert(0, DIGITS[remainder as usize]);
            }
            let mut text = [0; MAX_TEXT];
            prop_assert_eq!(encode(&bytes, &mut text).as_bytes(), expected);
        }
    }
}
