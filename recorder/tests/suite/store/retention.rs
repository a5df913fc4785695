//! How much is kept: by number, size and age.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tezos_recorder::p2p::message::Kind;
use tezos_recorder::store::{
    ConnectionEntry, ConnectionId, ConnectionQuery, Direction, Entry, Keep, Level, LogQuery,
    MessageEntry, MessageQuery, Position, Settings, Store,
};
use tezos_recorder::time::Timestamp;

use super::entries::{connection, dir, log, message, open, operation, put_all, settle, with_chunk};
use crate::effort;

/// Size of all files in a directory.
fn disk(path: &Path) -> u64 {
    let files = fs::read_dir(path).unwrap();
    files
        .filter_map(|file| Some(file.unwrap().metadata().ok()?.len()))
        .sum()
}

/// Operations of 128 bytes in chunks of their own.
fn operations(ids: std::ops::Range<u64>) -> impl Iterator<Item = Entry> {
    ids.flat_map(|id| with_chunk(id, operation(id, 128 - 38), message(id)))
}

fn rows(rows: u64) -> Settings {
    let messages = Keep {
        rows: Some(rows),
        ..Keep::default()
    };
    Settings {
        messages,
        ..Settings::default()
    }
}

/// The ids that are stored, which must be without holes.
fn ids(store: &Store) -> (u64, u64) {
    let reader = store.reader().unwrap();
    let (first, next) = reader.counts().unwrap().messages;
    let mut at = next;
    while at > first {
        let query = MessageQuery {
            limit: 10_000,
            position: Position::Id(at - 1),
            ..MessageQuery::default()
        };
        let rows = reader.messages(&query).unwrap();
        for row in &rows {
            assert_eq!(row.id, at - 1);
            at -= 1;
        }
        assert!(!rows.is_empty());
    }
    (first, next)
}

#[test]
fn the_number_of_messages_is_limited() {
    let count = if effort::is_full() { 100_000 } else { 30_000 };
    let (_dir, path) = dir();
    let store = open(&path, rows(10_000));
    put_all(&store, operations(0..count));
    let (first, next) = ids(&store);
    assert_eq!(next, count);
    assert!((10_000..=10_625).contains(&(next - first)));
    assert!(disk(&path) < 10 << 20, "{} bytes", disk(&path));
    let lock = fs::metadata(path.join("recorder.lock")).unwrap().len();
    assert_eq!(store.health().bytes + lock, disk(&path));
    store.close();
    assert!(disk(&path) < 10 << 20);

    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    put_all(&store, operations(0..count));
    assert_eq!(ids(&store), (0, count));
    store.close();
    let least = (32 << 20) * count / 100_000;
    assert!(disk(&path) > least, "{} bytes", disk(&path));
}

#[test]
fn ids_go_on_after_restarts_and_whatever_was_deleted() {
    let (_dir, path) = dir();
    let mut next = 0;
    for round in 0..6 {
        let store = open(&path, rows(100));
        assert_eq!(store.subscribe().borrow().messages, next);
        put_all(
            &store,
            (0..150).map(|n| Entry::Message(Box::new(message(next + n)))),
        );
        next += 150;
        let (first, end) = ids(&store);
        assert_eq!(end, next);
        assert!(
            round == 0 || (100..=164).contains(&(end - first)),
            "{first} to {end}"
        );
        store.close();
    }
    // Nothing is left but the numbers.
    for file in fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        if file
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("messages")
        {
            fs::remove_file(file).unwrap();
        }
    }
    let store = open(&path, rows(100));
    put_all(&store, [Entry::Message(Box::new(message(next)))]);
    assert_eq!(ids(&store), (next, next + 1));
}

#[test]
fn the_size_is_limited() {
    let (_dir, path) = dir();
    let limit = 8 << 20;
    let keep = Keep {
        bytes: Some(limit),
        ..Keep::default()
    };
    let store = open(
        &path,
        Settings {
            messages: keep,
            ..Settings::default()
        },
    );
    let mut largest = 0;
    for round in 0..20 {
        put_all(
            &store,
            (0..500).flat_map(|n| with_chunk(n, operation(n, 1000), message(round * 500 + n))),
        );
        largest = largest.max(disk(&path));
    }
    let (first, next) = ids(&store);
    assert!(first > 0 && next == 10_000);
    // Beside the limit there may be a write-ahead log.
    assert!(largest <= limit + (4 << 20), "{largest} bytes");
    settle(&store);
    assert!(store.health().bytes > limit * 3 / 4);
}

