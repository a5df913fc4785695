//! Plays connections to the recorder.

use tezos_recorder::connection::Connection;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::{Both, Side};
use tezos_recorder::time::Timestamp;

use crate::check::{Log, Peers, connection, record};

/// Gives parts of what a side sent, then lets the recorder do all that it can.
pub fn give(
    connection: &mut Connection,
    log: &mut Log,
    side: Side,
    sent: &[u8],
    parts: &[(usize, usize)],
) {
    for (from, to) in parts {
        let record = record(sent, *from, *to, 1);
        connection.record(side, &record, Timestamp(1), &mut |event| log.take(event));
    }
    let late = Timestamp(3_000_000_000);
    connection.expire(late, &mut |event| log.take(event));
    while connection.search(1 << 20, &mut |event| log.take(event)) {}
}

/// A connection of which the recorder has what the local side sent first.
pub fn heard(peers: &Peers) -> (Connection, Log) {
    let (mut connection, mut log) = (connection(), Log::default());
    let sent = &peers.sent.local;
    give(&mut connection, &mut log, Side::Local, sent, &[(0, 1000)]);
    (connection, log)
}

pub fn end(connection: &mut Connection, log: &mut Log) {
    connection.end(Both::default(), &mut |event| log.take(event));
}

/// What a recorder of the local side sees of peers of which nothing is lost.
pub fn recorded(peers: &Peers) -> Log {
    let (mut connection, mut log) = (connection(), Log::default());
    for side in Side::BOTH {
        let sent = peers.sent.of(side);
        give(&mut connection, &mut log, side, sent, &[(0, sent.len())]);
    }
    end(&mut connection, &mut log);
    log
}

pub fn operation(n: usize, size: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..32 + size).map(|at| (n * 31 + at * 7) as u8).collect();
    [
        &(body.len() as u32 + 2).to_be_bytes()[..],
        &[0, 0x31],
        &body,
    ]
    .concat()
}

pub fn kinds(log: &Log, side: Side) -> Vec<Kind> {
    let of_side = log.messages.iter().filter(|message| message.sender == side);
    of_side.map(|message| message.kind).collect()
}
