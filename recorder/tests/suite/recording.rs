//! From captured bytes to entries of the store.

mod ends;
mod played;
mod states;
mod unrecorded;

use tezos_recorder::captured::What;
use tezos_recorder::connection::State;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{ConnectionEntry, Entry};
use tezos_recorder::time::Timestamp;

use crate::play::operation;

use self::played::{LATE, Played, peers};

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
    let first = |connection: &ConnectionEntry| !connection.remarks.is_empty();
    let first = played.stored.last(first);
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
    let id = *ids.first().unwrap();
    let first = played.stored.last(|connection| connection.id == id);
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
