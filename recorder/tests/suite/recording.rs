//! From captured bytes to entries of the store.

use std::net::SocketAddr;

use tezos_recorder::budget::Budget;
use tezos_recorder::captured::{Captured, Socket, What};
use tezos_recorder::connection::State;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::reconnect::Reports;
use tezos_recorder::recording::{ConnectionIds, Recording, Settings};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{ConnectionEntry, Entry};
use tezos_recorder::time::Timestamp;

use crate::check::{Peers, nodes};
use crate::play::operation;

const LATE: Timestamp = Timestamp(5_000_000_000);

/// Entries of the node.
#[derive(Default)]
struct Stored(Vec<Entry>);

impl Stored {
    fn connection(&self) -> &ConnectionEntry {
        let connections = self.0.iter().rev().filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(connection),
            _ => None,
        });
        connections.into_iter().next().expect("a connection")
    }

    /// The state of the newest, and its reason.
    fn state(&self) -> (State, Option<&str>) {
        let status = &self.connection().status;
        (status.state, status.reason.as_deref())
    }

    /// Remarks of all connections.
    fn remarks(&self) -> Vec<&str> {
        let connections = self.0.iter().filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(&connection.remarks),
            _ => None,
        });
        connections.flatten().map(|(_, text)| &text[..]).collect()
    }

    fn kinds(&self) -> Vec<(Side, Kind)> {
        let messages = self.0.iter().filter_map(|entry| match entry {
            Entry::Message(message) => Some((message.sender, message.kind)),
            _ => None,
        });
        messages.collect()
    }

    fn raw(&self, side: Side) -> Vec<u8> {
        let chunks = self.0.iter().filter_map(|entry| match entry {
            Entry::Chunk(chunk) if chunk.sender == side => Some(&chunk.raw[..]),
            _ => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }
}

struct Played {
    recording: Recording,
    stored: Stored,
    /// Time of what is captured, and by the clock that is never set.
    time: Timestamp,
    now: Timestamp,
}

impl Played {
    fn new() -> Self {
        let settings = Settings {
            ports: vec![("local".into(), 9732)],
            budget: Budget::new(64 << 20),
            max_connections: 2,
            ids: ConnectionIds::default(),
            reports: Reports::default(),
        };
        Self {
            recording: Recording::new(settings, nodes()),
            stored: Stored::default(),
            time: Timestamp(1000),
            now: Timestamp(1000),
        }
    }

    fn take(&mut self, socket: u64, ports: (u16, u16), what: What<'_>) {
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

    fn data(&mut self, socket: u64, ports: (u16, u16), sender: Side, offset: usize, data: &[u8]) {
        let what = What::Data {
            sender,
            offset: offset as u64,
            in_order: offset as u64,
            data,
            initiator: None,
        };
        self.take(socket, ports, what);
    }

    fn tick(&mut self) -> bool {
        let stored = &mut self.stored;
        let entries = &mut |_: &str, entry| stored.0.push(entry);
        self.recording.tick(LATE, entries)
    }

    fn keep_open(&mut self, sockets: &[u64]) {
        let open = sockets.iter().copied().map(Socket).collect();
        let stored = &mut self.stored;
        let entries = &mut |_: &str, entry| stored.0.push(entry);
        self.recording.keep_open(&open, LATE, entries);
    }

    /// Begins a connection with what the node sends first.
    fn open(&mut self, socket: u64, peers: &Peers) {
        let initiator = Some(Side::Local);
        self.take(socket, (50_000, 9732), What::Opened { initiator });
        let sent = &peers.sent.local;
        self.data(socket, (50_000, 9732), Side::Local, 0, sent);
    }

    fn close(&mut self, socket: u64, sent: Both<Option<u64>>) {
        self.take(socket, (50_000, 9732), What::Closed { sent });
    }
}

fn peers() -> Peers {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 7);
    for n in 0..5 {
        peers.send(Side::Remote, &operation(n, 100));
    }
    peers.send(Side::Local, &operation(9, 1000));
    peers
}

#[test]
fn a_connection_becomes_entries() {
    let (peers, mut played) = (peers(), Played::new());
    let ports = (50_000, 9732);
    let initiator = Some(Side::Local);
    played.take(1, ports, What::Opened { initiator });
    for side in Side::BOTH {
        let sent = peers.sent.of(side);
        let mut at = 0;
        for part in sent.chunks(33) {
            played.data(1, ports, side, at, part);
            at += part.len();
        }
    }
    assert_eq!(played.recording.counts().open, 1);
    let sent = peers.sent.clone();
    played.close(
        1,
        Both {
            local: Some(sent.local.len() as u64),
            remote: Some(sent.remote.len() as u64),
        },
    );
    assert_eq!(played.recording.counts().ignored, 0);
    for side in Side::BOTH {
        assert_eq!(&played.stored.raw(side), peers.sent.of(side));
    }
    let of = |side| {
        played
            .stored
            .kinds()
            .into_iter()
            .filter(move |(of, _)| *of == side)
    };
    let handshake = [Kind::ConnectionMessage, Kind::Metadata, Kind::AckMessage];
    for (side, operations) in [(Side::Local, 1), (Side::Remote, 5)] {
        let expected = [&handshake[..], &vec![Kind::Operation; operations]].concat();
        assert_eq!(of(side).map(|(_, kind)| kind).collect::<Vec<_>>(), expected);
    }
    let connection = played.stored.connection();
    assert_eq!(connection.initiator, Some(Side::Local));
    assert_eq!(connection.address.port(), 9732);
    assert_eq!(
        connection.chunks,
        Both {
            local: 4,
            remote: 8
        }
    );
    assert_eq!(connection.traffic.local.captured, sent.local.len() as u64);
    assert_eq!(connection.traffic.remote.lost, 0);
    assert_eq!(connection.ended, Some(Timestamp(1000)));
    assert_eq!(played.stored.state(), (State::Decrypted, None));
    assert!(!connection.status.end_unseen && connection.status.gaps == 0);
    assert_eq!(connection.ignored, None);
    assert!(connection.remarks.is_empty(), "{:?}", connection.remarks);
    assert_eq!(connection.peer_id.as_ref().unwrap().len(), 30);
    let metadata = r#"{"disable_mempool":false,"private_node":false}"#;
    assert_eq!(connection.metadata.remote.as_deref(), Some(metadata));
    let message = connection.connection_messages.local.as_ref().unwrap();
    assert!(message.contains("TEZOS_MAINNET"), "{message}");
    assert_eq!(connection.acks.local.as_deref(), Some("\"Ack\""));
}

#[test]
fn other_traffic_leaves_a_number() {
    let mut played = Played::new();
    let request = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
    played.data(3, (40_000, 80), Side::Local, 0, request);
    played.data(3, (40_000, 80), Side::Local, request.len(), request);
    played.close(3, Both::default());
    played.tick();
    assert!(played.stored.0.is_empty());
    assert_eq!(played.recording.counts().ignored, 1);
    assert_eq!(played.recording.take_ignored(), [Socket(3)]);
    assert!(played.recording.take_ignored().is_empty());
}

#[test]
fn a_connection_from_before_is_listed_by_its_port() {
    let (peers, mut played) = (peers(), Played::new());
    let ports = (9732, 40_000);
    let sent = &peers.sent.local;
    played.data(4, ports, Side::Local, 300, &sent[300..]);
    played.tick();
    played.tick();
    let connection = played.stored.connection().clone();
    let reason = connection.ignored.as_deref().expect("a reason");
    assert!(reason.starts_with("opened before the recorder"), "{reason}");
    assert_eq!(played.recording.take_ignored(), [Socket(4)]);
    played.data(4, ports, Side::Remote, 300, &sent[300..]);
    let sent = Both {
        local: Some(10_000),
        remote: None,
    };
    played.close(4, sent);
    let ended = played.stored.connection();
    assert_eq!(ended.id, connection.id);
    assert!(ended.ended.is_some());
    let local = ended.traffic.local;
    assert_eq!(local.captured + local.lost, 10_000);
    let expected = (State::Unrecorded, Some("opened_before"));
    assert_eq!(played.stored.state(), expected);
    assert!(played.stored.raw(Side::Local).is_empty());
    assert_eq!(played.recording.counts().ignored, 1);
}

#[test]
fn a_connection_that_ends_before_the_node_answers_is_listed_by_its_port() {
    let mut played = Played::new();
    for port in [9732, 80] {
        let initiator = Some(Side::Remote);
        played.take(port.into(), (port, 40_000), What::Opened { initiator });
        played.close(port.into(), Both::default());
    }
    let connection = played.stored.connection();
    assert!(
        connection
            .ignored
            .as_ref()
            .unwrap()
            .starts_with("it ended before")
    );
    assert_eq!(connection.address.port(), 40_000);
    assert_eq!(played.stored.state(), (State::Ignored, Some("ended_early")));
    assert_eq!(played.stored.0.len(), 1);
    assert_eq!(played.recording.counts().ignored, 2);
}

#[test]
fn the_connection_without_traffic_is_given_up_first() {
    let (peers, mut played) = (peers(), Played::new());
    for socket in [1, 2, 3] {
        let initiator = Some(Side::Local);
        played.take(socket, (50_000, 9732), What::Opened { initiator });
        let sent = &peers.sent.local;
        played.data(socket, (50_000, 9732), Side::Local, 0, sent);
    }
    assert_eq!(played.recording.counts().given_up, 1);
    assert_eq!(played.recording.counts().open, 2);
    let remarks = played.stored.remarks();
    let given_up = "not recorded any further: there are too many connections";
    assert_eq!(remarks[0], given_up);
    let first = played.stored.0.iter().filter_map(|entry| match entry {
        Entry::Connection(connection) if !connection.remarks.is_empty() => Some(connection),
        _ => None,
    });
    let first = first.last().unwrap();
    assert_eq!((first.ended, first.status.end_unseen), (None, true));
    let stored = &mut played.stored;
    let entries = &mut |_: &str, entry| stored.0.push(entry);
    played.recording.stop(LATE, entries);
    let ended = "not recorded any further: the recorder has ended";
    let remarks = played.stored.remarks();
    assert_eq!(remarks.iter().filter(|text| **text == ended).count(), 2);
    let last = played.stored.connection();
    assert_eq!((last.ended, last.status.end_unseen), (None, true));
}

#[test]
fn a_socket_number_that_opens_again_is_another_connection() {
    let (peers, mut played) = (peers(), Played::new());
    let sent = &peers.sent.local;
    for _ in 0..2 {
        let initiator = Some(Side::Local);
        played.take(1, (50_000, 9732), What::Opened { initiator });
        played.data(1, (50_000, 9732), Side::Local, 0, sent);
    }
    let ids: std::collections::BTreeSet<_> = played
        .stored
        .0
        .iter()
        .filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(connection.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 2);
    // The end of the first was lost.
    let first = played.stored.0.iter().filter_map(|entry| match entry {
        Entry::Connection(connection) => Some(connection),
        _ => None,
    });
    let first = first.filter(|connection| connection.id == *ids.first().unwrap());
    let first = first.last().unwrap();
    assert_eq!((first.ended, first.status.end_unseen), (None, true));
}

#[test]
fn lost_bytes_are_searched_for_and_remarked() {
    let (mut peers, mut played) = (peers(), Played::new());
    for n in 0..20 {
        peers.send(Side::Local, &operation(n, 200));
    }
    let (ports, initiator) = ((50_000, 9732), Some(Side::Local));
    played.take(1, ports, What::Opened { initiator });
    played.data(1, ports, Side::Remote, 0, &peers.sent.remote);
    let sent = &peers.sent.local;
    let (from, to) = (peers.starts.local[5] + 10, peers.starts.local[7] + 20);
    played.data(1, ports, Side::Local, 0, &sent[..from]);
    played.data(1, ports, Side::Local, to, &sent[to..]);
    while played.tick() {}
    played.tick();
    let connection = played.stored.connection();
    assert_eq!(connection.traffic.local.lost, (to - from) as u64);
    assert_eq!(connection.status.gaps, 1);
    assert_eq!(played.stored.state(), (State::Decrypted, None));
    let remarks: Vec<&str> = connection
        .remarks
        .iter()
        .map(|(_, text)| &text[..])
        .collect();
    assert!(
        remarks[0].contains("message lack chunks, at: 5"),
        "{remarks:?}"
    );
    assert!(
        remarks[1].contains("chunks go on with 8, 3 were lost"),
        "{remarks:?}"
    );
    let operations = played
        .stored
        .kinds()
        .into_iter()
        .filter(|(side, kind)| (*side, *kind) == (Side::Local, Kind::Operation));
    assert_eq!(operations.count(), 21 - 3);
}

#[test]
fn an_end_that_was_not_seen_is_found_and_said() {
    const UNSEEN: &str = "ended some time before: its end was not seen";
    let (peers, mut played) = (peers(), Played::new());
    played.open(1, &peers);
    played.open(2, &peers);
    // The list may be older than what was captured last.
    for _ in 0..3 {
        played.keep_open(&[2]);
        played.data(1, (50_000, 9732), Side::Remote, 0, &peers.sent.remote);
    }
    assert_eq!(played.recording.counts().open, 2);
    for _ in 0..2 {
        assert!(!played.stored.remarks().contains(&UNSEEN));
        played.keep_open(&[2]);
    }
    assert_eq!(played.recording.counts().open, 1);
    let connection = played.stored.connection();
    assert!(connection.ended.is_none() && connection.status.end_unseen);
    let remarks: Vec<_> = connection.remarks.iter().map(|(_, text)| text).collect();
    assert_eq!(remarks, [UNSEEN]);
    played.keep_open(&[2]);
    played.keep_open(&[2]);
    assert_eq!(played.recording.counts().open, 1, "it is in the list");
}

#[test]
fn an_ignored_connection_whose_end_was_not_seen() {
    let mut played = Played::new();
    // By its port it is the node's.
    let other = [0; 100];
    played.data(7, (9732, 40_000), Side::Local, 0, &other);
    assert!(!played.stored.connection().status.end_unseen);
    played.keep_open(&[]);
    played.keep_open(&[]);
    assert!(played.stored.connection().status.end_unseen);
    // The next connection with that number is followed.
    played.open(7, &peers());
    assert_eq!(played.recording.counts().open, 1);
}

#[test]
fn the_wall_clock_is_set_back_and_forth() {
    const HOUR: u64 = 3600 * 1_000_000_000;
    let (peers, mut played) = (peers(), Played::new());
    let times = [10 * HOUR, 12 * HOUR, 5 * HOUR, 5 * HOUR, 11 * HOUR];
    for (n, time) in times.into_iter().enumerate() {
        played.time = Timestamp(time);
        played.now = Timestamp(1000 + n as u64);
        played.open(n as u64, &peers);
    }
    // Of at most two, those without traffic for the longest time were given up, whatever the wall clock said.
    let ended = |entry: &Entry| match entry {
        Entry::Connection(connection) if connection.ended.is_some() => {
            Some((connection.id.0, connection.last.0))
        }
        _ => None,
    };
    let ended: Vec<_> = played.stored.0.iter().filter_map(ended).collect();
    assert_eq!(
        ended,
        [
            (10 * HOUR, 10 * HOUR),
            (12 * HOUR, 12 * HOUR),
            (5 * HOUR, 5 * HOUR)
        ]
    );
    let last = played.stored.connection();
    assert_eq!((last.id.0, last.last.0), (11 * HOUR, 11 * HOUR));
    let ids = played.stored.0.iter().filter_map(|entry| match entry {
        Entry::Connection(connection) => Some(connection.id),
        _ => None,
    });
    let ids: std::collections::BTreeSet<_> = ids.collect();
    assert_eq!(ids.len(), times.len(), "two began at the same time");
    // Records that are late are waited for by the other clock.
    let from = peers.sent.remote.len() / 2;
    let rest = &peers.sent.remote[from..];
    played.time = Timestamp(HOUR);
    played.data(4, (50_000, 9732), Side::Remote, from, rest);
    assert_eq!(played.stored.connection().traffic.remote.lost, 0);
    played.tick();
    let connection = played.stored.connection();
    assert_eq!(connection.traffic.remote.lost, from as u64);
    assert_eq!(connection.last, Timestamp(HOUR));
}

/// The state once the node has heard everything, and at the end.
#[track_caller]
fn check_states(peers: &Peers, open: (State, Option<&str>), ended: (State, Option<&str>)) {
    let mut played = Played::new();
    let initiator = Some(Side::Local);
    played.take(1, (50_000, 9732), What::Opened { initiator });
    for side in Side::BOTH {
        played.data(1, (50_000, 9732), side, 0, peers.sent.of(side));
    }
    played.tick();
    assert_eq!(played.stored.state(), open);
    played.close(1, Both::default());
    assert_eq!(played.stored.state(), ended);
}

#[test]
fn connections_have_states_with_reasons() {
    let new = || Peers::new(Side::Local, "TEZOS_MAINNET", 7);
    let check = |peers: &Peers, state| check_states(peers, state, state);
    let mut peers = new();
    check(&peers, (State::Handshake, None));
    peers.send(Side::Remote, &[0, 0]);
    check(&peers, (State::Handshake, None));
    peers.send(Side::Remote, &[0]);
    check(&peers, (State::Handshake, None));
    for (answer, reason) in [
        (&[0xff][..], "no_motive"),
        (&[1, 0, 1, 0, 0, 0, 0], "too_many_connections"),
        (&[1, 0, 9, 0, 0, 0, 0], "unknown_motive"),
    ] {
        let mut peers = new();
        peers.send(Side::Remote, &[0, 0]);
        peers.send(Side::Remote, answer);
        check(&peers, (State::Refused, Some(reason)));
    }
    let connected = || Peers::connected(Side::Local, "TEZOS_MAINNET", 7);
    check(&connected(), (State::Decrypted, None));
    // A chunk that was not encrypted for this connection.
    let wrong = [&[0, 40][..], &[9; 40]].concat();
    let mut peers = connected();
    peers.sent.remote.extend(&wrong);
    let broken = |reason| (State::PartlyDecrypted, Some(reason));
    check(&peers, broken("cannot_decrypt"));
    let mut peers = new();
    peers.sent.remote.extend(&wrong);
    check(&peers, (State::Undecryptable, Some("cannot_decrypt")));
    let mut peers = new();
    peers.sent.remote.clear();
    peers.sent.local.extend(&wrong);
    let missing = (State::Undecryptable, Some("connection_message_missing"));
    check_states(&peers, (State::Handshake, None), missing);
}
