//! Segments without the wanted messages are not asked.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{ConnectionId, Entry, MessageEntry, MessageQuery, Settings, Store};

use super::damage::{segments, settings};
use super::entries::{dir, message, open, put_all, settle};

/// A hash as long as those of operations.
fn hash(id: u64) -> String {
    format!("oo{id:049}")
}

/// Messages of which those of each 64, a segment, have a kind, a connection and an address of their own.
fn entry(id: u64) -> MessageEntry {
    let segment = id / 64;
    MessageEntry {
        kind: Kind::ALL[segment as usize],
        connection: ConnectionId(1 + segment),
        address: format!("10.0.0.{segment}:{}", 9732 + segment)
            .parse()
            .unwrap(),
        initiator: Some(Side::BOTH[segment as usize % 2]),
        hash: Some(hash(id)),
        error: (segment == 3).then(|| "bad".into()),
        ..message(id)
    }
}

fn put(store: &Store, ids: std::ops::Range<u64>) {
    put_all(store, ids.map(|id| Entry::Message(Box::new(entry(id)))));
}

/// Questions for messages of the fourth segment.
fn questions() -> [MessageQuery; 8] {
    let (fourth, query) = (entry(3 * 64 + 5), MessageQuery::default);
    [
        MessageQuery {
            kinds: vec![Kind::Protocol, fourth.kind],
            ..query()
        },
        MessageQuery {
            host: Some(fourth.address.ip()),
            ..query()
        },
        MessageQuery {
            address: Some(fourth.address),
            ..query()
        },
        MessageQuery {
            connection: Some(fourth.connection),
            ..query()
        },
        MessageQuery {
            hash: fourth.hash,
            ..query()
        },
        MessageQuery {
            error: Some(true),
            ..query()
        },
        MessageQuery {
            kinds: vec![fourth.kind],
            host: Some(fourth.address.ip()),
            ..query()
        },
        MessageQuery {
            kinds: vec![fourth.kind],
            initiator: Some(Side::Remote),
            ..query()
        },
    ]
    .map(|query| MessageQuery {
        limit: 100,
        ..query
    })
}

/// Makes the files unreadable, and checks that only the fourth is read by questions for its messages.
fn check(store: &Store, files: &[PathBuf]) {
    let reader = store.reader().unwrap();
    let kept = fs::read(&files[3]).unwrap();
    for file in files {
        fs::write(file, [0xaa; 8192]).unwrap();
    }
    let none = MessageQuery {
        hash: Some(hash(10_000)),
        limit: 100,
        ..MessageQuery::default()
    };
    assert_eq!(reader.messages(&none).unwrap(), []);
    assert_eq!(store.health().errors, 0);
    fs::write(&files[3], kept).unwrap();
    for query in questions() {
        let rows = reader.messages(&query).unwrap();
        assert_eq!(
            rows.len(),
            if query.hash.is_some() { 1 } else { 64 },
            "{query:?}"
        );
        assert!(rows.iter().all(|row| row.id / 64 == 3));
        let health = store.health();
        assert_eq!((health.errors, health.last_error), (0, None), "{query:?}");
    }
    let all = MessageQuery {
        limit: 1000,
        ..MessageQuery::default()
    };
    assert_eq!(
        reader.messages(&all).unwrap().len(),
        64 + 5,
        "the fourth, and the one that is written"
    );
    assert_eq!(store.health().errors, files.len() as u64 - 1);
}

#[test]
fn segments_without_the_wanted_messages_are_not_read() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    put(&store, 0..8 * 64 + 5);
    let files = segments(&path);
    assert_eq!(files.len(), 9);
    check(&store, &files[..8]);
}

#[test]
fn nor_are_they_after_a_restart() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    put(&store, 0..8 * 64 + 5);
    store.close();
    let store = open(&path, settings());
    check(&store, &segments(&path)[..8]);
}

fn is_indexed(file: &Path) -> bool {
    let sql =
        "SELECT count(*) = 2 FROM sqlite_schema WHERE name IN ('message_hash', 'hash_filter')";
    let db = Connection::open(file).unwrap();
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// As after a crash between the last message of a segment and its end.
#[test]
fn a_full_segment_without_summary_gets_one() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    put(&store, 0..100);
    store.close();
    let file = &segments(&path)[0];
    assert!(!is_indexed(file));
    let store = open(&path, settings());
    put(&store, 100..101);
    assert!(is_indexed(file));
    let whole = MessageQuery {
        hash: Some(hash(5)),
        limit: 10,
        ..MessageQuery::default()
    };
    let found = || store.reader().unwrap().messages(&whole).unwrap();
    assert_eq!(found().iter().map(|row| row.id).collect::<Vec<_>>(), [5]);
    settle(&store);
}

/// A segment that was finished and has room again under other settings.
#[test]
fn a_summary_is_not_used_once_more_was_written() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    put(&store, 0..64);
    put(&store, 64..65);
    store.close();
    let files = segments(&path);
    fs::remove_file(&files[1]).unwrap();
    let main = Connection::open(path.join("main.db")).unwrap();
    main.execute("UPDATE counter SET next = 64 WHERE name = 'messages'", [])
        .unwrap();
    drop(main);
    for round in 0..2 {
        let store = open(&path, Settings::default());
        if round == 0 {
            put(&store, 64..70);
        }
        assert_eq!(segments(&path).len(), 1);
        for query in [
            MessageQuery {
                hash: Some(hash(66)),
                limit: 10,
                ..MessageQuery::default()
            },
            MessageQuery {
                kinds: vec![entry(66).kind],
                limit: 1,
                ..MessageQuery::default()
            },
        ] {
            assert_eq!(
                store.reader().unwrap().messages(&query).unwrap().len(),
                1,
                "{query:?}"
            );
        }
        store.close();
    }
}
