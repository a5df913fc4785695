//! Full text of the log.

use tezos_recorder::store::{Direction, Level, LogQuery, Settings, Store};
use tezos_recorder::time::Timestamp;

use super::entries::{Random, dir, log, open, put_all};
use crate::effort;

const WORDS: [&str; 8] = [
    "peer",
    "branch",
    "head",
    "chain",
    "address",
    "ip",
    "message",
    "connection",
];

/// Lines with every non-empty subset of the words, in random order.
fn lines(random: &mut Random) -> Vec<String> {
    let mut subsets: Vec<usize> = (1..256).collect();
    random.shuffle(&mut subsets);
    let mut line = |subset: usize| {
        let mut words: Vec<_> = (0..8)
            .filter(|n| subset & 1 << n != 0)
            .map(|n| WORDS[n])
            .collect();
        random.shuffle(&mut words);
        words.join(" ")
    };
    subsets.into_iter().map(&mut line).collect()
}

fn store_with(settings: Settings, lines: &[String]) -> (tempfile::TempDir, Store) {
    let (dir, path) = dir();
    let store = open(&path, settings);
    let entries = lines.iter().enumerate();
    put_all(
        &store,
        entries.map(|(n, line)| log(Timestamp(n as u64), Level::Info, line)),
    );
    (dir, store)
}

/// Ids of the lines that are found, newest first.
fn find(store: &Store, text: &str) -> Vec<u64> {
    let query = LogQuery {
        limit: 1000,
        text: Some(text.into()),
        ..LogQuery::default()
    };
    let rows = store.reader().unwrap().logs(&query).unwrap();
    let forward = LogQuery {
        direction: Direction::Forward,
        ..query
    };
    let mut reverse = store.reader().unwrap().logs(&forward).unwrap();
    reverse.reverse();
    assert_eq!(rows, reverse);
    rows.iter().map(|row| row.id).collect()
}

#[test]
fn words_are_required_excluded_or_alternatives() {
    let mut random = Random(effort::seed());
    let lines = lines(&mut random);
    let indexed = store_with(Settings::default(), &lines);
    let plain = store_with(
        Settings {
            search: false,
            ..Settings::default()
        },
        &lines,
    );
    let has = |line: &str, word: &str| line.split(' ').any(|w| w == word);
    let check = |text: &str, count: usize, satisfies: &dyn Fn(&str) -> bool| {
        let expected = (0..lines.len())
            .rev()
            .filter(|n| satisfies(&lines[*n]))
            .map(|n| n as u64);
        let expected: Vec<u64> = expected.collect();
        assert_eq!(expected.len(), count, "{text}");
        assert_eq!(find(&indexed.1, text), expected, "{text}");
        assert_eq!(find(&plain.1, text), expected, "{text}, without index");
    };
    check("peer", 128, &|l| has(l, "peer"));
    check("PEER", 128, &|l| has(l, "peer"));
    check("peer -branch", 64, &|l| has(l, "peer") && !has(l, "branch"));
    check("peer chain -branch", 96, &|l| {
        (has(l, "peer") || has(l, "chain")) && !has(l, "branch")
    });
    check("peer -branch -head", 32, &|l| {
        has(l, "peer") && !has(l, "branch") && !has(l, "head")
    });
    check("ip address -peer", 96, &|l| {
        (has(l, "ip") || has(l, "address")) && !has(l, "peer")
    });
    check("+ip +address", 64, &|l| has(l, "ip") && has(l, "address"));
    check("+ip +address peer", 64, &|l| {
        has(l, "ip") && has(l, "address")
    });
    check("-ip", 127, &|l| !has(l, "ip"));
    check("-ip -address", 63, &|l| !has(l, "ip") && !has(l, "address"));
    check("+head +chain +branch -peer -connection", 8, &|l| {
        ["head", "chain", "branch"].iter().all(|w| has(l, w))
            && !has(l, "peer")
            && !has(l, "connection")
    });
    let phrase = lines
        .iter()
        .filter(|line| line.contains("head chain"))
        .count();
    check("\"head chain\"", phrase, &|l| l.contains("head chain"));
    check(
        "+\"head chain\" -ip",
        lines
            .iter()
            .filter(|l| l.contains("head chain") && !has(l, "ip"))
            .count(),
        &|l| l.contains("head chain") && !has(l, "ip"),
    );
    check("", 255, &|_| true);
    check(" + - \"\" ", 255, &|_| true);
}

