//! The worked examples of `data/vectors.json`, and bytes in hexadecimal.

use std::sync::OnceLock;

use serde_json::Value;
use tezos_recorder::p2p::identity::Identity;

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
