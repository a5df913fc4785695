//! Pseudo nodes over loopback: every way to send and receive, every form of chunks and of handshakes. What the recorder's library
//! makes of the bytes that passed must be what both nodes have written down.

pub mod compare;
mod compared;
mod connections;
mod handshakes;
pub mod log;
pub mod process;
mod proxy;
mod traffic;

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tezos_recorder::budget::Budget;
use tezos_recorder::connection::{self, Event, Node, Nodes, Opening, Sink};
use tezos_recorder::p2p::identity::Identity;
use tezos_recorder::p2p::json::Hex;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::stream::Record;

use self::compare::{Item, Recorded, agree, compare_connection, compare_times};
use self::log::{Connection, NodeLog};
use self::process::Stage;
use self::proxy::{Proxy, Tapped};

/// Two nodes that have ended, and what passed between them.
struct Conversation {
    stage: Stage,
    listen: NodeLog,
    connect: NodeLog,
    taps: Vec<Tapped>,
    /// Of the node that connected, and of the one that listened.
    pids: (u32, u32),
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs two nodes with a proxy between.
fn converse(listen: &str, connect: &str) -> Conversation {
    let stage = Stage::new();
    let listener = stage.start("listen", &words(listen));
    let proxy = Proxy::to(listener.address());
    let connect = format!("{} {connect}", proxy.address());
    let connector = stage.start("connect", &words(&connect));
    let pids = (connector.pid(), listener.pid());
    let (connect, listen) = (connector.end(), listener.end());
    Conversation {
        stage,
        listen,
        connect,
        taps: proxy.taps(),
        pids,
    }
}

/// What a recorder of one node makes of a connection.
#[derive(Default)]
struct Heard {
    sent: Vec<Item>,
    received: Vec<Item>,
    remarks: Vec<String>,
    ignored: Option<String>,
    initiator: Option<Side>,
}

impl Heard {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) => {
                let item = Item {
                    kind: message.kind.name().into(),
                    size: message.size,
                    time_ns: message.time.0,
                    error: message.error.map(|e| e.to_string()),
                    sha256: Some(Hex(&Sha256::digest(message.plain)).to_string()),
                    chunks: Some((*message.chunks.start(), *message.chunks.end())),
                };
                match message.sender {
                    Side::Local => self.sent.push(item),
                    Side::Remote => self.received.push(item),
                }
            }
            Event::Remark { remark, .. } => self.remarks.push(remark.to_string()),
            Event::Ignored { reason, .. } => self.ignored = Some(reason.to_string()),
            Event::Established { initiator, .. } => self.initiator = Some(initiator),
            Event::Recognised { .. } | Event::Chunk(_) | Event::Unframed { .. } => {}
        }
    }
}

/// Records a connection for the node that connected, or for the one that listens.
fn record(stage: &Stage, tapped: &Tapped, connector: bool, sink: &mut Sink<'_>) {
    let role = if connector { "connect" } else { "listen" };
    let text = std::fs::read_to_string(stage.identity(role)).unwrap();
    let node = Node {
        name: role.into(),
        identity: Identity::parse(&text).unwrap(),
        target: Target::new(8.0).unwrap(),
    };
    let nodes = Arc::new(Nodes {
        known: vec![Arc::new(node)],
        awaited: false,
    });
    let opening = Opening {
        initiator: None,
        seen: true,
    };
    let mut connection = connection::Connection::new(nodes, opening, Budget::new(64 << 20));
    let mut offsets = Both::<u64>::default();
    for piece in &tapped.pieces {
        let side = if piece.by_connector == connector {
            Side::Local
        } else {
            Side::Remote
        };
        let offset = *offsets.of(side);
        let record = Record {
            offset,
            in_order: offset,
            time: piece.time,
            data: &piece.bytes,
        };
        connection.record(side, &record, piece.time, sink);
        *offsets.of_mut(side) += piece.bytes.len() as u64;
    }
    connection.end(Both::default(), sink);
}

/// The same, collected.
fn hear(stage: &Stage, tapped: &Tapped, connector: bool) -> Heard {
    let mut heard = Heard::default();
    record(stage, tapped, connector, &mut |event| heard.take(event));
    heard
}

impl Conversation {
    /// The connections of a log, in the order of the taps.
    fn of<'a>(&self, log: &'a NodeLog, connector: bool) -> Vec<&'a Connection> {
        let mut left: Vec<&Connection> = log.connections.iter().collect();
        let order = self.taps.iter().map(|tap| {
            let same = |c: &&Connection| match connector {
                true => Some(c.local) == tap.connector,
                false => Some(c.remote) == tap.towards_listener,
            };
            left.remove(left.iter().position(same).expect("a connection in the log"))
        });
        let order = order.collect();
        assert!(left.is_empty(), "{left:?}");
        order
    }

    /// Both logs and both recordings agree about everything; returns the number of messages.
    fn check(&self) -> usize {
        let (listen, connect) = (&self.listen, &self.connect);
        let pairs = self
            .of(connect, true)
            .into_iter()
            .zip(self.of(listen, false));
        for ((connect, listen), tapped) in pairs.zip(&self.taps) {
            agree(connect, listen).unwrap();
            for (log, connector) in [(connect, true), (listen, false)] {
                let heard = hear(&self.stage, tapped, connector);
                assert_eq!((&heard.remarks[..], &heard.ignored), (&[][..], &None));
                let initiator = if connector { Side::Local } else { Side::Remote };
                assert_eq!(heard.initiator, Some(initiator));
                let recorded = Recorded {
                    remote: log.remote,
                    initiator: heard.initiator,
                    sent: heard.sent,
                    received: heard.received,
                };
                compare_connection(log, &recorded).unwrap();
                let other = if connector { listen } else { connect };
                compare_times(&log.sent, &other.received, &recorded.sent, 0).unwrap();
                compare_times(&other.sent, &log.received, &recorded.received, 0).unwrap();
                let closed = log.closed.as_ref().expect("the connection has ended");
                assert_eq!(closed.error, None);
                assert_eq!(closed.sent_bytes, tapped.sent(connector).len() as u64);
                assert_eq!(closed.received_bytes, tapped.sent(!connector).len() as u64);
            }
        }
        connect.messages()
    }
}

/// Messages of a normal handshake.
const HANDSHAKE: usize = 6;

/// Runs two nodes with the same options, checks everything, and returns what they were.
fn checked(options: &str, messages: usize) -> Conversation {
    let conversation = converse(options, options);
    assert_eq!(conversation.check(), HANDSHAKE + 2 * messages, "{options}");
    conversation
}

fn kinds(connection: &Connection) -> Vec<&str> {
    connection.sent.iter().map(|m| m.kind.as_str()).collect()
}
