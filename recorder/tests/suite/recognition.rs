//! Which connections are recorded, and what is said of the others.

use std::sync::Arc;

use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{Connection, Ignored, Nodes, Opening};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::stream::Record;
use tezos_recorder::time::Timestamp;

use crate::check::{Log, Peers, nodes};
use crate::common;
use crate::play::{end, give, heard, kinds, operation};

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
    let (mut connection, mut log) = heard(&peers);
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
        let (mut connection, mut log) = heard(&peers);
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
