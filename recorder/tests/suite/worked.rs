//! The worked connections of `data/vectors.json`, from captured bytes to messages.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{Connection, Node, Nodes, Opening, Remark};
use tezos_recorder::p2p::cipher::{Nonce, Opener};
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::time::Timestamp;

use crate::check::{Log, Seen, record};
use crate::common::{self, bytes, each, plain, text, vectors};
use crate::play::{end, give};

/// The bytes of each side of a worked example; what is too large to be in it is made from its plain text.
fn streams(connection: &serde_json::Value) -> Both<Vec<u8>> {
    let stream = |direction: &str| {
        let records = each(&connection[direction]);
        records
            .flat_map(|record| chunk(record, connection))
            .collect()
    };
    Both {
        local: stream("initiator_to_responder"),
        remote: stream("responder_to_initiator"),
    }
}

/// A chunk of a worked example.
fn chunk(record: &serde_json::Value, connection: &serde_json::Value) -> Vec<u8> {
    if let Some(raw) = record["raw"].as_str() {
        return common::unhex(raw);
    }
    let part = text(&record["what"])
        .chars()
        .nth("protocol, part ".len())
        .unwrap();
    let from = (part.to_digit(10).unwrap() as usize - 1) * 65_517;
    let size = record["plain_length"].as_u64().unwrap() as usize;
    let protocol = each(&vectors()["messages"]).find(|m| m["kind"] == "protocol");
    let protocol = plain(protocol.unwrap());
    let key = common::identity("initiator").channel_key(common::identity("responder").public_key());
    let first = common::array(&connection["responder_encrypts_with_first_nonce"]);
    let mut opener = Opener::new(key, Nonce(first));
    let raw = opener.seal(
        record["index"].as_u64().unwrap(),
        &protocol[from..from + size],
    );
    let raw = raw.unwrap();
    assert_eq!(
        Hex(&Sha256::digest(&raw)).to_string(),
        text(&record["raw_sha256"])
    );
    raw
}

fn swapped(streams: Both<Vec<u8>>) -> Both<Vec<u8>> {
    Both {
        local: streams.remote,
        remote: streams.local,
    }
}

/// Nodes that have one of the worked examples' identities.
fn nodes_of(name: &str) -> Arc<Nodes> {
    let node = Node {
        name: "local".into(),
        identity: common::identity(name),
        target: Target::MAINNET,
    };
    Arc::new(Nodes {
        known: vec![Arc::new(node)],
        awaited: false,
    })
}

/// Records both streams, in pieces of `size` bytes by turns.
fn play(nodes: Arc<Nodes>, opening: Opening, streams: &Both<Vec<u8>>, size: usize) -> Log {
    let mut connection = Connection::new(nodes, opening, Budget::new(64 << 20));
    let mut log = Log::default();
    let longest = streams.local.len().max(streams.remote.len());
    for from in (0..longest).step_by(size) {
        for side in Side::BOTH {
            let sent = streams.of(side);
            if from < sent.len() {
                let record = record(sent, from, from + size, from as u64);
                connection.record(side, &record, Timestamp(0), &mut |event| log.take(event));
            }
        }
    }
    end(&mut connection, &mut log);
    for side in Side::BOTH {
        log.check_bytes(side, streams.of(side));
        assert_eq!(log.lost(side), 0);
    }
    log
}

/// Compares what was recorded with a worked example.
fn check_worked_example(log: &Log, example: &serde_json::Value, side: Side, direction: &str) {
    let chunks: Vec<_> = log.chunks.iter().filter(|c| c.0 == side).collect();
    let records: Vec<_> = each(&example[direction]).collect();
    assert_eq!(chunks.len(), records.len());
    for ((_, number, plain), record) in chunks.into_iter().zip(records) {
        let plain = plain.as_ref().expect("it is decrypted");
        assert_eq!(*number, record["index"].as_u64().unwrap());
        match record["plain"].as_str() {
            Some(digits) => assert_eq!(Hex(plain).to_string(), digits),
            None => {
                let hash = Hex(&Sha256::digest(plain)).to_string();
                assert_eq!(hash, text(&record["plain_sha256"]));
            }
        }
    }
}

#[test]
fn the_worked_connection_is_read_from_both_ends() {
    let example = &vectors()["connection"];
    let sent = streams(example);
    let seen = true;
    for size in [1, 17, 1000, 1 << 20] {
        for (name, streams, initiator) in [
            ("initiator", sent.clone(), Side::Local),
            ("responder", swapped(sent.clone()), Side::Remote),
        ] {
            for hint in [None, Some(Side::Local), Some(Side::Remote)] {
                let opening = Opening {
                    initiator: hint,
                    seen,
                };
                let log = play(nodes_of(name), opening, &streams, size);
                assert_eq!(log.initiator, Some(initiator));
                assert_eq!(log.remarks, []);
                check_worked_example(&log, example, initiator, "initiator_to_responder");
                check_worked_example(&log, example, initiator.other(), "responder_to_initiator");
                check_messages(&log, initiator);
            }
        }
    }
}

