//! Connections, from captured records to messages: in order, in disorder, with lost bytes, and other traffic.

#[path = "../../fuzz/check_recorder.rs"]
#[allow(dead_code)]
mod check;
mod common;

use std::sync::Arc;

use check::{Log, Peers, Seen, connection, nodes, record};
use common::{bytes, each, text, vectors};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{
    Connection, Event, Ignored, Node, Nodes, Opening, Remark, Undecryptable,
};
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::p2p::read::Reason;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::stream::Record;
use tezos_recorder::time::Timestamp;

/// Gives parts of what a side sent, then lets the recorder do all that it can.
fn give(
    connection: &mut Connection,
    log: &mut Log,
    side: Side,
    sent: &[u8],
    parts: &[(usize, usize)],
) {
    for (from, to) in parts {
        let record = record(sent, *from, *to, 1);
        connection.record(side, &record, Timestamp(1), &mut |event| log.take(event));
    }
    let late = Timestamp(3_000_000_000);
    connection.expire(late, &mut |event| log.take(event));
    while connection.search(1 << 20, &mut |event| log.take(event)) {}
}

fn end(connection: &mut Connection, log: &mut Log) {
    connection.end(Both::default(), &mut |event| log.take(event));
}

/// What a recorder of the local side sees of peers of which nothing is lost.
fn recorded(peers: &Peers) -> Log {
    let (mut connection, mut log) = (connection(), Log::default());
    for side in Side::BOTH {
        let sent = peers.sent.of(side);
        give(&mut connection, &mut log, side, sent, &[(0, sent.len())]);
    }
    end(&mut connection, &mut log);
    log
}

fn operation(n: usize, size: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..32 + size).map(|at| (n * 31 + at * 7) as u8).collect();
    [
        &(body.len() as u32 + 2).to_be_bytes()[..],
        &[0, 0x31],
        &body,
    ]
    .concat()
}

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
    let key = common::identity("initiator").channel_key(common::identity("responder").public_key());
    let first = common::array(&connection["responder_encrypts_with_first_nonce"]);
    let mut opener =
        tezos_recorder::p2p::cipher::Opener::new(key, tezos_recorder::p2p::cipher::Nonce(first));
    let raw = opener.seal(
        record["index"].as_u64().unwrap(),
        &protocol()[from..from + size],
    );
    let raw = raw.unwrap();
    assert_eq!(
        Hex(&Sha256::digest(&raw)).to_string(),
        text(&record["raw_sha256"])
    );
    raw
}

