//! Compares what a recorder has with what a pseudo node has written down.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::Value;
use tezos_recorder::side::Side;
use tezos_recorder::store::MessageRow;

use super::log::{Connection, Message, NodeLog};

/// A message as a recorder has it.
#[derive(Clone, Debug)]
pub struct Item {
    pub kind: String,
    pub size: u64,
    /// In nanoseconds since 1970.
    pub time_ns: u64,
    pub error: Option<String>,
    /// Of the plain bytes, if the recorder was asked for them.
    pub sha256: Option<String>,
    /// First and last, if they are known.
    pub chunks: Option<(u64, u64)>,
}

/// A connection as a recorder has it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The peer's address.
    pub remote: SocketAddr,
    /// Who opened it; the recorded node is local.
    pub initiator: Option<Side>,
    /// In the recorder's order.
    pub sent: Vec<Item>,
    pub received: Vec<Item>,
}

/// One message of a list: connection, address, initiator, sender, message.
type Row = (u64, SocketAddr, Option<Side>, Side, Item);

/// Groups messages by connection, in the order of connections and messages.
fn group(mut rows: Vec<(u64, Row)>) -> Vec<Recorded> {
    rows.sort_by_key(|(id, row)| (row.0, *id));
    let mut recorded: Vec<(u64, Recorded)> = Vec::new();
    for (_, (connection, remote, initiator, sender, item)) in rows {
        if recorded.last().is_none_or(|(last, _)| *last != connection) {
            recorded.push((
                connection,
                Recorded {
                    remote,
                    initiator,
                    sent: Vec::new(),
                    received: Vec::new(),
                },
            ));
        }
        let (_, last) = recorded.last_mut().unwrap();
        match sender {
            Side::Local => last.sent.push(item),
            Side::Remote => last.received.push(item),
        }
    }
    recorded.into_iter().map(|(_, recorded)| recorded).collect()
}

/// The connections of rows of the store, in any order.
pub fn from_rows(rows: &[MessageRow]) -> Vec<Recorded> {
    let row = |row: &MessageRow| {
        let item = Item {
            kind: row.kind.name().into(),
            size: row.size,
            time_ns: row.time.0,
            error: row.error.clone(),
            sha256: None,
            chunks: None,
        };
        let address = SocketAddr::new(row.address.ip().to_canonical(), row.address.port());
        (
            row.id,
            (row.connection.0, address, row.initiator, row.sender, item),
        )
    };
    group(rows.iter().map(row).collect())
}

/// The connections of the elements of `GET /v4/messages`, in any order.
pub fn from_json(rows: &[Value]) -> Vec<Recorded> {
    let row = |row: &Value| {
        let text = |name: &str| {
            row[name]
                .as_str()
                .unwrap_or_else(|| panic!("no {name} in {row}"))
        };
        let number = |name: &str| {
            row[name]
                .as_u64()
                .unwrap_or_else(|| panic!("no {name} in {row}"))
        };
        let item = Item {
            kind: text("kind").into(),
            size: number("size"),
            time_ns: text("time").parse().unwrap(),
            error: row["error"].as_str().map(str::to_owned),
            sha256: None,
            chunks: None,
        };
        let initiator = row["initiator"].as_str().map(|name| match name {
            "local" => Side::Local,
            _ => Side::Remote,
        });
        let incoming = row["incoming"].as_bool().unwrap();
        let sender = if incoming { Side::Remote } else { Side::Local };
        let connection = text("connection").parse().unwrap();
        let address = text("address").parse().unwrap();
        (number("id"), (connection, address, initiator, sender, item))
    };
    group(rows.iter().map(row).collect())
}

/// Compares all connections of a pseudo node with those that its recorder has: the same messages in the same order in each
/// direction. Those of one peer address are compared in the order in which they were opened.
///
/// # Errors
/// The first difference.
pub fn compare(log: &NodeLog, recorded: &[Recorded]) -> Result<(), String> {
    let mut by_peer: HashMap<SocketAddr, Vec<&Recorded>> = HashMap::new();
    for connection in recorded.iter().rev() {
        by_peer
            .entry(connection.remote)
            .or_default()
            .push(connection);
    }
    for connection in log.connections.iter().filter(|c| !c.sent.is_empty()) {
        let found = by_peer.get_mut(&connection.remote).and_then(Vec::pop);
        let found = found.ok_or_else(|| format!("no connection with {}", connection.remote))?;
        compare_connection(connection, found)?;
    }
    match by_peer.values().flatten().next() {
        Some(more) => Err(format!("a connection with {} that nobody had", more.remote)),
        None => Ok(()),
    }
}

/// Compares one connection.
///
/// # Errors
/// The first difference.
pub fn compare_connection(expected: &Connection, found: &Recorded) -> Result<(), String> {
    let initiator = if expected.initiator {
        Side::Local
    } else {
        Side::Remote
    };
    if found.initiator.is_some_and(|side| side != initiator) {
        return Err(format!(
            "{}: opened by {initiator}, not so recorded",
            found.remote
        ));
    }
    for (direction, expected, found) in [
        ("sent", &expected.sent, &found.sent),
        ("received", &expected.received, &found.received),
    ] {
        let pairs = expected.iter().zip(found).enumerate();
        for (at, (expected, found)) in pairs {
            let other = |what| {
                Err(format!(
                    "{direction} {at}: other {what}: {found:?}, not {expected:?}"
                ))
            };
            if found.kind != expected.kind {
                return other("kind");
            }
            if found.size != expected.size {
                return other("size");
            }
            if found
                .sha256
                .as_ref()
                .is_some_and(|hash| *hash != expected.sha256)
            {
                return other("bytes");
            }
            if found.chunks.is_some_and(|chunks| chunks != expected.chunks) {
                return other("chunks");
            }
            // The receiver of a message does not know that it breaks the grammar.
            if direction == "sent" && found.error.is_none() != expected.valid {
                return other("error");
            }
        }
        let (expected, found) = (expected.len(), found.len());
        if expected != found {
            return Err(format!("{direction}: {found} messages, not {expected}"));
        }
    }
    Ok(())
}

/// Checks that the recorder's times lie between those of the sender, before it sent, and of the receiver, after it had received;
/// `slack` in nanoseconds on both sides.
///
/// # Errors
/// The first time that does not.
pub fn compare_times(
    sent: &[Message],
    received: &[Message],
    found: &[Item],
    slack: u64,
) -> Result<(), String> {
    for (at, ((sent, received), found)) in sent.iter().zip(received).zip(found).enumerate() {
        let (from, to) = (sent.time_ns - slack, received.time_ns + slack);
        if !(from..=to).contains(&found.time_ns) {
            let time = found.time_ns;
            return Err(format!(
                "message {at}: {time} is not between {from} and {to}"
            ));
        }
    }
    Ok(())
}

/// Checks that two pseudo nodes agree about a connection between them.
///
/// # Errors
/// The first difference.
pub fn agree(one: &Connection, other: &Connection) -> Result<(), String> {
    for (sent, received) in [(&one.sent, &other.received), (&other.sent, &one.received)] {
        if sent.len() != received.len() {
            return Err(format!(
                "{} messages sent, {} received",
                sent.len(),
                received.len()
            ));
        }
        for (at, (sent, received)) in sent.iter().zip(received).enumerate() {
            let known = |m: &Message| (m.kind.clone(), m.size, m.sha256.clone(), m.chunks);
            if known(sent) != known(received) || sent.time_ns > received.time_ns {
                return Err(format!(
                    "message {at}: {sent:?} sent, {received:?} received"
                ));
            }
        }
    }
    Ok(())
}
