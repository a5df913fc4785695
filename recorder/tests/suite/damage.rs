//! Messages that are cut, damaged or made of arbitrary bytes: no panic, bounded work, and errors that say where.

use proptest::prelude::*;
use tezos_recorder::p2p::message::{Kind, Layer, decode, decode_handshake};

use crate::check;
use crate::common::{bytes, each, plain, vectors};
use crate::effort;

/// The plain bytes of one message of each kind, without the largest.
fn messages() -> Vec<Vec<u8>> {
    let messages = each(&vectors()["messages"]).map(plain);
    let messages: Vec<_> = messages.filter(|plain| plain.len() < 10_000).collect();
    assert_eq!(messages.len(), 23);
    messages
}

/// The same message with another length in its header.
fn with_length(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&length[..], body].concat()
}

#[test]
fn every_prefix_of_every_message_is_an_error_or_a_message() {
    for message in messages() {
        let whole = decode(&message, Layer::Node);
        for size in 0..message.len() {
            check::message(&message[..size]);
            let cut = decode(&message[..size], Layer::Node);
            assert!(cut.error.is_some(), "{} of {} bytes", size, message.len());
            let kind = if size < 6 { Kind::Unknown } else { whole.kind };
            assert_eq!(cut.kind, kind);
        }
        for size in 2..message.len() - 4 {
            // Some bodies may end anywhere.
            check::message(&with_length(&message[4..4 + size]));
        }
    }
}

