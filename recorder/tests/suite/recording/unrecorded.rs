//! Connections that are not recorded: which of them are listed, and how.

use tezos_recorder::captured::{Socket, What};
use tezos_recorder::connection::State;
use tezos_recorder::reconnect::{Report, Reports};
use tezos_recorder::side::{Both, Side};

use super::played::{Played, peers};

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
fn connections_from_before_are_reported_and_a_note_lists_them() {
    let mut reports = Reports::default();
    let received = reports.add("local");
    let (peers, mut played) = (peers(), Played::reporting(reports));
    let sent = &peers.sent.local;
    // No port says whose it is.
    played.data(4, (50_000, 40_000), Side::Local, 300, &sent[300..]);
    played.tick();
    // This one is another node's, or none's.
    played.data(
        5,
        (50_001, 80),
        Side::Local,
        0,
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    );
    let found = Report::Found {
        socket: Socket(4),
        remote: "10.0.0.1:40000".parse().unwrap(),
    };
    assert_eq!(received.try_iter().collect::<Vec<_>>(), [found]);
    assert!(played.stored.0.is_empty());
    for socket in [4, 5] {
        played.note(socket, "the node is asked");
    }
    let connection = played.stored.connection().clone();
    assert_eq!(connection.remarks[0].1, "the node is asked");
    assert_eq!(connection.peer_id.as_deref(), Some("idPeer"));
    assert!(connection.ignored.unwrap().starts_with("opened before"));
    for socket in [4, 5] {
        played.close(socket, Both::default());
    }
    assert!(played.stored.connection().ended.is_some());
    assert_eq!(played.stored.0.len(), 2);
    let ended = Report::Ended(Socket(4));
    assert_eq!(received.try_iter().collect::<Vec<_>>(), [ended]);
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
