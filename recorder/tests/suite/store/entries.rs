//! Stores and entries of tests.

use std::path::Path;

use tempfile::TempDir;
use tezos_recorder::p2p::json::json;
use tezos_recorder::p2p::message::{Kind, Layer, decode};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::store::{
    ChunkEntry, ConnectionEntry, ConnectionId, ConnectionStatus, Entry, Level, LogEntry,
    MessageEntry, Settings, Store,
};
use tezos_recorder::time::Timestamp;

/// A directory that is deleted at the end, and the store's in it.
pub fn dir() -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    (dir, path)
}

/// A store that must open without a problem.
pub fn open(path: &Path, settings: Settings) -> Store {
    let store = Store::open(path, settings).unwrap();
    let health = store.health();
    assert_eq!(
        (health.errors, health.damaged),
        (0, vec![]),
        "{:?}",
        health.last_error
    );
    store
}

/// Waits until everything is written, of which nothing may fail.
pub fn settle(store: &Store) {
    store.writer().flush();
    let health = store.health();
    assert_eq!(
        (health.errors, health.failed),
        (0, 0),
        "{:?}",
        health.last_error
    );
    assert_eq!((health.queue.dropped, health.queue.entries), (0, 0));
}

/// Puts entries; waits whenever the queue is full.
pub fn put_all(store: &Store, entries: impl IntoIterator<Item = Entry>) {
    let writer = store.writer();
    for (n, entry) in entries.into_iter().enumerate() {
        if n % 10_000 == 9_999 {
            writer.flush();
        }
        assert!(writer.put(entry));
    }
    settle(store);
}

/// A connection.
pub fn connection(id: u64) -> ConnectionEntry {
    ConnectionEntry {
        id: ConnectionId(id),
        address: "1.2.3.4:9732".parse().unwrap(),
        initiator: None,
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
    }
}

/// A message of one chunk.
pub fn message(id: u64) -> MessageEntry {
    MessageEntry {
        connection: ConnectionId(1),
        address: "1.2.3.4:9732".parse().unwrap(),
        initiator: Some(Side::Local),
        sender: Side::Remote,
        kind: Kind::Bootstrap,
        time: Timestamp(1_600_000_000_000_000_000 + id * 100_000),
        chunks: (id, id),
        start: 0,
        size: 6,
        preview: None,
        hash: None,
        error: None,
    }
}

/// The bytes of an operation with `size` bytes of data.
pub fn operation(n: u64, size: usize) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let body = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    let head = [&(size as u32 + 34).to_be_bytes()[..], &[0, 0x31]].concat();
    head.into_iter().chain(body.take(size + 32)).collect()
}

/// A peer message in a chunk of its own, with that chunk.
pub fn with_chunk(number: u64, plain: Vec<u8>, template: MessageEntry) -> [Entry; 2] {
    let decoded = decode(&plain, Layer::Node);
    let entry = MessageEntry {
        kind: decoded.kind,
        chunks: (number, number),
        size: plain.len() as u64,
        preview: decoded.message.map(|message| json(&message, 100).text),
        hash: decoded
            .message
            .and_then(|m| m.content_hash())
            .map(|hash| hash.to_string()),
        error: decoded.error.map(|error| error.to_string()),
        ..template
    };
    let raw = [
        &(plain.len() as u16 + 16).to_be_bytes()[..],
        &[7; 16],
        &plain,
    ]
    .concat();
    let chunk = ChunkEntry {
        connection: entry.connection,
        sender: entry.sender,
        number: Some(number),
        offset: number * 1000,
        time: entry.time,
        raw,
        plain: Some(plain),
    };
    [Entry::Chunk(chunk), Entry::Message(Box::new(entry))]
}

/// A line.
pub fn log(time: Timestamp, level: Level, message: &str) -> Entry {
    Entry::Log(LogEntry {
        time,
        level,
        section: String::new(),
        message: message.into(),
    })
}

/// Pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// Whether something of that probability, in percent, happens.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of some values.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// Changes the order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