/// The long message of the worked examples.
fn protocol() -> Vec<u8> {
    let messages = &mut each(&vectors()["messages"]);
    let message = messages.find(|m| m["kind"] == "protocol").unwrap();
    let mut plain = bytes(&message["plain_head"]);
    let last = [&[0, 0, 0, 4][..], b"last", &[0], &[0; 4]].concat();
    let size = message["plain_length"].as_u64().unwrap() as usize;
    let source = b"let x = 0\n".iter().cycle().skip(plain.len() - 50);
    plain.extend(source.take(size - plain.len() - last.len()));
    plain.extend(last);
    plain
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

fn kinds(log: &Log, side: Side) -> Vec<Kind> {
    let of_side = log.messages.iter().filter(|message| message.sender == side);
    of_side.map(|message| message.kind).collect()
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Records in disorder, some twice or overlapping: the messages are the same.
    #[test]
    fn disorder_within_the_limits_changes_nothing(
        sizes in proptest::collection::vec(0usize..900, 1..60),
        cuts in proptest::collection::vec((1usize..700, 0usize..40, any::<u32>()), 100),
    ) {
        let mut peers = Peers::connected(Side::Remote, "TEZOS_MAINNET", 1);
        for (n, size) in sizes.iter().enumerate() {
            peers.send(Side::Remote, &operation(n, *size));
        }
        let sent = &peers.sent.remote;
        let (mut parts, mut at) = (Vec::new(), 0);
        for (size, overlap, order) in cuts.iter().cycle() {
            parts.push((order % 8 + parts.len() as u32, at, at + size + overlap));
            at += size;
            if at >= sent.len() {
                break;
            }
        }
        // Each part moves by at most eight places.
        parts.sort();
        let parts: Vec<_> = parts.into_iter().map(|(_, from, to)| (from, to)).collect();
        let (mut connection, mut log) = (connection(), Log::default());
        give(&mut connection, &mut log, Side::Local, &peers.sent.local, &[(0, 1000)]);
        give(&mut connection, &mut log, Side::Remote, sent, &parts);
        end(&mut connection, &mut log);
        log.check_bytes(Side::Remote, sent);
        prop_assert_eq!(log.lost(Side::Remote), 0);
        let expected = recorded(&peers);
        prop_assert_eq!(log.messages, expected.messages);
        prop_assert_eq!(log.remarks, []);
    }

    /// Lost bytes cost no more than the chunks that they are in; each byte is accounted for.
    #[test]
    fn lost_bytes_cost_only_their_chunks(
        sizes in proptest::collection::vec(0usize..1200, 10..60),
        gaps in proptest::collection::vec((0usize..100, 1usize..4000), 1..4),
    ) {
        let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 2);
        let mut messages = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            messages.push(operation(n, *size));
            peers.send(Side::Remote, &messages[n]);
        }
        let sent = &peers.sent.remote;
        let handshake = peers.starts.remote[1];
        let mut lost = vec![false; sent.len()];
        for (at, size) in gaps {
            let from = handshake + at * (sent.len() - handshake) / 100;
            lost[from..(from + size).min(sent.len())].fill(true);
        }
        let mut parts = Vec::new();
        for (at, lost) in lost.iter().enumerate() {
            match parts.last_mut() {
                Some((_, end)) if !lost && *end == at => *end = at + 1,
                _ if !lost => parts.push((at, at + 1)),
                _ => {}
            }
        }
        let (mut connection, mut log) = (connection(), Log::default());
        give(&mut connection, &mut log, Side::Local, &peers.sent.local, &[(0, 1000)]);
        give(&mut connection, &mut log, Side::Remote, sent, &parts);
        connection.end(Both { local: None, remote: Some(sent.len() as u64) }, &mut |event| log.take(event));
        log.check_bytes(Side::Remote, sent);
        prop_assert_eq!(log.lost(Side::Remote), lost.iter().filter(|l| **l).count());
        let ends = peers.starts.remote.iter().skip(1).copied().chain([sent.len()]);
        let whole: Vec<bool> = peers.starts.remote.iter().zip(ends).map(|(from, to)| !lost[*from..to].contains(&true)).collect();
        let chunks: Vec<u64> = log.chunks.iter().filter(|c| c.0 == Side::Remote && c.2.is_some()).map(|c| c.1).collect();
        let expected: Vec<u64> = (0..whole.len() as u64).filter(|n| whole[*n as usize]).collect();
        prop_assert_eq!(&chunks, &expected);
        let seen = log.messages.iter().filter(|m| m.kind == Kind::Operation && m.error.is_none());
        let seen: Vec<&Vec<u8>> = seen.map(|m| &m.plain).collect();
        let expected: Vec<&Vec<u8>> = messages.iter().enumerate().filter(|(n, _)| whole[n + 3]).map(|(_, m)| m).collect();
        prop_assert_eq!(seen, expected);
    }

    /// Whatever the bytes say, nothing panics and each byte is accounted for.
    #[test]
    fn arbitrary_scripts_keep_the_books(script in proptest::collection::vec(any::<u8>(), 0..400)) {
        check::recorder(&script);
    }
}

