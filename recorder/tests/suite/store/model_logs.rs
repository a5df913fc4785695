//! Random lines and questions, compared with a list in memory.

use tezos_recorder::store::{Direction, Entry, Keep, Level, LogEntry, LogQuery, Settings};
use tezos_recorder::time::Timestamp;

use super::entries::{Random, dir, open, put_all};
use super::model::{expected, position, times};
use crate::effort;

#[test]
fn questions_for_logs_are_answered_as_by_a_list() {
    let mut random = Random(effort::seed());
    let (_dir, path) = dir();
    let logs = Keep {
        rows: Some(2048),
        ..Keep::default()
    };
    let store = open(
        &path,
        Settings {
            logs,
            ..Settings::default()
        },
    );
    let words = ["peer", "head", "branch"];
    let mut lines = Vec::new();
    for n in 0..1500 {
        lines.push(LogEntry {
            // Times of senders with other clocks.
            time: Timestamp(1000 + n * 10 + random.below(5000) * random.below(2)),
            level: random.pick(&Level::ALL),
            section: random.pick(&["", "validator", "head"]).into(),
            message: (0..random.below(5))
                .map(|_| random.pick(&["peer", "head", "branch", "n\0l", "é\u{301}日"]))
                .collect::<Vec<_>>()
                .join(" "),
        });
    }
    // In parts that are not those of the store.
    for part in lines.chunks(37) {
        put_all(&store, part.iter().cloned().map(Entry::Log));
    }
    let rows: Vec<_> = (0..)
        .zip(&lines)
        .map(|(id, line)| (id, line.time))
        .collect();
    let reader = store.reader().unwrap();
    for _ in 0..effort::rounds(600) {
        let (from, to) = times(&mut random, 1500);
        let word = random.percent(40).then(|| random.pick(&words));
        let query = LogQuery {
            limit: random.pick(&[0, 1, 10, 1000, 20_000]),
            direction: random.pick(&[Direction::Backward, Direction::Forward]),
            position: position(&mut random, 1500),
            from,
            to,
            levels: (0..random.below(4))
                .map(|_| random.pick(&Level::ALL))
                .collect(),
            text: word.map(String::from),
        };
        let order = (query.direction, query.position, query.from, query.to);
        let expected = expected(&rows, order, query.limit, |id| {
            let line = &lines[id as usize];
            let has =
                |word: &str| line.section == word || line.message.split(' ').any(|w| w == word);
            (query.levels.is_empty() || query.levels.contains(&line.level)) && word.is_none_or(has)
        });
        let found = reader.logs(&query).unwrap();
        assert!(found.iter().map(|row| row.id).eq(expected), "{query:?}");
        for row in found {
            let line = &lines[row.id as usize];
            assert_eq!(
                (row.time, row.level, &row.section, &row.message),
                (line.time, line.level, &line.section, &line.message)
            );
            assert_eq!(reader.log(row.id).unwrap(), Some(row));
        }
    }
    assert_eq!(reader.log(1500).unwrap(), None);
}
