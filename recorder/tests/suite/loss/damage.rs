//! Chunks that are damaged, and bytes that replace others.

use tezos_recorder::connection::Remark;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;

use crate::check::Peers;
use crate::play::{kinds, operation, recorded};

#[test]
fn damaged_chunks_cost_only_themselves() {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 5);
    for n in 0..6 {
        peers.send(Side::Remote, &operation(n, 60));
    }
    let at = peers.starts.remote[5] + 40;
    peers.sent.remote[at] ^= 4;
    let log = recorded(&peers);
    let expected = [
        Remark::CannotDecrypt {
            sender: Side::Remote,
            chunk: 5,
        },
        Remark::Resumed {
            sender: Side::Remote,
            chunk: 6,
            offset: peers.starts.remote[6] as u64,
            lost: 0,
        },
    ];
    assert_eq!(log.remarks, expected);
    assert_eq!(
        expected[0].to_string(),
        "incoming chunk cannot decrypt, position: 5"
    );
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 5);
}

#[test]
fn bytes_that_replace_those_of_the_stream_do_not_stop_it() {
    // Two chunks and a half in the middle are something else, which reads as a chunk of 16,707 bytes.
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 6);
    for n in 0..200 {
        peers.send(Side::Remote, &operation(n, 60 + n));
    }
    let starts = peers.starts.remote.clone();
    peers.sent.remote[starts[6]..starts[8] + 9].fill(0x41);
    let log = recorded(&peers);
    log.check_bytes(Side::Remote, &peers.sent.remote);
    let next = starts.iter().position(|start| *start >= starts[6] + 16_707);
    let resumed = log.remarks.iter().find_map(|remark| match remark {
        Remark::Resumed { chunk, .. } => Some(*chunk as usize),
        _ => None,
    });
    assert_eq!(resumed, next);
    let operations = kinds(&log, Side::Remote)
        .into_iter()
        .filter(|k| *k == Kind::Operation);
    assert_eq!(operations.count(), 3 + 203 - next.unwrap());
}