#[test]
fn every_flipped_bit_of_every_message_is_survived() {
    for mut message in messages() {
        for bit in 0..8 * message.len() {
            message[bit / 8] ^= 1 << (bit % 8);
            check::message(&message);
            message[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn bytes_after_the_end_are_an_error_and_the_message_is_kept() {
    let mut without = Vec::new();
    for message in messages() {
        let whole = decode(&message, Layer::Node);
        let longer = with_length(&[&message[4..], &[7, 7, 7]].concat());
        let decoded = decode(&longer, Layer::Node);
        check::message(&longer);
        if let Some(message) = decoded.message.filter(|_| decoded.error.is_some()) {
            assert_eq!(Some(message), whole.message);
            let error = decoded.error.unwrap().to_string();
            assert!(error.ends_with("3 bytes are left over"), "{error}");
        } else {
            without.push(decoded.kind.name());
        }
    }
    // Their last field extends to the end of the message.
    let to_the_end = [
        "advertise",
        "current_branch",
        "block_header",
        "operation",
        "operations_for_blocks",
        "checkpoint",
        "protocol_branch",
        "predecessor_header",
    ];
    assert_eq!(without, to_the_end);
}

#[test]
fn errors_name_the_place_and_the_reason() {
    let error = |body: &[u8]| {
        let message = with_length(body);
        decode(&message, Layer::Node).error.unwrap().to_string()
    };
    assert_eq!(error(&[]), "at byte 0: a message without a tag");
    assert_eq!(error(&[0]), "at byte 4: 2 bytes are needed, and 1 are left");
    assert_eq!(
        error(&[0, 0x13, 1]),
        "at byte 6: 4 bytes are needed, and 1 are left"
    );
    assert_eq!(error(&[0, 0x01, 1]), "at byte 6: 1 bytes are left over");
    assert_eq!(
        error(&[0, 0x20, 0, 0, 0, 9, 1]),
        "at byte 6: 9 bytes are needed, and 1 are left"
    );
    let path = [&[0, 0x61][..], &[1; 33], &[0x77]].concat();
    assert_eq!(error(&path), "at byte 39: 0x77 is no path");
    let deep = [&[0, 0x61][..], &[1; 33], &[0xf0; 4], &[0; 129]].concat();
    assert_eq!(error(&deep), "at byte 42: more than 3 elements");
    let many = [&[0, 0x20, 0, 0, 1, 96][..], &[3; 352]].concat();
    assert_eq!(error(&many), "at byte 330: more than 10 elements");
    let header = [&[0; 78][..], &[0; 4], &[0; 32]].concat();
    let head = |valid: u32, pending: u32| {
        let size = |bytes: u32| bytes.to_be_bytes();
        let hashes = |count: u32| vec![7; 32 * count as usize];
        let parts: [&[u8]; 8] = [
            &[0, 0x14, 1, 2, 3, 4],
            &size(header.len() as u32),
            &header,
            &size(32 * valid),
            &hashes(valid),
            &size(4 + 32 * pending),
            &size(32 * pending),
            &hashes(pending),
        ];
        with_length(&parts.concat())
    };
    assert_eq!(decode(&head(3999, 1), Layer::Node).error, None);
    let many = decode(&head(3999, 2), Layer::Node).error.unwrap();
    assert_eq!(many.to_string(), "at byte 128: more than 4000 elements");
    let point = [&[0, 3, 0, 0, 0, 48][..], &[b'1'; 48]].concat();
    assert_eq!(error(&point), "at byte 6: 52 bytes, more than 51");
    let long = [&[0, 0x31][..], &[1; (128 << 10) + 1]].concat();
    assert_eq!(error(&long), "at byte 0: 131073 bytes, more than 131072");
    let wrong = decode(&[0, 0, 0, 9, 0, 1], Layer::Node).error.unwrap();
    assert_eq!(
        wrong.to_string(),
        "at byte 0: the message's length is 9, and it has 2 bytes"
    );
    let meta = decode_handshake(1, &[0, 1]).error.unwrap();
    assert_eq!(meta.to_string(), "at byte 1: 0x01 is no boolean");
    let ack = decode_handshake(2, &[9]).error.unwrap();
    assert_eq!(ack.to_string(), "at byte 0: 0x09 is no answer");
}

#[test]
fn removed_and_unknown_messages_keep_their_bytes() {
    let json = |tag: u8, layer| {
        let message = [0, 0, 0, 3, 0, tag, 0xab];
        let decoded = decode(&message, layer);
        assert_eq!(decoded.error, None);
        let json = tezos_recorder::p2p::json::json(&decoded.message, 99).text;
        (decoded.kind.name(), json)
    };
    let removed = r#"{"OperationHashesForBlocks":{"body":"ab"}}"#;
    assert_eq!(
        json(0x51, Layer::Node),
        ("operation_hashes_for_blocks", removed.into())
    );
    let unknown = r#"{"Unknown":{"tag":127,"body":"ab"}}"#;
    assert_eq!(json(0x7f, Layer::Node), ("unknown", unknown.into()));
    assert_eq!(json(0x10, Layer::Dal).0, "dal_graft");
    assert_eq!(json(0x17, Layer::Dal).0, "unknown");
}

#[test]
fn names_and_kinds_belong_to_each_other() {
    for kind in Kind::ALL {
        assert_eq!(Kind::of_name(kind.name()), Some(*kind));
    }
    assert_eq!(Kind::of_name("no such kind"), None);
}

#[test]
fn every_damaged_connection_message_is_survived() {
    let chunk = bytes(&vectors()["connection"]["initiator_chunk"]);
    for size in 0..chunk.len() - 2 {
        let decoded = decode_handshake(0, &chunk[2..2 + size]);
        assert!(decoded.error.is_some());
    }
    let mut body = chunk[2..].to_vec();
    for bit in 0..8 * body.len() {
        body[bit / 8] ^= 1 << (bit % 8);
        check::message(&body);
        body[bit / 8] ^= 1 << (bit % 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: effort::rounds(500), failure_persistence: None, ..ProptestConfig::default() })]

    /// Any body of any kind.
    #[test]
    fn arbitrary_bodies_are_survived(
        tag in prop_oneof![(0..Kind::ALL.len() as u16), 0u16..0xa0],
        body in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..300),
    ) {
        check::message(&with_length(&[&tag.to_be_bytes()[..], &body].concat()));
        check::message(&body);
    }
}
