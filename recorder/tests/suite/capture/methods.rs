//! Every way to read and write.

use super::common::{Group, Place};
use super::seen::{Recording, check, exchange};
use tezos_recorder::side::Side;

fn captures(method: &str) {
    for (address, role, initiator) in [
        ("127.0.0.1", "listen", Side::Remote),
        ("::1", "connect", Side::Local),
    ] {
        let group = Group::new(method);
        let mut recording = Recording::start(group.target());
        let node = Place::group(&group.0);
        let node = exchange(
            node,
            Place::default(),
            role,
            address,
            method,
            &mut recording,
        );
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
fn recvmmsg_and_sendmmsg() {
    captures("many");
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
fn io_uring() {
    captures("uring");
}

#[test]
fn data_at_the_end_of_the_handshake() {
    captures("early");
}
