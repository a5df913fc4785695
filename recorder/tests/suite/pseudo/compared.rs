//! The comparison of logs with rows notices every difference.

use serde_json::{Value, json};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{ConnectionId, MessageRow};
use tezos_recorder::time::Timestamp;

use super::compare::{compare, compare_times, from_json, from_rows};
use super::log::{Connection, Message, NodeLog};

/// The log of a node that listens, with two connections of one peer address, of two messages each way.
fn log() -> NodeLog {
    let message = |n: u64, kind: Kind| Message {
        time_ns: 1000 * n,
        kind: kind.name().into(),
        category: kind.category().name().into(),
        size: n,
        sha256: "00".into(),
        chunks: (n, n),
        valid: true,
    };
    let connection = |n: u64| Connection {
        local: "127.0.0.1:9732".parse().unwrap(),
        remote: "127.0.0.1:5".parse().unwrap(),
        initiator: false,
        sent: vec![message(n, Kind::Metadata), message(n + 1, Kind::Operation)],
        received: vec![
            message(n + 2, Kind::Metadata),
            message(n + 3, Kind::Bootstrap),
        ],
        closed: None,
    };
    NodeLog {
        connections: vec![connection(10), connection(20)],
    }
}

/// What the store should have of it, newest first.
fn rows() -> Vec<MessageRow> {
    let mut rows: Vec<MessageRow> = Vec::new();
    for (id, connection) in log().connections.iter().enumerate() {
        for (sender, messages) in [
            (Side::Local, &connection.sent),
            (Side::Remote, &connection.received),
        ] {
            rows.extend(messages.iter().map(|message| MessageRow {
                id: message.time_ns,
                time: Timestamp(message.time_ns),
                connection: ConnectionId(id as u64),
                address: "[::ffff:127.0.0.1]:5".parse().unwrap(),
                initiator: Some(Side::Remote),
                sender,
                kind: Kind::of_name(&message.kind).unwrap(),
                size: message.size,
                preview: None,
                hash: None,
                error: None,
            }));
        }
    }
    rows.reverse();
    rows
}

fn as_json(row: &MessageRow) -> Value {
    json!({
        "id": row.id,
        "time": row.time.0.to_string(),
        "connection": row.connection.0.to_string(),
        "address": "127.0.0.1:5",
        "initiator": "remote",
        "incoming": row.sender == Side::Remote,
        "kind": row.kind.name(),
        "category": row.kind.category().name(),
        "size": row.size,
        "error": row.error,
    })
}

/// Compares both forms of rows, which must have the same result.
fn result(rows: &[MessageRow]) -> Result<(), String> {
    let result = compare(&log(), &from_rows(rows));
    let json: Vec<Value> = rows.iter().map(as_json).collect();
    assert_eq!(compare(&log(), &from_json(&json)), result);
    result
}

#[test]
fn every_difference_is_noticed() {
    assert_eq!(result(&rows()), Ok(()));
    type Change = fn(&mut Vec<MessageRow>);
    let changes: [(Change, &str); 8] = [
        (|rows| drop(rows.remove(0)), "1 messages, not 2"),
        (|rows| rows.drain(..4).for_each(drop), "no connection with"),
        (|rows| rows[2].kind = Kind::Advertise, "other kind"),
        (|rows| rows[2].size += 1, "other size"),
        (|rows| rows[2].error = Some("short".into()), "other error"),
        (|rows| rows[0].id = 0, "received 0: other kind"),
        (|rows| rows[0].sender = Side::Local, "3 messages, not 2"),
        (
            |rows| rows[0].connection = ConnectionId(7),
            "1 messages, not 2",
        ),
    ];
    for (change, expected) in changes {
        let mut rows = rows();
        change(&mut rows);
        let error = result(&rows).unwrap_err();
        assert!(error.contains(expected), "{error}, not {expected}");
    }
    let mut more = rows();
    let mut row = more[0].clone();
    row.connection = ConnectionId(7);
    more.push(row);
    assert!(result(&more).unwrap_err().contains("nobody had"));
}

#[test]
fn times_must_lie_between_those_of_the_nodes() {
    let log = log();
    let (sent, received) = (&log.connections[0].sent, &log.connections[0].received);
    let items = |time: u64| {
        let rows = rows();
        let mut items = from_rows(&rows).remove(0).sent;
        items.iter_mut().for_each(|item| item.time_ns += time);
        items
    };
    assert_eq!(compare_times(sent, received, &items(0), 0), Ok(()));
    assert_eq!(compare_times(sent, received, &items(2000), 0), Ok(()));
    assert!(compare_times(sent, received, &items(2001), 0).is_err());
    assert_eq!(compare_times(sent, received, &items(2001), 1), Ok(()));
}
