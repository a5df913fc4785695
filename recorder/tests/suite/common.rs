//! The worked examples of `data/vectors.json`, and bytes in hexadecimal.

use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tezos_recorder::p2p::identity::Identity;
use tezos_recorder::p2p::json::Hex;

/// All examples.
pub fn vectors() -> &'static Value {
    static VECTORS: OnceLock<Value> = OnceLock::new();
    VECTORS.get_or_init(|| serde_json::from_str(include_str!("../data/vectors.json")).unwrap())
}

/// The elements of an array, of which there must be some.
pub fn each(value: &Value) -> std::slice::Iter<'_, Value> {
    let array = value.as_array().unwrap();
    assert!(!array.is_empty());
    array.iter()
}

/// A text.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Bytes.
pub fn bytes(value: &Value) -> Vec<u8> {
    unhex(text(value))
}

/// Bytes of hexadecimal digits.
pub fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// An array of bytes.
pub fn array<const N: usize>(value: &Value) -> [u8; N] {
    bytes(value).try_into().unwrap()
}

/// One of the identities: `initiator` or `responder`.
pub fn identity(name: &str) -> Identity {
    Identity::parse(&vectors()["identities"][name].to_string()).unwrap()
}

/// The plain bytes of a message; the largest has its text made here, as in `vectors.py`.
pub fn plain(message: &Value) -> Vec<u8> {
    if let Some(digits) = message["plain"].as_str() {
        return unhex(digits);
    }
    let mut plain = bytes(&message["plain_head"]);
    let size = message["plain_length"].as_u64().unwrap() as usize;
    // It ends with the component `last`, without interface and implementation.
    let last = [&[0, 0, 0, 4][..], b"last", &[0], &[0; 4]].concat();
    let source = b"let x = 0\n".iter().cycle().skip(plain.len() - 50);
    plain.extend(source.take(size - plain.len() - last.len()));
    plain.extend(last);
    let hash = Hex(&Sha256::digest(&plain)).to_string();
    assert_eq!(hash, text(&message["plain_sha256"]));
    plain
}
