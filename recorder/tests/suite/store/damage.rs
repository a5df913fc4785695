//! Damaged files.

use std::fs;
use std::path::{Path, PathBuf};

use tezos_recorder::store::{ConnectionId, Entry, Keep, MessageQuery, Settings, Store};

use super::entries::{Random, connection, dir, message, open, operation, put_all, with_chunk};
use crate::effort;

/// Settings with segments of 64 messages.
pub fn settings() -> Settings {
    let messages = Keep {
        rows: Some(1024),
        ..Keep::default()
    };
    Settings {
        messages,
        ..Settings::default()
    }
}

/// A store with ten segments of 64 messages, closed.
pub fn filled(path: &Path) -> Vec<PathBuf> {
    let store = open(path, settings());
    put_all(
        &store,
        (0..640).flat_map(|id| with_chunk(id, operation(id, 200), message(id))),
    );
    store.close();
    segments(path)
}

/// Files with messages, in order.
pub fn segments(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("messages-") && name.ends_with(".db")
    };
    let mut files: Vec<_> = files.filter(is_segment).collect();
    files.sort();
    files
}

pub fn ids(store: &Store) -> Vec<u64> {
    let query = MessageQuery {
        limit: 10_000,
        ..MessageQuery::default()
    };
    let rows = store.reader().unwrap().messages(&query).unwrap();
    rows.iter().rev().map(|row| row.id).collect()
}

/// Ways to damage a file.
const DAMAGES: [fn(&mut Vec<u8>); 5] = [
    |bytes| bytes[..100].fill(0xaa),
    |bytes| bytes.truncate(5000),
    |bytes| bytes[100..].fill(0xaa),
    |bytes| bytes[4096..].fill(0),
    |bytes| bytes.fill(0),
];

pub fn damage(path: &Path, damage: fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    damage(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_segment_costs_only_itself() {
    for how in DAMAGES {
        let (_dir, path) = dir();
        let files = filled(&path);
        assert_eq!(files.len(), 10);
        damage(&files[4], how);
        let store = Store::open(&path, settings()).unwrap();
        let expected: Vec<u64> = (0..256).chain(320..640).collect();
        assert_eq!(ids(&store), expected);
        assert_eq!(store.reader().unwrap().message(300, 10).unwrap(), None);
        let health = store.health();
        assert_eq!(health.damaged, [files[4].clone()]);
        put_all_counting(&store, 640..641);
        assert_eq!(ids(&store).last(), Some(&640));
    }
}

pub fn put_all_counting(store: &Store, ids: std::ops::Range<u64>) {
    let failed = store.health().failed;
    for id in ids {
        assert!(store.writer().put(Entry::Message(Box::new(message(id)))));
    }
    store.writer().flush();
    assert_eq!(store.health().failed, failed);
}

#[test]
fn a_damaged_last_segment_is_left_and_a_new_one_begun() {
    for how in DAMAGES {
        let (_dir, path) = dir();
        let store = open(&path, settings());
        put_all(
            &store,
            (0..100).flat_map(|id| with_chunk(id, operation(id, 200), message(id))),
        );
        store.close();
        let files = segments(&path);
        damage(&files[1], how);
        let store = Store::open(&path, settings()).unwrap();
        put_all_counting(&store, 100..150);
        let found = ids(&store);
        let expected: Vec<u64> = (0..64).chain(100..150).collect();
        assert_eq!(found, expected);
        assert_eq!(store.health().damaged, [files[1].clone()]);
    }
}

#[test]
fn a_segment_that_is_damaged_while_it_is_written_is_left() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    put_all(
        &store,
        (0..40).flat_map(|id| with_chunk(id, operation(id, 200), message(id))),
    );
    let file = segments(&path).remove(0);
    // The writer has pages in memory, and does not notice at once. New readers do.
    let files = [file.clone(), file.with_extension("db-wal")];
    for file in files {
        let length = fs::metadata(&file).unwrap().len() as usize;
        fs::write(&file, vec![0xaa; length]).unwrap();
    }
    for id in 40..200 {
        store.writer().put(Entry::Message(Box::new(message(id))));
        store.writer().flush();
    }
    store.close();
    let store = Store::open(&path, settings()).unwrap();
    let found = ids(&store);
    assert!(found.len() >= 200 - 64 - 40, "{found:?}");
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(found.last(), Some(&199));
    assert!(store.health().damaged.contains(&file));
}

#[test]
fn random_damage_never_stops_the_store() {
    let mut random = Random(effort::seed());
    let (_dir, path) = dir();
    let files = filled(&path);
    let whole: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for _ in 0..effort::rounds(40) {
        let at = random.below(10) as usize;
        let mut bytes = whole[at].clone();
        // Often in the header, which has 100 bytes.
        let size = random.pick(&[100, bytes.len() as u64]);
        for _ in 0..random.below(20) {
            let byte = random.below(size) as usize;
            bytes[byte] = random.next() as u8;
        }
        fs::write(&files[at], bytes).unwrap();
        let store = Store::open(&path, settings()).unwrap();
        let found = ids(&store);
        let others = found
            .iter()
            .filter(|id| **id / 64 != at as u64 && **id < 640);
        assert_eq!(others.count(), 9 * 64);
        for id in (0..640).step_by(7) {
            store.reader().unwrap().message(id, 1000).unwrap();
        }
        store.close();
        fs::write(&files[at], &whole[at]).unwrap();
    }
}

#[test]
fn random_damage_of_connections_costs_only_them() {
    let mut random = Random(effort::seed());
    let (_dir, path) = dir();
    filled(&path);
    let main = path.join("main.db");
    let store = open(&path, settings());
    put_all(
        &store,
        (0..500).map(|id| Entry::Connection(Box::new(connection(id)))),
    );
    store.close();
    let whole = fs::read(&main).unwrap();
    for round in 0..effort::rounds(40) {
        let mut bytes = whole.clone();
        let size = random.pick(&[100, bytes.len() as u64]);
        for _ in 0..random.below(20) {
            bytes[random.below(size) as usize] = random.next() as u8;
        }
        fs::write(&main, bytes).unwrap();
        let store = Store::open(&path, settings()).unwrap();
        for id in 0..3 {
            store
                .writer()
                .put(Entry::Connection(Box::new(connection(1000 + id))));
            store.writer().put(Entry::Message(Box::new(message(id))));
            store.writer().flush();
        }
        let last = 640 + 3 * (round + 1);
        let first = last.min(1024 + 64) - 640;
        let found = ids(&store);
        assert_eq!(found.last(), Some(&(last - 1)));
        assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]) && found.len() as u64 >= first);
        store.close();
    }
}

