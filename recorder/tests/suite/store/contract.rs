//! Behaviours of the original network recorder that its tests require, asked of the store.

use tezos_recorder::store::{
    Direction, Entry, Level, LogQuery, LogRow, MessageQuery, Position, Reader, Settings, Store,
};
use tezos_recorder::time::Timestamp;

use super::entries::{dir, log, message, open, put_all, settle};

#[test]
fn limit_and_cursor_of_messages() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    put_all(
        &store,
        (0..1000).map(|id| Entry::Message(Box::new(message(id)))),
    );
    let reader = store.reader().unwrap();
    let ids = |limit, position, direction| -> Vec<u64> {
        let query = MessageQuery {
            limit,
            position,
            direction,
            ..MessageQuery::default()
        };
        reader
            .messages(&query)
            .unwrap()
            .iter()
            .map(|row| row.id)
            .collect()
    };
    for n in 0..8 {
        assert_eq!(ids(n, Position::Start, Direction::Backward).len() as u64, n);
        assert_eq!(ids(1, Position::Id(n), Direction::Backward), [n]);
        assert_eq!(ids(2, Position::Id(n), Direction::Forward), [n, n + 1]);
    }
    assert_eq!(
        ids(3, Position::Id(5000), Direction::Backward),
        [999, 998, 997]
    );
    assert_eq!(ids(3, Position::Id(5000), Direction::Forward), [999]);
    assert_eq!(ids(3, Position::Start, Direction::Forward), [0, 1, 2]);
    let all = ids(1000, Position::Id(999), Direction::Backward);
    assert!(all.iter().copied().eq((0..1000).rev()));
}

const SECOND: u64 = 1_000_000_000;
const BEGIN: u64 = 1_626_264_000;

/// Line `i` is of the second `BEGIN + i`; the level follows from the time.
fn line(i: u64) -> Entry {
    let level = level(BEGIN + i);
    log(
        Timestamp((BEGIN + i) * SECOND),
        level,
        &format!("some message {i}"),
    )
}

fn level(second: u64) -> Level {
    match second % 19 {
        1 | 4 | 5 | 8 => Level::Warning,
        7 | 10 => Level::Error,
        _ => Level::Info,
    }
}

fn ask(reader: &Reader, query: LogQuery) -> Vec<LogRow> {
    let rows = reader.logs(&query).unwrap();
    let ascending = query.direction == Direction::Forward;
    assert!(
        rows.windows(2)
            .all(|pair| (pair[0].id < pair[1].id) == ascending)
    );
    for row in &rows {
        assert_eq!(row.time.0, (BEGIN + row.id) * SECOND);
        assert_eq!(row.level, level(BEGIN + row.id));
    }
    rows
}

#[test]
fn levels_pages_and_times_of_logs_before_and_after_a_restart() {
    let (_dir, path) = dir();
    let mut store = open(&path, Settings::default());
    put_all(&store, (0..5000).map(line));
    check_logs(&store, 5000);
    for _ in 0..2 {
        store.close();
        store = open(&path, Settings::default());
        check_logs(&store, 5000);
    }
    put_all(&store, (5000..10_000).map(line));
    check_logs(&store, 10_000);
    store.close();
    check_logs(&open(&path, Settings::default()), 10_000);
}

fn check_logs(store: &Store, count: u64) {
    settle(store);
    let reader = store.reader().unwrap();
    check_levels(&reader, count);
    check_pages(&reader, count);
    check_times(&reader, count);
}

fn check_levels(reader: &Reader, count: u64) {
    let levels = [Level::Info, Level::Warning, Level::Error];
    let singles = levels.iter().map(|level| vec![*level]);
    let pairs = [(0, 1), (0, 2), (1, 2)].map(|(a, b)| vec![levels[a], levels[b]]);
    for levels in singles.chain(pairs) {
        for direction in [Direction::Backward, Direction::Forward] {
            let levels = levels.clone();
            let query = LogQuery {
                limit: 1000,
                direction,
                levels: levels.clone(),
                ..LogQuery::default()
            };
            let rows = ask(reader, query);
            let wanted = |id: &u64| levels.contains(&level(BEGIN + id));
            let expected: Vec<u64> = match direction {
                Direction::Backward => (0..count).rev().filter(wanted).take(1000).collect(),
                Direction::Forward => (0..count).filter(wanted).take(1000).collect(),
            };
            assert!(!rows.is_empty());
            assert!(rows.iter().map(|row| row.id).eq(expected));
        }
    }
}

fn check_pages(reader: &Reader, count: u64) {
    for first in (0..count).step_by(1000) {
        let position = Position::Id(first + 999);
        let rows = ask(
            reader,
            LogQuery {
                limit: 1000,
                position,
                ..LogQuery::default()
            },
        );
        assert!(
            rows.iter()
                .map(|row| row.id)
                .eq((first..first + 1000).rev())
        );
    }
    let position = Position::Id(count + 7);
    let rows = ask(
        reader,
        LogQuery {
            limit: 2,
            position,
            ..LogQuery::default()
        },
    );
    assert_eq!(rows[0].id, count - 1);
}

fn check_times(reader: &Reader, count: u64) {
    let at = |after: u64, direction| {
        let position = Position::Time(Timestamp((BEGIN + after) * SECOND));
        let rows = ask(
            reader,
            LogQuery {
                limit: 500,
                position,
                direction,
                ..LogQuery::default()
            },
        );
        let first = rows.first().map(|row| row.id);
        (rows.len(), first)
    };
    if count == 10_000 {
        assert_eq!(at(321, Direction::Backward), (322, Some(321)));
        assert_eq!(at(6789, Direction::Backward), (500, Some(6789)));
        assert_eq!(at(9876, Direction::Backward), (500, Some(9876)));
        assert_eq!(at(321, Direction::Forward), (500, Some(322)));
        assert_eq!(at(6789, Direction::Forward), (500, Some(6790)));
        assert_eq!(at(9876, Direction::Forward), (123, Some(9877)));
    }
    let levels = vec![Level::Error];
    let position = Position::Time(Timestamp((BEGIN + 3000) * SECOND));
    let rows = ask(
        reader,
        LogQuery {
            limit: 500,
            position,
            levels,
            ..LogQuery::default()
        },
    );
    assert!(
        !rows.is_empty()
            && rows
                .iter()
                .all(|row| row.id <= 3000 && row.level == Level::Error)
    );
}