#[test]
fn long_messages_lose_only_themselves() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 3);
    let long = operation(1, 200_000);
    // Operations are at most 128 KiB long, so that it is a block header in all but name.
    let long = [&long[..4], &[0, 0x21], &long[6..]].concat();
    let mut parts = Vec::new();
    for part in long.chunks(65_517) {
        parts.push(peers.send(Side::Remote, part));
    }
    for n in 0..5 {
        peers.send(Side::Remote, &operation(n, 100));
    }
    let sent = &peers.sent.remote;
    let middle = peers.starts.remote[parts[1] as usize];
    let (mut connection, mut log) = (connection(), Log::default());
    give(
        &mut connection,
        &mut log,
        Side::Local,
        &peers.sent.local,
        &[(0, 1000)],
    );
    give(
        &mut connection,
        &mut log,
        Side::Remote,
        sent,
        &[(0, middle + 10), (middle + 5000, sent.len())],
    );
    end(&mut connection, &mut log);
    log.check_bytes(Side::Remote, sent);
    let seen: Vec<_> = log.messages[5..]
        .iter()
        .map(|m| (m.kind, m.error.as_deref(), m.chunks.0))
        .collect();
    let error = Some("at byte 0: 65517 bytes of the message were captured of 200038");
    assert_eq!(seen[1], (Kind::BlockHeader, error, 3));
    let numbers: Vec<_> = seen[2..].iter().map(|m| (m.0, m.1, m.2)).collect();
    let expected: Vec<_> = (7..12).map(|n| (Kind::Operation, None, n)).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn lost_bytes_of_the_handshake_are_survived_unless_they_belong_to_a_connection_message() {
    for (from, to, expected) in [
        (0, 3, None),
        (1, 5, Some(2)),
        (2, 8, Some(3)),
        (1, 30, Some(3)),
    ] {
        let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 4);
        for n in 0..5 {
            peers.send(Side::Remote, &operation(n, 60));
        }
        let sent = &peers.sent.remote;
        let starts = &peers.starts.remote;
        let (start, next) = (starts[from] + 3, starts[from] + 3 + to);
        let (mut connection, mut log) = (connection(), Log::default());
        give(
            &mut connection,
            &mut log,
            Side::Remote,
            sent,
            &[(0, start), (next, sent.len())],
        );
        give(
            &mut connection,
            &mut log,
            Side::Local,
            &peers.sent.local,
            &[(0, 1000)],
        );
        end(&mut connection, &mut log);
        log.check_bytes(Side::Remote, sent);
        let resumed = log.remarks.iter().find_map(|remark| match remark {
            Remark::Resumed { chunk, .. } => Some(*chunk),
            _ => None,
        });
        assert_eq!(resumed, expected, "{:?}", log.remarks);
        let operations = log.messages.iter().filter(|m| m.kind == Kind::Operation);
        assert_eq!(operations.count(), if expected.is_some() { 5 } else { 0 });
        let hopeless = log.remarks.iter().filter(|remark| {
            let lost = Undecryptable::ConnectionMessageLost {
                sender: Side::Remote,
            };
            matches!(remark, Remark::Undecryptable { reason, .. } if *reason == lost)
        });
        assert_eq!(hopeless.count(), if expected.is_some() { 0 } else { 2 });
    }
}

#[test]
fn damaged_chunks_cost_only_themselves() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 5);
    for n in 0..6 {
        peers.send(Side::Remote, &operation(n, 60));
    }
    let at = peers.starts.remote[5] + 40;
    peers.sent.remote[at] ^= 4;
    let log = recorded(&peers);
    let expected = [
        Remark::CannotDecrypt {
            sender: Side::Remote,
            chunk: 5,
        },
        Remark::Resumed {
            sender: Side::Remote,
            chunk: 6,
            offset: peers.starts.remote[6] as u64,
            lost: 0,
        },
    ];
    assert_eq!(log.remarks, expected);
    assert_eq!(
        expected[0].to_string(),
        "incoming chunk cannot decrypt, position: 5"
    );
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 5);
}

#[test]
fn bytes_that_replace_those_of_the_stream_do_not_stop_it() {
    // Two chunks and a half in the middle are something else, which reads as a chunk of 16,707 bytes.
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 6);
    for n in 0..200 {
        peers.send(Side::Remote, &operation(n, 60 + n));
    }
    let starts = peers.starts.remote.clone();
    peers.sent.remote[starts[6]..starts[8] + 9].fill(0x41);
    let log = recorded(&peers);
    log.check_bytes(Side::Remote, &peers.sent.remote);
    let next = starts.iter().position(|start| *start >= starts[6] + 16_707);
    let resumed = log.remarks.iter().find_map(|remark| match remark {
        Remark::Resumed { chunk, .. } => Some(*chunk as usize),
        _ => None,
    });
    assert_eq!(resumed, next);
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 3 + 203 - next.unwrap());
}

fn ignored(nodes: Arc<Nodes>, opening: Opening, records: &[(Side, &[u8])]) -> Option<Ignored> {
    let mut connection = Connection::new(nodes, opening, Budget::new(1 << 20));
    let mut log = Log::default();
    for (side, sent) in records {
        give(&mut connection, &mut log, *side, sent, &[(0, sent.len())]);
    }
    assert_eq!(connection.is_ignored(), log.ignored.is_some());
    log.ignored
}

