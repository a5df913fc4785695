//! Messages as events: kinds, limits, memory, times.

use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{Connection, Event, Opening};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::p2p::read::Reason;
use tezos_recorder::side::Side;
use tezos_recorder::time::Timestamp;

use crate::check::{Log, Peers, connection, nodes, record};
use crate::play::{give, operation, recorded};

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