/// The messages are those of the worked examples, odd ones by the initiator, even ones by the responder.
fn check_messages(log: &Log, initiator: Side) {
    let expected: Vec<_> = each(&vectors()["messages"]).collect();
    for (side, skip) in [(initiator, 0), (initiator.other(), 1)] {
        let seen: Vec<&Seen> = log.messages.iter().filter(|m| m.sender == side).collect();
        let handshake = [Kind::ConnectionMessage, Kind::Metadata, Kind::AckMessage];
        assert!(
            seen.iter()
                .zip(handshake)
                .all(|(seen, kind)| seen.kind == kind)
        );
        let mut seen = seen[3..].iter();
        for message in expected.iter().skip(skip).step_by(2) {
            let seen = seen.next().unwrap();
            assert_eq!(seen.kind.name(), text(&message["kind"]));
            assert_eq!(seen.error, None);
            if message["kind"] != "protocol" {
                assert_eq!(seen.plain, bytes(&message["plain"]));
                let json: serde_json::Value =
                    serde_json::from_str(seen.json.as_ref().unwrap()).unwrap();
                assert_eq!(json, message["json"]);
            } else {
                assert_eq!((seen.plain.len(), seen.chunks), (150_053, (10, 12)));
            }
        }
        let rest: Vec<_> = seen.map(|seen| (seen.kind.name(), seen.chunks)).collect();
        let expected = [
            ("bootstrap", (15, 15)),
            ("get_current_head", (15, 15)),
            ("operation", (16, 18)),
            ("bootstrap", (18, 19)),
            ("unknown", (20, 20)),
        ];
        assert_eq!(rest, if skip == 0 { &expected[..] } else { &[] });
    }
}

#[test]
fn refusals_are_read() {
    for example in each(&vectors()["refused"]) {
        let opening = Opening::default();
        let log = play(nodes_of("initiator"), opening, &streams(example), 50);
        let last = log.messages.last().unwrap();
        assert_eq!((last.sender, last.kind), (Side::Remote, Kind::AckMessage));
        let json: serde_json::Value = serde_json::from_str(last.json.as_ref().unwrap()).unwrap();
        assert_eq!(json, example["json"]);
    }
}

#[test]
fn the_worked_connection_with_lost_bytes_goes_on_with_chunk_19() {
    let example = &vectors()["lost_bytes"];
    let (stream, peer) = (
        bytes(&example["stream"]),
        bytes(&example["responder_chunk"]),
    );
    let number = |name: &str| example[name].as_u64().unwrap() as usize;
    let lost = number("lost_to") - number("lost_from");
    for step in [1, 100, 10_000] {
        let opening = Opening {
            initiator: Some(Side::Local),
            seen: true,
        };
        let mut connection = Connection::new(nodes_of("initiator"), opening, Budget::new(1 << 20));
        let mut log = Log::default();
        give(
            &mut connection,
            &mut log,
            Side::Remote,
            &peer,
            &[(0, peer.len())],
        );
        give(
            &mut connection,
            &mut log,
            Side::Local,
            &stream,
            &[(0, number("lost_from"))],
        );
        for from in (number("lost_to")..stream.len()).step_by(step) {
            give(
                &mut connection,
                &mut log,
                Side::Local,
                &stream,
                &[(from, from + step)],
            );
        }
        assert!(!connection.is_searching());
        end(&mut connection, &mut log);
        log.check_bytes(Side::Local, &stream);
        assert_eq!((lost, log.lost(Side::Local)), (354, 354));
        let resumed = Remark::Resumed {
            sender: Side::Local,
            chunk: number("goes_on_with_chunk") as u64,
            offset: number("goes_on_at_offset") as u64,
            lost: 6,
        };
        assert_eq!(log.remarks[1..], [resumed]);
        assert_eq!(
            resumed.to_string(),
            "outgoing chunks go on with 19, 6 were lost"
        );
        let chunks = log.chunks.iter().filter(|c| c.0 == Side::Local);
        let numbers: Vec<u64> = chunks.map(|c| c.1).collect();
        let expected: Vec<u64> = (0..13).chain(19..number("chunks") as u64).collect();
        assert_eq!(numbers, expected);
        assert!(log.messages.iter().all(|m| m.error.is_none()));
        assert_eq!(log.messages.len(), 1 + numbers.len());
    }
}