#[test]
fn old_messages_and_lines_are_deleted_though_nothing_comes() {
    let (_dir, path) = dir();
    let keep = Keep {
        age: Some(Duration::from_millis(700)),
        ..Keep::default()
    };
    let settings = Settings {
        messages: keep,
        logs: keep,
        ..Settings::default()
    };
    let store = open(&path, settings.clone());
    put_all(
        &store,
        operations(0..10).chain([log(Timestamp(1), Level::Info, "line")]),
    );
    let ended = ConnectionEntry {
        ended: Some(Timestamp(2)),
        ..connection(1)
    };
    put_all(&store, [Entry::Connection(Box::new(ended))]);
    assert_eq!(ids(&store), (0, 10));
    let reader = store.reader().unwrap();
    let began = Instant::now();
    while store.health().segments > 0 || reader.counts().unwrap().connections > 0 {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() > Duration::from_millis(300), "not at once");
    assert_eq!(ids(&store), (10, 10));
    assert!(
        reader
            .logs(&LogQuery {
                limit: 9,
                ..LogQuery::default()
            })
            .unwrap()
            .is_empty()
    );
    store.close();
    let store = open(&path, settings);
    put_all(
        &store,
        operations(10..11).chain([log(Timestamp(1), Level::Info, "line")]),
    );
    let counts = store.reader().unwrap().counts().unwrap();
    assert_eq!((counts.messages.1, counts.logs.1), (11, 2));
}

#[test]
fn connections_are_dropped_with_their_last_segment() {
    let (_dir, path) = dir();
    let store = open(&path, rows(1));
    let put = |id: u64, ended: bool, messages: u64| {
        let ended = ended.then_some(Timestamp(id));
        let connection = ConnectionEntry {
            ended,
            ..connection(id)
        };
        let message = MessageEntry {
            connection: ConnectionId(id),
            ..message(0)
        };
        let messages = (0..messages).map(|_| Entry::Message(Box::new(message.clone())));
        put_all(
            &store,
            [Entry::Connection(Box::new(connection))]
                .into_iter()
                .chain(messages),
        );
    };
    let known = |store: &Store| -> Vec<u64> {
        let query = ConnectionQuery {
            limit: 100,
            direction: Direction::Forward,
            ..ConnectionQuery::default()
        };
        let connections = store.reader().unwrap().connections(&query).unwrap();
        connections
            .iter()
            .map(|connection| connection.id.0)
            .collect()
    };
    // Segments have 64 rows. One is deleted when the next has a row.
    put(1, true, 40);
    put(2, false, 10);
    put(3, true, 14);
    assert_eq!(known(&store), [1, 2, 3]);
    put(4, true, 10);
    assert_eq!(known(&store), [2, 4], "the open one is kept");
    put(5, true, 54);
    // Of the first one there is a message again, though it is not known any more; of the fourth, too.
    let again = MessageEntry {
        connection: ConnectionId(4),
        ..message(0)
    };
    put_all(&store, [Entry::Message(Box::new(again))]);
    assert_eq!(known(&store), [2, 4]);
    store.close();
    // After a restart it cannot be open any more.
    let store = open(&path, rows(1));
    assert_eq!(known(&store), [2, 4]);
    put_all(
        &store,
        (0..70).map(|_| Entry::Message(Box::new(message(0)))),
    );
    assert_eq!(known(&store), [0; 0]);
}

#[test]
fn files_are_for_their_owner_alone() {
    let (_dir, path) = dir();
    let store = open(&path, rows(64));
    put_all(
        &store,
        operations(0..200).chain([log(Timestamp(1), Level::Info, "x")]),
    );
    store
        .reader()
        .unwrap()
        .logs(&LogQuery {
            limit: 1,
            ..LogQuery::default()
        })
        .unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    let mut names = Vec::new();
    for file in fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        names.push(file.file_name().unwrap().to_str().unwrap().to_owned());
    }
    assert!(names.iter().any(|name| name.ends_with("-wal")), "{names:?}");
    let kind = MessageQuery {
        limit: 1,
        kinds: vec![Kind::Operation],
        ..MessageQuery::default()
    };
    assert_eq!(store.reader().unwrap().messages(&kind).unwrap().len(), 1);
}
