//! More entries than can be written, and readers beside the writer.

use std::time::Duration;

use tezos_recorder::store::{
    Direction, Entry, Keep, Level, LogQuery, MessageQuery, Position, Reader, Settings,
};
use tezos_recorder::time::Timestamp;

use super::entries::{dir, log, message, open, operation, put_all, with_chunk};

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let big = || with_chunk(0, operation(0, 10_000), message(0))[0].clone();
    for (settings, entry, at_least) in [
        (
            Settings {
                queue_entries: 3000,
                ..Settings::default()
            },
            Entry::Message(Box::new(message(0))),
            2900,
        ),
        (
            Settings {
                queue_bytes: 1 << 20,
                ..Settings::default()
            },
            big(),
            40,
        ),
    ] {
        let (_dir, path) = dir();
        let store = open(&path, settings);
        put_all(&store, [entry.clone()]);
        // As long as another connection writes, the writer waits: putting does not.
        let lock = rusqlite::Connection::open(path.join("main.db")).unwrap();
        lock.execute_batch("BEGIN IMMEDIATE").unwrap();
        let writer = store.writer();
        let accepted = (0..20_000).filter(|_| writer.put(entry.clone())).count() as u64;
        let status = store.health().queue;
        lock.execute_batch("ROLLBACK").unwrap();
        assert!(accepted >= at_least && accepted < 20_000, "{accepted}");
        assert_eq!(status.dropped, 20_000 - accepted);
        assert!(status.dropped_bytes > 0 && status.bytes <= 32 << 20);
        writer.flush();
        let health = store.health();
        assert_eq!(
            (health.failed, health.queue.entries, health.queue.bytes),
            (0, 0, 0)
        );
        let reader = store.reader().unwrap();
        let messages = reader.counts().unwrap().messages.1;
        let mut chunks = 0;
        reader
            .each_chunk(&Default::default(), &mut |_| {
                chunks += 1;
                true
            })
            .unwrap();
        assert_eq!(messages + chunks, accepted + 1);
        store.close();
        assert!(!writer.put(entry), "nobody writes any more");
    }
}

#[test]
fn an_entry_is_visible_soon_without_being_waited_for() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    let mut heads = store.subscribe();
    assert_eq!(heads.borrow_and_update().messages, 0);
    assert!(store.writer().put(Entry::Message(Box::new(message(0)))));
    let began = std::time::Instant::now();
    while !heads.has_changed().unwrap() {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    let id = heads.borrow_and_update().messages - 1;
    assert!(store.reader().unwrap().message(id, 0).unwrap().is_some());
}

#[test]
fn readers_see_whole_prefixes_while_the_oldest_are_deleted() {
    let (_dir, path) = dir();
    let messages = Keep {
        rows: Some(1000),
        ..Keep::default()
    };
    let store = open(
        &path,
        Settings {
            messages,
            ..Settings::default()
        },
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for direction in [Direction::Backward, Direction::Forward] {
            let reader = store.reader().unwrap();
            let done = &done;
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let head = reader.counts().unwrap().messages.1;
                    let query = MessageQuery {
                        limit: 500,
                        direction,
                        position: Position::Start,
                        ..MessageQuery::default()
                    };
                    let ids: Vec<u64> = reader
                        .messages(&query)
                        .unwrap()
                        .iter()
                        .map(|row| row.id)
                        .collect();
                    let step = |pair: &[u64]| {
                        pair[0].abs_diff(pair[1]) == 1
                            && (pair[0] < pair[1]) == (direction == Direction::Forward)
                    };
                    // Forward, the oldest may be deleted between two segments, but not in between.
                    let holes = ids.windows(2).filter(|pair| !step(pair)).count();
                    assert_eq!(holes, 0, "{ids:?}");
                    if direction == Direction::Backward && head > 0 {
                        assert!(ids[0] >= head - 1 && ids[0] >= last);
                        last = ids[0];
                    }
                }
            });
        }
        for round in 0..20 {
            put_all(
                &store,
                (0..500).map(|n| Entry::Message(Box::new(message(round * 500 + n)))),
            );
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(store.health().errors, 0);
}

#[test]
fn a_search_that_takes_too_long_says_where_it_ended() {
    let (_dir, path) = dir();
    let messages = Keep {
        rows: Some(1024),
        ..Keep::default()
    };
    let search_time = Duration::ZERO;
    let store = open(
        &path,
        Settings {
            messages,
            search_time,
            ..Settings::default()
        },
    );
    put_all(
        &store,
        (0..640).map(|n| Entry::Message(Box::new(message(n)))),
    );
    let reader = store.reader().unwrap();
    for direction in [Direction::Backward, Direction::Forward] {
        let (mut position, mut ids, mut parts) = (Position::Start, Vec::new(), 0);
        loop {
            let query = MessageQuery {
                limit: 1000,
                direction,
                position,
                ..MessageQuery::default()
            };
            let found = reader.find_messages(&query).unwrap();
            ids.extend(found.rows.iter().map(|row| row.id));
            parts += 1;
            let Some(cut) = found.cut else { break };
            position = Position::Id(cut);
        }
        // A segment has 64 rows.
        assert_eq!(parts, 10);
        if direction == Direction::Backward {
            ids.reverse();
        }
        assert!(ids.into_iter().eq(0..640));
    }
}

#[test]
fn an_answer_is_bounded_in_bytes() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    let line = "x".repeat(60_000);
    put_all(
        &store,
        (0..400).map(|n| log(Timestamp(n), Level::Info, &line)),
    );
    let reader = store.reader().unwrap();
    let (mut position, mut lines, mut parts) = (Position::Start, 0, 0);
    loop {
        let query = LogQuery {
            limit: 1000,
            position,
            ..LogQuery::default()
        };
        let found = reader.find_logs(&query).unwrap();
        let bytes: usize = found.rows.iter().map(|row| row.message.len()).sum();
        assert!(bytes <= Reader::MAX_BYTES + line.len());
        lines += found.rows.len();
        parts += 1;
        let Some(cut) = found.cut else { break };
        assert_eq!(cut + 1, found.rows.last().unwrap().id);
        position = Position::Id(cut);
    }
    assert_eq!((lines, parts), (400, 2));
}
