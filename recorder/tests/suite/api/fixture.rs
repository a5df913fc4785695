//! A recording: a handshake, an operation, all kinds of messages, a broken one, and some lines of the log.

use std::sync::Arc;

use tempfile::TempDir;
use tezos_recorder::api::{Api, ApiNode, ApiOptions, NodeState};
use tezos_recorder::connection::State;
use tezos_recorder::p2p::json::json;
use tezos_recorder::p2p::message::{Layer, decode, decode_handshake};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, Entry, Level, LogEntry,
    MessageEntry, Settings, Store,
};
use tezos_recorder::stream::Traffic;
use tezos_recorder::time::Timestamp;

use super::client::Server;
use crate::common::{bytes, each, plain, text, vectors};

/// When the first message came, in nanoseconds.
pub const BEGIN: u64 = 1_700_000_000_000_000_000;
/// Time between messages: 10 ms and a bit.
pub const STEP: u64 = 10_000_123;

/// The connection that the node opened, to [`MAPPED`]; that of [`VISITOR`]; and one that is not recorded.
pub const OPENED: u64 = BEGIN - 5_999_999_995;
pub const ACCEPTED: u64 = BEGIN - 4_000_000_000;
pub const IGNORED: u64 = BEGIN - 3_000_000_000;

/// An IPv4 address as dual-stack sockets have it.
pub const MAPPED: &str = "[::ffff:203.0.113.7]:9732";
pub const PLAIN: &str = "203.0.113.7:9732";
pub const VISITOR: &str = "[2001:db8::1]:40000";
pub const PEER: &str = "idso4JJr6ir2XYgwoF9aJNWi2pr5WW";

/// Number of messages of the recording: a handshake of six, an operation, 24 kinds, a broken message.
pub const MESSAGES: u64 = 6 + 1 + 24 + 1;

/// The time of a message.
pub fn time(id: u64) -> u64 {
    BEGIN + id * STEP
}

/// A store, and the directory of it, which is deleted at the end.
pub fn store(settings: Settings) -> (TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store"), settings).unwrap();
    (dir, Arc::new(store))
}

/// A node of tests.
pub fn node(name: &str, p2p_port: u16, store: &Arc<Store>) -> ApiNode {
    ApiNode {
        name: name.into(),
        p2p_port,
        store: Arc::clone(store),
        state: Some(Arc::new(|| NodeState {
            peer_id: Some(PEER.into()),
            identity: "known".into(),
            ..NodeState::default()
        })),
    }
}

pub fn options() -> ApiOptions {
    ApiOptions {
        version: "1.2.3".into(),
        commit: "c0ffee".into(),
        capture: None,
    }
}

/// A server of the recording, of a node with the usual name and port, and of another node without records.
pub struct Recording {
    pub server: Server,
    pub api: Arc<Api>,
    pub store: Arc<Store>,
    _dirs: [TempDir; 2],
}

impl Recording {
    pub fn new() -> Self {
        let (dir, store) = store(Settings::default());
        record(&store);
        let (other_dir, other) = self::store(Settings::default());
        let nodes = vec![
            node("tezedge", 9732, &store),
            node("initiator", 29732, &other),
        ];
        let api = Api::new(nodes, options());
        Self {
            server: Server::new(Arc::clone(&api)),
            api,
            store,
            _dirs: [dir, other_dir],
        }
    }
}

/// Writes the recording.
pub fn record(store: &Store) {
    let mut entries = connections();
    let (mut next, mut id) = (
        Both {
            local: 0,
            remote: 0,
        },
        0,
    );
    let mut add = |connection, sender, raw: Vec<u8>, plain: Vec<u8>| {
        let number: &mut u64 = next.of_mut(sender);
        let [chunk, message] = message(id, connection, (sender, *number), raw, plain);
        entries.extend([chunk, message]);
        *number += 1;
        id += 1;
    };
    let example = &vectors()["connection"];
    let chunk = |direction: &str, n: usize| {
        let chunk = &example[direction][n];
        (bytes(&chunk["raw"]), bytes(&chunk["plain"]))
    };
    for n in 0..3 {
        for (side, direction) in [
            (Side::Local, "initiator_to_responder"),
            (Side::Remote, "responder_to_initiator"),
        ] {
            let (raw, plain) = chunk(direction, n);
            add(OPENED, side, raw, plain);
        }
    }
    let kinds = || each(&vectors()["messages"]);
    let operation = kinds().find(|m| text(&m["kind"]) == "operation").unwrap();
    add(OPENED, Side::Local, vec![1; 20], plain(operation));
    for example in kinds() {
        add(ACCEPTED, Side::Remote, vec![2; 20], plain(example));
    }
    // An operation without its data.
    add(
        ACCEPTED,
        Side::Remote,
        vec![3; 20],
        vec![0, 0, 0, 4, 0, 0x31, 1, 2],
    );
    assert_eq!(id, MESSAGES);
    entries.extend((0..20).map(line));
    write(store, entries);
}

