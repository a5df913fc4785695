//! Compares what a recorder has with what a pseudo node has written down.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tezos_recorder::side::Side;
use tezos_recorder::store::MessageRow;

/// A line of a pseudo node's log.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Opened {
        initiator: bool,
        local: SocketAddr,
        remote: SocketAddr,
    },
    Message(Sent),
    Closed(Closed),
}

#[derive(Debug, Deserialize)]
struct Sent {
    direction: String,
    local: SocketAddr,
    remote: SocketAddr,
    #[serde(flatten)]
    message: Message,
}

/// A message as a pseudo node knows it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Message {
    /// Before it was sent, or after it was received, in nanoseconds since 1970.
    pub time_ns: u64,
    pub kind: String,
    pub category: String,
    /// In bytes.
    pub size: u64,
    /// Of the plain bytes.
    pub sha256: String,
    /// First and last.
    pub chunks: (u64, u64),
    /// False if it breaks the grammar; only the sender knows.
    pub valid: bool,
}

/// The end of a connection, and its sums.
#[derive(Clone, Debug, Deserialize)]
pub struct Closed {
    local: SocketAddr,
    remote: SocketAddr,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub error: Option<String>,
}

/// A connection of a pseudo node.
#[derive(Debug)]
pub struct Connection {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// True if the node opened it.
    pub initiator: bool,
    pub sent: Vec<Message>,
    pub received: Vec<Message>,
    pub closed: Option<Closed>,
}

/// The log of a pseudo node.
#[derive(Debug, Default)]
pub struct NodeLog {
    /// In the order in which they were opened.
    pub connections: Vec<Connection>,
}

impl NodeLog {
    /// Reads a log. An unfinished line at the end of the log of a running node is left out.
    pub fn read(path: &Path) -> Self {
        let (text, mut log) = (std::fs::read_to_string(path).unwrap(), Self::default());
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        // A pair of addresses can be used again.
        let mut current = HashMap::new();
        for line in whole.lines() {
            match serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}")) {
                Line::Opened {
                    initiator,
                    local,
                    remote,
                } => {
                    current.insert((local, remote), log.connections.len());
                    log.connections.push(Connection {
                        local,
                        remote,
                        initiator,
                        sent: Vec::new(),
                        received: Vec::new(),
                        closed: None,
                    });
                }
                Line::Message(sent) => {
                    let connection = &mut log.connections[current[&(sent.local, sent.remote)]];
                    match sent.direction.as_str() {
                        "sent" => connection.sent.push(sent.message),
                        _ => connection.received.push(sent.message),
                    }
                }
                Line::Closed(closed) => {
                    let at = current[&(closed.local, closed.remote)];
                    log.connections[at].closed = Some(closed);
                }
            }
        }
        log
    }

    /// Number of messages, sent and received.
    pub fn messages(&self) -> usize {
        let connections = self.connections.iter();
        connections.map(|c| c.sent.len() + c.received.len()).sum()
    }
}

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

mod tests {
    use serde_json::json;
    use tezos_recorder::p2p::message::Kind;
    use tezos_recorder::store::ConnectionId;
    use tezos_recorder::time::Timestamp;

    use super::*;

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
}