#[test]
fn damaged_connections_are_set_aside() {
    let (_dir, path) = dir();
    filled(&path);
    damage(&path.join("main.db"), DAMAGES[0]);
    let store = Store::open(&path, settings()).unwrap();
    assert_eq!(store.health().damaged, [path.join("main.db")]);
    assert!(path.join("main.damaged").exists());
    put_all_counting(&store, 640..641);
    assert_eq!(ids(&store), (0..641).collect::<Vec<_>>());
}

#[test]
fn unfinished_segments_are_created_again() {
    let (_dir, path) = dir();
    filled(&path);
    let unfinished = path.join("messages-00000010-640.db");
    fs::write(&unfinished, "").unwrap();
    let store = open(&path, settings());
    put_all(
        &store,
        (640..641).map(|id| Entry::Message(Box::new(message(id)))),
    );
    assert_eq!(segments(&path).last(), Some(&unfinished));
    assert_eq!(ids(&store), (0..641).collect::<Vec<_>>());
}

#[test]
fn connections_that_are_damaged_later_are_set_aside() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    let put = |ids: std::ops::Range<u64>| {
        for id in ids {
            store
                .writer()
                .put(Entry::Connection(Box::new(connection(id))));
            store.writer().put(Entry::Message(Box::new(message(id))));
        }
        store.writer().flush();
    };
    put(0..10);
    let main = path.join("main.db");
    for file in [main.clone(), path.join("main.db-wal")] {
        let length = fs::metadata(&file).unwrap().len() as usize;
        fs::write(&file, vec![0xaa; length]).unwrap();
    }
    // The writer has some pages in memory.
    for round in 1..100 {
        put(round * 10..round * 10 + 10);
    }
    assert_eq!(ids(&store), (0..1000).collect::<Vec<_>>());
    let health = store.health();
    if health.errors > 0 {
        assert_eq!(health.damaged, [main]);
    }
    store.close();
    let store = Store::open(&path, settings()).unwrap();
    assert_eq!(ids(&store), (0..1000).collect::<Vec<_>>());
    let entry = Entry::Connection(Box::new(connection(2000)));
    store.writer().put(entry);
    store.writer().flush();
    let found = store.reader().unwrap().connection(ConnectionId(2000));
    assert!(found.unwrap().is_some());
}

#[test]
fn impossible_ids_are_damage() {
    for sql in [
        "UPDATE segment SET first = 5000",
        "UPDATE message SET id = 1 << 60 WHERE id = 639",
        "DELETE FROM segment",
    ] {
        let (_dir, path) = dir();
        let files = filled(&path);
        let db = rusqlite::Connection::open(&files[9]).unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        let store = Store::open(&path, settings()).unwrap();
        assert_eq!(store.health().damaged, [files[9].clone()]);
        put_all_counting(&store, 640..641);
        assert_eq!(ids(&store), (0..576).chain(640..641).collect::<Vec<_>>());
    }
}