/// Writes entries, all of which must fit.
pub fn write(store: &Store, entries: impl IntoIterator<Item = Entry>) {
    let writer = store.writer();
    for (n, entry) in entries.into_iter().enumerate() {
        if n % 256 == 255 {
            writer.flush();
        }
        assert!(writer.put(entry));
    }
    writer.flush();
    let health = store.health();
    assert_eq!(
        (health.errors, health.failed),
        (0, 0),
        "{:?}",
        health.last_error
    );
}

/// Line `n` is of second `n` behind the first message; every third is a warning.
fn line(n: u64) -> Entry {
    Entry::Log(LogEntry {
        time: Timestamp(BEGIN + n * 1_000_000_000),
        level: if n.is_multiple_of(3) {
            Level::Warning
        } else {
            Level::Info
        },
        section: "p2p".into(),
        message: format!("line {n} of \"peer\" {}", if n == 7 { "seven" } else { "" }),
    })
}

/// A message in a chunk of its own, with that chunk.
pub fn message(
    id: u64,
    connection: u64,
    (sender, number): (Side, u64),
    raw: Vec<u8>,
    plain: Vec<u8>,
) -> [Entry; 2] {
    let is_handshake = connection == OPENED && number < 3;
    let decoded = match is_handshake {
        true => decode_handshake(number, &plain),
        false => decode(&plain, Layer::Node),
    };
    let connection = ConnectionId(connection);
    let outgoing = connection.0 == OPENED;
    let message = MessageEntry {
        connection,
        address: if outgoing { MAPPED } else { VISITOR }.parse().unwrap(),
        initiator: Some(if outgoing { Side::Local } else { Side::Remote }),
        sender,
        kind: decoded.kind,
        time: Timestamp(time(id)),
        chunks: (number, number),
        start: 0,
        size: plain.len() as u64,
        preview: decoded.message.map(|message| json(&message, 100).text),
        hash: decoded
            .message
            .and_then(|m| m.content_hash())
            .map(|h| h.to_string()),
        error: decoded.error.map(|error| error.to_string()),
    };
    let chunk = ChunkEntry {
        connection,
        sender,
        number: Some(number),
        offset: number * 1000,
        time: message.time,
        raw,
        plain: Some(plain),
    };
    [Entry::Chunk(chunk), Entry::Message(Box::new(message))]
}

fn connections() -> Vec<Entry> {
    let sum = |captured, lost| Traffic {
        captured,
        lost,
        ..Traffic::default()
    };
    let opened = ConnectionEntry {
        id: ConnectionId(OPENED),
        address: MAPPED.parse().unwrap(),
        initiator: Some(Side::Local),
        peer_id: Some(PEER.into()),
        connection_messages: Both {
            local: Some(r#"{"port":9732}"#.into()),
            remote: Some(r#"{"port":9733}"#.into()),
        },
        metadata: Both {
            local: Some(r#"{"disable_mempool":false,"private_node":false}"#.into()),
            remote: None,
        },
        acks: Both {
            local: Some(r#""Ack""#.into()),
            remote: None,
        },
        last: Timestamp(time(6)),
        ended: Some(Timestamp(time(7))),
        status: ConnectionStatus {
            state: State::PartlyDecrypted,
            reason: Some("next_chunk_not_found".into()),
            gaps: 2,
            end_unseen: false,
        },
        traffic: Both {
            local: sum(1000, 20),
            remote: sum(3000, 4),
        },
        chunks: Both {
            local: 4,
            remote: 3,
        },
        ignored: None,
        remarks: vec![(
            Timestamp(time(1)),
            "incoming connection message bad proof-of-work, target: 26".into(),
        )],
    };
    let plain = |id, address: &str| ConnectionEntry {
        id: ConnectionId(id),
        address: address.parse().unwrap(),
        initiator: Some(Side::Remote),
        peer_id: None,
        connection_messages: Both::default(),
        metadata: Both::default(),
        acks: Both::default(),
        last: Timestamp(id),
        ended: None,
        status: ConnectionStatus::default(),
        traffic: Both::default(),
        chunks: Both::default(),
        ignored: None,
        remarks: Vec::new(),
    };
    let ignored = ConnectionEntry {
        initiator: None,
        ignored: Some("opened before the recorder".into()),
        status: ConnectionStatus {
            state: State::Unrecorded,
            reason: Some("opened_before".into()),
            gaps: 0,
            end_unseen: true,
        },
        ..plain(IGNORED, "192.0.2.9:1234")
    };
    let all = [opened, plain(ACCEPTED, VISITOR), ignored];
    all.into_iter()
        .map(|c| Entry::Connection(Box::new(c)))
        .collect()
}

/// No ids.
pub const NONE: [u64; 0] = [];