#[test]
fn other_traffic_is_ignored_with_its_reason() {
    let opening = Opening::default();
    let http = [
        (Side::Remote, &b"GET / HTTP/1.1\r\n\r\n"[..]),
        (Side::Local, b"HTTP/1.1 200 OK\r\n"),
    ];
    assert_eq!(ignored(nodes(), opening, &http), Some(Ignored::NotP2p));
    let silent = [(Side::Remote, &[7; 5000][..])];
    assert_eq!(ignored(nodes(), opening, &silent), Some(Ignored::Silent));
    let peers = Peers::new(Side::Local, "TEZOS_MAINNET", 7);
    let mirrored = [(Side::Local, &peers.sent.remote[..36])];
    let reason = ignored(nodes(), opening, &mirrored);
    let expected = common::identity("responder").peer_id();
    assert_eq!(reason, Some(Ignored::OtherKey(expected)));
    let short = [(Side::Local, &peers.sent.local[..35])];
    assert_eq!(ignored(nodes(), opening, &short), None);
}

#[test]
fn connections_from_before_the_recorder_are_said_to_be_so() {
    for (seen, reason) in [
        (false, Ignored::OpenedBefore),
        (true, Ignored::FirstBytesLost),
    ] {
        let opening = Opening {
            initiator: None,
            seen,
        };
        let mut connection = Connection::new(nodes(), opening, Budget::new(1 << 20));
        let mut log = Log::default();
        let record = Record {
            offset: 1 << 33,
            in_order: 1 << 33,
            time: Timestamp(5),
            data: &[1; 100],
        };
        connection.record(Side::Local, &record, Timestamp(5), &mut |event| {
            log.take(event)
        });
        assert_eq!(log.ignored, None);
        assert!(connection.deadline().is_some());
        connection.expire(Timestamp(2_000_000_005), &mut |event| log.take(event));
        assert_eq!(log.ignored, Some(reason));
        assert_eq!(connection.traffic(Side::Local).captured, 100);
    }
}

#[test]
fn handshakes_wait_for_an_identity_that_comes_later() {
    let mut peers = Peers::connected(Side::Remote, "TEZOS_MAINNET", 8);
    peers.send(Side::Local, &operation(1, 10));
    let none = Arc::new(Nodes {
        known: Vec::new(),
        awaited: true,
    });
    let mut connection = Connection::new(none, Opening::default(), Budget::new(1 << 20));
    let mut log = Log::default();
    for side in [Side::Remote, Side::Local] {
        let sent = peers.sent.of(side);
        give(&mut connection, &mut log, side, sent, &[(0, sent.len())]);
    }
    assert!(!log.recognised && log.ignored.is_none());
    connection.set_nodes(nodes(), &mut |event| log.take(event));
    end(&mut connection, &mut log);
    assert_eq!(log.messages.len(), 7);
    assert_eq!(
        log.messages[0].sender,
        Side::Remote,
        "in the order in which they came"
    );
    assert_eq!(log.initiator, Some(Side::Remote));

    let none = Arc::new(Nodes {
        known: Vec::new(),
        awaited: true,
    });
    let long = [&peers.sent.local[..], &[0; 300_000]].concat();
    let reason = ignored(none, Opening::default(), &[(Side::Local, &long)]);
    assert_eq!(reason, Some(Ignored::IdentityLate));
}

#[test]
fn a_peer_that_does_not_answer_leaves_the_connection_message() {
    let peers = Peers::new(Side::Local, "TEZOS_MAINNET", 9);
    let (mut connection, mut log) = (connection(), Log::default());
    give(
        &mut connection,
        &mut log,
        Side::Local,
        &peers.sent.local,
        &[(0, 1000)],
    );
    assert_eq!(kinds(&log, Side::Local), [Kind::ConnectionMessage]);
    give(
        &mut connection,
        &mut log,
        Side::Remote,
        &peers.sent.remote,
        &[(0, 50)],
    );
    end(&mut connection, &mut log);
    log.check_bytes(Side::Remote, &peers.sent.remote[..50]);
    assert_eq!(kinds(&log, Side::Remote), []);
}

