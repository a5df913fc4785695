//! Logs of pseudo nodes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;

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
    /// The process that ended the connection.
    pub pid: u32,
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
