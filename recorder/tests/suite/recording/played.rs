//! A recording into which events of a source are played.

use std::net::SocketAddr;

use tezos_recorder::budget::Budget;
use tezos_recorder::captured::{Captured, Socket, What};
use tezos_recorder::connection::State;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::reconnect::{Note, Reports};
use tezos_recorder::recording::{ConnectionIds, Recording, Settings};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{ConnectionEntry, Entry};
use tezos_recorder::time::Timestamp;

use crate::check::{Peers, nodes};
use crate::play::operation;

pub const LATE: Timestamp = Timestamp(5_000_000_000);

/// Entries of the node.
#[derive(Default)]
pub struct Stored(pub Vec<Entry>);

impl Stored {
    /// The last entry of a connection that fits.
    pub fn last(&self, fits: impl Fn(&ConnectionEntry) -> bool) -> &ConnectionEntry {
        let mut connections = self.0.iter().rev().filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(&**connection),
            _ => None,
        });
        let last = connections.find(|connection| fits(connection));
        last.expect("a connection")
    }

    /// The last entry of a connection.
    pub fn connection(&self) -> &ConnectionEntry {
        self.last(|_| true)
    }

    /// The state of the newest, and its reason.
    pub fn state(&self) -> (State, Option<&str>) {
        let status = &self.connection().status;
        (status.state, status.reason.as_deref())
    }

    /// Remarks of all connections.
    pub fn remarks(&self) -> Vec<&str> {
        let connections = self.0.iter().filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(&connection.remarks),
            _ => None,
        });
        connections.flatten().map(|(_, text)| &text[..]).collect()
    }

    pub fn kinds(&self) -> Vec<(Side, Kind)> {
        let messages = self.0.iter().filter_map(|entry| match entry {
            Entry::Message(message) => Some((message.sender, message.kind)),
            _ => None,
        });
        messages.collect()
    }

    pub fn raw(&self, side: Side) -> Vec<u8> {
        let chunks = self.0.iter().filter_map(|entry| match entry {
            Entry::Chunk(chunk) if chunk.sender == side => Some(&chunk.raw[..]),
            _ => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

pub struct Played {
    pub recording: Recording,
    pub stored: Stored,
    /// Time of what is captured, and by the clock that is never set.
    pub time: Timestamp,
    pub now: Timestamp,
}

impl Played {
    pub fn new() -> Self {
        Self::reporting(Reports::default())
    }

    /// One that reports connections from before.
    pub fn reporting(reports: Reports) -> Self {
        let settings = Settings {
            ports: vec![("local".into(), 9732)],
            budget: Budget::new(64 << 20),
            max_connections: 2,
            ids: ConnectionIds::default(),
            reports,
        };
        Self {
            recording: Recording::new(settings, nodes()),
            stored: Stored::default(),
            time: Timestamp(1000),
            now: Timestamp(1000),
        }
    }

    pub fn take(&mut self, socket: u64, ports: (u16, u16), what: What<'_>) {
        let [local, remote] =
            [ports.0, ports.1].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let captured = Captured {
            socket: Socket(socket),
            time: self.time,
            local,
            remote,
            what,
        };
        let stored = &mut self.stored;
        self.recording
            .take(&captured, self.now, &mut |node, entry| {
                assert_eq!(node, "local");
                stored.0.push(entry);
            });
    }

    pub fn data(
        &mut self,
        socket: u64,
        ports: (u16, u16),
        sender: Side,
        offset: usize,
        data: &[u8],
    ) {
        let what = What::Data {
            sender,
            offset: offset as u64,
            in_order: offset as u64,
            data,
            initiator: None,
        };
        self.take(socket, ports, what);
    }

    pub fn tick(&mut self) -> bool {
        let stored = &mut self.stored;
        let entries = &mut |_: &str, entry| stored.0.push(entry);
        self.recording.tick(LATE, entries)
    }

    pub fn note(&mut self, socket: u64, text: &str) {
        let note = Note {
            socket: Socket(socket),
            node: "local".into(),
            peer_id: "idPeer".into(),
            text: text.into(),
        };
        let stored = &mut self.stored;
        self.recording
            .note(note, LATE, &mut |_: &str, entry| stored.0.push(entry));
    }

    pub fn keep_open(&mut self, sockets: &[u64]) {
        let open = sockets.iter().copied().map(Socket).collect();
        let stored = &mut self.stored;
        let entries = &mut |_: &str, entry| stored.0.push(entry);
        self.recording.keep_open(&open, LATE, entries);
    }

    /// Begins a connection with what the node sends first.
    pub fn open(&mut self, socket: u64, peers: &Peers) {
        let initiator = Some(Side::Local);
        self.take(socket, (50_000, 9732), What::Opened { initiator });
        let sent = &peers.sent.local;
        self.data(socket, (50_000, 9732), Side::Local, 0, sent);
    }

    pub fn close(&mut self, socket: u64, sent: Both<Option<u64>>) {
        self.take(socket, (50_000, 9732), What::Closed { sent });
    }
}

pub fn peers() -> Peers {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 7);
    for n in 0..5 {
        peers.send(Side::Remote, &operation(n, 100));
    }
    peers.send(Side::Local, &operation(9, 1000));
    peers
}