#[test]
fn broken_connection_messages_are_remarked_upon() {
    let remark = |body: &[u8]| {
        let peers = Peers::new(Side::Local, "TEZOS_MAINNET", 10);
        let raw = [&(body.len() as u16).to_be_bytes()[..], body].concat();
        let (mut connection, mut log) = (connection(), Log::default());
        give(
            &mut connection,
            &mut log,
            Side::Local,
            &peers.sent.local,
            &[(0, 1000)],
        );
        give(
            &mut connection,
            &mut log,
            Side::Remote,
            &raw,
            &[(0, raw.len())],
        );
        end(&mut connection, &mut log);
        log.remarks
            .iter()
            .map(|remark| remark.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        remark(&[1; 33])[0],
        "incoming connection message is too short: 33 bytes"
    );
    assert_eq!(
        remark(&[1; 33])[1],
        "outgoing chunks are undecryptable since chunk 1: the incoming connection message has no public key"
    );
    assert_eq!(
        remark(&[1; 99]),
        ["incoming data does not look like a connection message"]
    );
    let worthless = [&[1; 82][..], &[0, 0, 0, 1, b'X', 0, 0, 0, 0]].concat();
    assert_eq!(
        remark(&worthless),
        ["incoming connection message bad proof-of-work, target: 26"]
    );
}

#[test]
fn messages_of_the_data_availability_layer_have_kinds_of_their_own() {
    let mut peers = Peers::connected(Side::Remote, "DAL_TEZOS_MAINNET", 11);
    peers.send(Side::Remote, &[0, 0, 0, 4, 0, 0x14, 1, 2]);
    let log = recorded(&peers);
    let last = log.messages.last().unwrap();
    assert_eq!(last.kind.name(), "dal_subscribe");
    assert_eq!(
        last.json.as_deref(),
        Some(r#"{"DalSubscribe":{"body":"0102"}}"#)
    );
}

#[test]
fn messages_that_are_too_long_are_said_to_be_so() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 12);
    // An operation of 300 KB, and one of 1 GB, of which the next chunk is no part.
    let long = operation(0, 300_000);
    for part in long.chunks(60_000) {
        peers.send(Side::Remote, part);
    }
    peers.send(Side::Remote, &[0x3f, 0, 0, 0, 0, 0x31, 1, 2]);
    peers.send(Side::Remote, &operation(1, 1));
    let log = recorded(&peers);
    let seen: Vec<_> = log.messages[6..]
        .iter()
        .map(|m| (m.kind, m.error.clone().unwrap_or_default()))
        .collect();
    let error = |reason: Reason| format!("at byte 0: {reason}");
    let expected = [
        (Kind::Operation, error(Reason::NotKept(long.len() as u64))),
        (Kind::Unknown, error(Reason::TooLongMessage(0x3f00_0004))),
        (Kind::Operation, String::new()),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn unfinished_messages_of_all_connections_share_a_budget() {
    let budget = Budget::new(120_000);
    let mut connections = Vec::new();
    for salt in 0..4 {
        let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", salt);
        let long = operation(0, 70_000);
        peers.send(Side::Remote, &long[..50_000]);
        let mut connection = Connection::new(nodes(), Opening::default(), budget.clone());
        let mut log = Log::default();
        for side in Side::BOTH {
            let sent = peers.sent.of(side);
            give(&mut connection, &mut log, side, sent, &[(0, sent.len())]);
        }
        peers.send(Side::Remote, &long[50_000..]);
        connections.push((connection, log, peers));
    }
    assert!(budget.left() < 30_000);
    let mut whole = 0;
    for (mut connection, mut log, peers) in connections {
        let sent = &peers.sent.remote;
        give(
            &mut connection,
            &mut log,
            Side::Remote,
            sent,
            &[(0, sent.len())],
        );
        let last = log.messages.last().unwrap();
        assert_eq!(last.kind, Kind::Operation);
        whole += usize::from(last.error.is_none());
    }
    assert_eq!(whole, 2);
    assert_eq!(budget.left(), 120_000);
}

#[test]
fn events_have_the_times_of_their_bytes() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 13);
    let number = peers.send(Side::Remote, &operation(0, 100));
    let start = peers.starts.remote[number as usize];
    let mut connection = connection();
    let mut times = Vec::new();
    for side in Side::BOTH {
        let sent = peers.sent.of(side);
        for (from, to, time) in [
            (0, start, 10),
            (start, start + 50, 20),
            (start + 50, 9999, 30),
        ] {
            let record = record(sent, from, to, time);
            connection.record(side, &record, Timestamp(99), &mut |event| {
                if let Event::Message(message) = event {
                    times.push((message.kind, message.began.0, message.time.0));
                }
            });
        }
    }
    assert!(times.contains(&(Kind::Operation, 20, 30)), "{times:?}");
    assert!(times.contains(&(Kind::AckMessage, 10, 10)), "{times:?}");
}
