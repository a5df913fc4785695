//! Messages with their bytes, chunks, and connections.

use tezos_recorder::p2p::message::{Kind, decode_handshake};
use tezos_recorder::side::Side;
use tezos_recorder::store::{ChunkEntry, ConnectionId, Entry, Keep, MessageEntry, Settings};
use tezos_recorder::time::Timestamp;

use super::entries::{dir, message, open, operation, put_all, with_chunk};
use crate::common::{bytes, each, plain, text, vectors};

/// Chunks of `size` plain bytes, the first with `before` bytes of another message, and the message in them.
fn split(kind: Kind, plain: &[u8], before: usize, size: usize) -> Vec<Entry> {
    let stream = [&vec![9; before][..], plain].concat();
    let parts = stream.chunks(size.max(1));
    let number = |n: usize| match kind {
        Kind::ConnectionMessage => 0,
        Kind::Metadata => 1,
        Kind::AckMessage => 2,
        _ => 5 + n as u64,
    };
    let mut entries: Vec<_> = parts
        .clone()
        .enumerate()
        .map(|(n, part)| {
            Entry::Chunk(ChunkEntry {
                connection: ConnectionId(1),
                sender: Side::Remote,
                number: Some(number(n)),
                offset: 0,
                time: Timestamp(7),
                raw: [&[1, 2][..], part].concat(),
                plain: Some(part.to_vec()),
            })
        })
        .collect();
    let message = MessageEntry {
        kind,
        chunks: (number(0), number(parts.len().saturating_sub(1))),
        start: before as u64,
        size: plain.len() as u64,
        ..message(0)
    };
    entries.push(Entry::Message(Box::new(message)));
    entries
}

#[test]
fn messages_are_decoded_again_from_their_chunks() {
    let mut count = 0;
    for example in each(&vectors()["messages"]) {
        let (kind, plain) = (
            Kind::of_name(text(&example["kind"])).unwrap(),
            plain(example),
        );
        for (before, size) in [(0, 65_517), (11, 65_517), (11, 1000), (3, 7)] {
            // The large one is described in the examples, not written out.
            let large = plain.len() > 100_000;
            if large && size < 1000 {
                continue;
            }
            let message = check_decoded(kind, &plain, before, size);
            if !large {
                assert_eq!(message, example["json"], "{kind}");
            }
            count += 1;
        }
    }
    assert!(count > 70);
    for example in each(&vectors()["refused"]) {
        let chunk = each(&example["responder_to_initiator"]).last().unwrap();
        let message = check_decoded(Kind::AckMessage, &bytes(&chunk["plain"]), 0, 65_517);
        assert_eq!(message, example["json"]);
    }
    let handshake = each(&vectors()["connection"]["initiator_to_responder"]);
    let kinds = [Kind::ConnectionMessage, Kind::Metadata, Kind::AckMessage];
    for (record, kind) in handshake.zip(kinds) {
        let plain = bytes(&record["plain"]);
        let message = check_decoded(kind, &plain, 0, 65_517);
        let decoded = decode_handshake(record["index"].as_u64().unwrap(), &plain)
            .message
            .unwrap();
        assert_eq!(message, serde_json::to_value(decoded).unwrap());
    }
}

/// Stores a message in parts, and gives its JSON.
fn check_decoded(kind: Kind, plain: &[u8], before: usize, size: usize) -> serde_json::Value {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    put_all(&store, split(kind, plain, before, size));
    let details = store
        .reader()
        .unwrap()
        .message(0, usize::MAX)
        .unwrap()
        .unwrap();
    assert!(!details.cut);
    assert_eq!(details.plain, plain);
    let chunks = (plain.len() + before).div_ceil(size);
    assert_eq!(details.raw.len(), plain.len() + before + 2 * chunks);
    serde_json::from_str(&details.message.unwrap()).unwrap()
}

#[test]
fn bytes_are_cut_and_lost_chunks_are_said() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    let plain = operation(3, 5000);
    put_all(&store, split(Kind::Operation, &plain, 10, 1000));
    let mut with_gap = split(Kind::Operation, &plain, 10, 1000);
    with_gap.remove(2);
    let moved = with_gap.into_iter().map(|entry| match entry {
        Entry::Chunk(chunk) => Entry::Chunk(ChunkEntry {
            connection: ConnectionId(2),
            ..chunk
        }),
        Entry::Message(message) => Entry::Message(Box::new(MessageEntry {
            connection: ConnectionId(2),
            ..*message
        })),
        other => other,
    });
    put_all(&store, moved);
    let reader = store.reader().unwrap();
    let whole = reader.message(0, 6000).unwrap().unwrap();
    assert!(!whole.cut && whole.message.is_some() && whole.plain == plain);
    let cut = reader.message(0, 100).unwrap().unwrap();
    assert_eq!((cut.raw.len(), &cut.plain[..]), (100, &plain[..100]));
    assert!(cut.cut && cut.message == whole.message);
    let lost = reader.message(1, 6000).unwrap().unwrap();
    assert!(lost.cut && lost.message.is_none() && !lost.plain.is_empty());
    assert_eq!(reader.message(2, 100).unwrap(), None);
}

#[test]
fn raw_bytes_can_be_left_out() {
    let (_dir, path) = dir();
    let store = open(
        &path,
        Settings {
            raw: false,
            ..Settings::default()
        },
    );
    put_all(&store, with_chunk(4, operation(1, 100), message(0)));
    let details = store.reader().unwrap().message(0, 1000).unwrap().unwrap();
    assert!(details.raw.is_empty() && details.message.is_some() && !details.cut);
}

#[test]
fn chunks_of_earlier_segments_belong_to_the_message() {
    let (_dir, path) = dir();
    let messages = Keep {
        rows: Some(128),
        ..Keep::default()
    };
    let store = open(
        &path,
        Settings {
            messages,
            ..Settings::default()
        },
    );
    let plain = operation(3, 5000);
    let mut entries = split(Kind::Operation, &plain, 0, 1000);
    let last = entries.pop().unwrap();
    // A segment has 64 rows.
    let others = |n| {
        (0..n).map(|n| {
            Entry::Message(Box::new(MessageEntry {
                connection: ConnectionId(9),
                ..message(n)
            }))
        })
    };
    put_all(
        &store,
        others(60).chain(entries).chain(others(10)).chain([last]),
    );
    assert!(store.health().segments > 1);
    let details = store.reader().unwrap().message(70, 6000).unwrap().unwrap();
    assert!(details.message.is_some() && !details.cut);
    assert_eq!(details.plain, plain);
}