#[test]
fn punctuation_is_found_as_a_phrase() {
    let lines = [
        "peer 1.2.3.4:9732 connected",
        "peer 2.1.3.4:9732",
        "block BLockGenesis/head, ok",
        "Zürich 日本",
    ];
    let (_dir, store) = store_with(Settings::default(), &lines.map(String::from));
    for (text, expected) in [
        ("1.2.3.4:9732", &[0][..]),
        ("3.4:9732", &[1, 0]),
        ("head,", &[2]),
        ("blockgenesis/head", &[2]),
        ("zürich", &[3]),
        ("日本", &[3]),
        ("+peer -1.2.3.4", &[1]),
        ("nothing", &[]),
        ("\"peer 2", &[1]),
    ] {
        assert_eq!(find(&store, text), expected, "{text}");
    }
}

#[test]
fn no_text_is_an_error() {
    let lines = [
        "AND OR NOT NEAR".into(),
        "peer* ^head:x".into(),
        "100% a_b \\".into(),
    ];
    let stores = [true, false].map(|search| {
        store_with(
            Settings {
                search,
                ..Settings::default()
            },
            &lines,
        )
    });
    let given = [
        "AND",
        "OR OR",
        "NOT x",
        "NEAR(a b, 3)",
        "peer*",
        "\"",
        "\"\"\"",
        "a\"b\"c",
        "(((",
        "message:peer",
        "{message}:x",
        "^peer",
        "-",
        "+",
        "--a",
        "++a",
        "-+a",
        "-\"",
        "\0",
        "a\0b",
        "*",
        "' OR 1=1 --",
        "%",
        "_",
        "\\",
        "rank",
        "peer + branch",
        "\u{301}",
        "\u{10ffff}",
        "\u{e000}",
    ];
    let mut random = Random(effort::seed());
    let alphabet: Vec<char> = "ab \"\"+-*():^{}',%_\\\0\n\u{a0}\u{301}é日\u{e000}ANDORT"
        .chars()
        .collect();
    let any = |_| {
        let length = random.below(40);
        (0..length)
            .map(|_| alphabet[random.below(alphabet.len() as u64) as usize])
            .collect()
    };
    let random: Vec<String> = (0..effort::rounds(300)).map(any).collect();
    let long = [
        "a ".repeat(100_000),
        "\"a".repeat(10_000),
        "日".repeat(10_000),
        "-a ".repeat(5000),
    ];
    for text in given
        .into_iter()
        .map(String::from)
        .chain(random)
        .chain(long)
    {
        for (_, store) in &stores {
            find(store, &text);
            let health = store.health();
            assert_eq!(health.errors, 0, "{text:?}: {:?}", health.last_error);
        }
    }
    assert_eq!(find(&stores[0].1, "100%"), [2]);
    assert_eq!(find(&stores[1].1, "a_b 0%"), [2]);
    assert_eq!(find(&stores[1].1, "a_"), [2]);
    assert_eq!(find(&stores[0].1, "NOT"), [0]);
}

#[test]
fn words_are_searched_together_with_levels_and_times() {
    let (_dir, path) = dir();
    let store = open(&path, Settings::default());
    let level = |n: u64| {
        if n.is_multiple_of(3) {
            Level::Error
        } else {
            Level::Info
        }
    };
    let text = |n: u64| {
        if n.is_multiple_of(2) {
            "even number"
        } else {
            "odd number"
        }
    };
    put_all(
        &store,
        (0..1000).map(|n| log(Timestamp(n * 10), level(n), text(n))),
    );
    let query = LogQuery {
        limit: 1000,
        from: Some(Timestamp(1000)),
        to: Some(Timestamp(2000)),
        levels: vec![Level::Error],
        text: Some("+even -odd".into()),
        ..LogQuery::default()
    };
    let rows = store.reader().unwrap().logs(&query).unwrap();
    let expected = (100..=200).rev().filter(|n| n % 6 == 0);
    assert!(rows.iter().map(|row| row.id).eq(expected));
}

#[test]
fn lines_with_and_without_an_index_are_searched_together() {
    let (_dir, path) = dir();
    for (round, search) in [true, false, true, true].into_iter().enumerate() {
        let store = open(
            &path,
            Settings {
                search,
                ..Settings::default()
            },
        );
        let line = |n| {
            log(
                Timestamp(n),
                Level::Info,
                if n % 2 == 0 { "even" } else { "odd" },
            )
        };
        put_all(&store, (0..10).map(line));
        let count = 10 * (round as u64 + 1);
        let expected = (0..count).rev().filter(|n| n % 2 == 0);
        assert!(find(&store, "even").into_iter().eq(expected));
        store.close();
    }
}
