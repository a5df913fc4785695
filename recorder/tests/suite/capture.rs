//! Captured bytes are those that processes exchanged, with the gaps that are said.

#[path = "capture/common.rs"]
mod common;

use std::path::Path;

use tezos_recorder::side::Side;

use common::{Exchanged, Group, Namespaces, Place, Recording, Seen};

/// Exchanges bytes between a recorded node and a peer; the node listens or connects. Returns what the node says.
fn exchange(node: Place<'_>, peer: Place<'_>, role: &str, address: &str, method: &str, size: usize, recording: &mut Recording) -> Exchanged {
    let (mut first, mut second);
    let port;
    if role == "listen" {
        (first, port) = node.exchange("listen", address, 0, method, size);
        (second, _) = peer.exchange("connect", address, port, "recv", size);
    } else {
        (second, port) = peer.exchange("listen", address, 0, "recv", size);
        (first, _) = node.exchange("connect", address, port, method, size);
    }
    recording.until_ended(&mut [&mut first, &mut second]);
    let (node, peer) = (first.exchanged(), second.exchanged());
    assert_eq!((&node.sent, &node.received), (&peer.received, &peer.sent), "the programs work");
    node
}

fn in_group(group: &Path) -> Place<'_> {
    Place {
        group: Some(group),
        namespace: None,
    }
}

/// Asserts that all is there: bytes, beginning, end.
fn check(seen: &Seen, node: &Exchanged, initiator: Side) {
    assert_eq!(seen.sum(Side::Local), node.sent);
    assert_eq!(seen.sum(Side::Remote), node.received);
    assert_eq!(seen.opened, Some(Some(initiator)));
    assert_eq!(seen.initiator, Some(initiator));
    let closed = seen.closed.expect("the end was seen");
    assert_eq!(closed.local, Some(node.sent.0 as u64));
    assert_eq!(closed.remote, Some(node.received.0 as u64));
}

fn captures(method: &str) {
    for (address, role) in [("127.0.0.1", "listen"), ("127.0.0.1", "connect"), ("::1", "listen"), ("::1", "connect")] {
        let group = Group::new(method);
        let mut recording = Recording::start(group.target());
        let node = exchange(in_group(&group.0), Place::default(), role, address, method, 1_000_000, &mut recording);
        let initiator = if role == "listen" { Side::Remote } else { Side::Local };
        check(recording.only(), &node, initiator);
        assert_eq!(recording.capture.losses().unwrap().bytes, 0);
    }
}

#[test]
fn read_and_write() {
    captures("read");
}

#[test]
fn recv_and_send() {
    captures("recv");
}

#[test]
fn readv_and_writev() {
    captures("vectors");
}

#[test]
fn recvmsg_and_sendmsg() {
    captures("messages");
}

#[test]
fn peeked_bytes_count_once() {
    captures("peek");
}

#[test]
fn sendfile() {
    captures("sendfile");
}

#[test]
fn splice() {
    captures("splice");
}

#[test]
fn duplicated_descriptors() {
    captures("dup");
}

#[test]
fn forked_children() {
    captures("fork");
}

#[test]
fn data_at_the_end_of_the_handshake() {
    captures("early");
}
