//! The threads that decode, and their queues.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tezos_recorder::budget::Budget;
use tezos_recorder::captured::{Captured, Socket, What};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::queue::{Dropped, Queue, Task};
use tezos_recorder::reconnect::Reports;
use tezos_recorder::recording::{ConnectionIds, Settings};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::Entry;
use tezos_recorder::time::Timestamp;
use tezos_recorder::workers::{Sink, Workers};

use crate::check::{Peers, nodes};
use crate::play::operation;

fn captured(socket: u64, what: What<'_>) -> Captured<'_> {
    Captured {
        socket: Socket(socket),
        time: Timestamp::now(),
        local: SocketAddr::from(([127, 0, 0, 1], 9732)),
        remote: SocketAddr::from(([127, 0, 0, 1], 40_000)),
        what,
    }
}

fn data(sender: Side, offset: usize, data: &[u8]) -> What<'_> {
    What::Data {
        sender,
        offset: offset as u64,
        in_order: offset as u64,
        data,
        initiator: None,
    }
}

#[test]
fn a_full_queue_drops_bytes_and_counts_them() {
    let queue = Queue::new(10_000);
    let initiator = Some(Side::Local);
    for _ in 0..3 {
        queue.put_captured(&captured(1, data(Side::Local, 0, &[0; 4000])));
        queue.put_captured(&captured(1, What::Opened { initiator }));
    }
    let dropped = Dropped {
        records: 1,
        bytes: 4000,
    };
    assert_eq!(queue.dropped(), dropped);
    let tasks = queue.take(Duration::ZERO);
    assert_eq!(tasks.len(), 5);
    let Task::Captured(first) = &tasks[0] else {
        panic!("{tasks:?}");
    };
    let What::Data { data: bytes, .. } = first.captured().what else {
        panic!("{first:?}");
    };
    assert_eq!(bytes, [0; 4000]);
    // There is room again.
    queue.put_captured(&captured(1, data(Side::Local, 0, &[0; 4000])));
    assert_eq!(queue.dropped(), dropped);
    assert_eq!(queue.take(Duration::ZERO).len(), 1);
    assert!(queue.take(Duration::ZERO).is_empty());
}

#[test]
fn all_connections_of_all_workers_are_decoded_before_the_end() {
    let entries: Arc<Mutex<Vec<Entry>>> = Arc::default();
    let into = entries.clone();
    let sink: Sink = Arc::new(move |_, entry| into.lock().unwrap().push(entry));
    let settings = Settings {
        ports: Vec::new(),
        budget: Budget::new(64 << 20),
        max_connections: 100,
        ids: ConnectionIds::default(),
        reports: Reports::default(),
    };
    let workers = Workers::start(3, 64 << 20, &settings, &nodes(), &sink, || {}).unwrap();
    for socket in 0..10 {
        let mut peers = Peers::connected(Side::Remote, "TEZOS_MAINNET", socket as u8);
        for n in 0..50 {
            peers.send(Side::Local, &operation(n, 50));
        }
        let initiator = Some(Side::Remote);
        workers.put(&captured(socket, What::Opened { initiator }));
        for side in Side::BOTH {
            workers.put(&captured(socket, data(side, 0, peers.sent.of(side))));
        }
        if socket % 2 == 0 {
            let sent = Both::default();
            workers.put(&captured(socket, What::Closed { sent }));
        }
    }
    workers.put(&captured(99, data(Side::Local, 0, b"GET / HTTP/1.1\r\n")));
    let mut ignored = Vec::new();
    while ignored.is_empty() {
        ignored = workers.take_ignored();
        std::thread::yield_now();
    }
    assert_eq!(ignored, [Socket(99)]);
    assert_eq!(workers.counts().ignored, 1);
    assert_eq!(workers.dropped(), Dropped::default());
    workers.stop();
    let entries = entries.lock().unwrap();
    let operation = |entry: &&Entry| matches!(entry, Entry::Message(message) if message.kind == Kind::Operation);
    assert_eq!(entries.iter().filter(operation).count(), 500);
    let ids: std::collections::BTreeSet<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Connection(connection) => Some(connection.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 10);
}
