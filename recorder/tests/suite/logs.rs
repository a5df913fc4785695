//! Log lines: the worked examples, all forms, times without a year, and arbitrary bytes.

use jiff::tz::TimeZone;
use proptest::prelude::*;
use tezos_recorder::logs::{Clock, syslog, text};
use tezos_recorder::store::{Level, LogEntry};
use tezos_recorder::time::Timestamp;

use crate::check_text::{clock, log_line};
use crate::common::{each, text as string, vectors};
use crate::effort;

/// A line of a datagram that is well-formed.
fn datagram(text: &str) -> LogEntry {
    let datagram = syslog::read(text.as_bytes(), &clock());
    assert!(datagram.well_formed, "{text}");
    datagram.entry
}

fn time(text: &str) -> Timestamp {
    let time: jiff::Timestamp = text.parse().unwrap();
    Timestamp(time.as_nanosecond() as u64)
}

#[test]
fn the_worked_examples_are_read() {
    for example in each(&vectors()["logs"]) {
        let line = datagram(string(&example["datagram"]));
        let expected = LogEntry {
            time: match example["timestamp"].as_u64() {
                Some(time) => Timestamp(time),
                // Without year and zone.
                None => time("2026-01-02T03:04:05Z"),
            },
            level: Level::of_name(string(&example["level"])).unwrap(),
            section: string(&example["section"]).to_owned(),
            message: string(&example["message"]).to_owned(),
        };
        assert_eq!(line, expected, "{}", example["from"]);
    }
}

#[test]
fn all_forms_of_texts_are_read() {
    let at = "2026-01-02T03:04:05.123Z";
    for (line, level, section, message) in [
        ("Jan 02 03:04:05.123: head", None, "", "head"),
        (
            "Jan 02 03:04:05.123   NOTICE │ run",
            Some(Level::Notice),
            "",
            "run",
        ),
        (
            "Jan  2 03:04:05.123 - a.b: text: more",
            None,
            "a.b",
            "text: more",
        ),
        (
            "Jan  2 03:04:05.123 - no section: more",
            None,
            "",
            "no section: more",
        ),
        (
            "Jan 02 03:04:05.123 ERRO text",
            Some(Level::Error),
            "",
            "text",
        ),
        (
            "Jan 02 03:04:05.123 TRCE text",
            Some(Level::Trace),
            "",
            "text",
        ),
        ("Jan 02 03:04:05.123 Other text", None, "", "Other text"),
        ("Jan 02 03:04:05.123 FATAL", Some(Level::Fatal), "", ""),
        (
            "2026-01-02T03:04:05.123-00:00 [p2p.x] text",
            None,
            "p2p.x",
            "text",
        ),
        (
            "<007> 2026-01-02T03:04:05.123-00:00 [p2p.x] a",
            Some(Level::Debug),
            "p2p.x",
            "a",
        ),
        (
            "\x1b[1mJan 02 03:04:05.123\x1b[0m \x1b[31m ERROR \x1b[0m│ \x1b[38;5;1mred\x1b[m",
            Some(Level::Error),
            "",
            "red",
        ),
        (
            r#"{"fd-sink-item.v0":{"level":"warning","time_stamp":1767323045.123,"section":["a","b"],"event":{"e.v0":{"z":1.0,"a":9007199254740993}}}}"#,
            Some(Level::Warning),
            "a.b",
            r#"e.v0 {"z":1.0,"a":9007199254740993}"#,
        ),
        (
            r#"{"fd-sink-item.v0":{"hostname":"h","time_stamp":1767323045.123,"section":[],"event":{"a":1,"b":2}}}"#,
            None,
            "",
            r#"{"a":1,"b":2}"#,
        ),
    ] {
        let clean = text::clean(line.as_bytes());
        let read = text::read(&clean, &clock());
        let read_time = read.time.unwrap();
        // The number of seconds in JSON is not exact.
        assert!(
            read_time.0.abs_diff(time(at).0) < 1000,
            "{line}: {read_time:?}"
        );
        assert_eq!(
            (read.level, &read.section[..], &read.message[..]),
            (level, section, message),
            "{line}"
        );
    }
    for line in [
        "",
        "text",
        "Jan 02 text",
        "Jan 02 03:04:05 text",
        "{\"a\": 1}",
        "2026-01-02 text",
        "<004> text",
    ] {
        let read = text::read(line, &clock());
        assert_eq!(
            (read.time, read.level, &read.section[..]),
            (None, None, ""),
            "{line}"
        );
        assert_eq!(read.message, line);
    }
}

#[test]
fn all_forms_of_headers_are_read() {
    let second = "2026-01-02T03:04:05Z";
    for (line, level, at, section, message) in [
        (
            "<27>1 2020-06-24T10:32:37.5+02:00 h a 1 m [x@1 k=\"a\\\"]b\"][y] text",
            Level::Error,
            "2020-06-24T08:32:37.5Z",
            "",
            "text",
        ),
        (
            "<27>1 - - - - - - \u{feff}text",
            Level::Error,
            second,
            "",
            "text",
        ),
        (
            "<30>1 2026-01-02T03:04:05Z h a 1 m -",
            Level::Info,
            second,
            "",
            "",
        ),
        (
            "<31>Jan  2 03:04:05 host tag[7]: text",
            Level::Debug,
            second,
            "",
            "text",
        ),
        (
            "<29>Jan 02 03:04:05 host p2p.x: text",
            Level::Notice,
            second,
            "p2p.x",
            "text",
        ),
        (
            "<30>2026-01-02T04:04:05+01:00 host tag[7]: Jan 02 01:00:00.000: text",
            Level::Info,
            second,
            "",
            "text",
        ),
        ("<30>tag[1]: text", Level::Info, second, "", "text"),
        (
            "<24>Jan  2 03:04:05 text of several words: and so on",
            Level::Fatal,
            second,
            "",
            "text of several words: and so on",
        ),
        (
            "<28>Jan  2 03:04:05 host octez[7]: <003> 2026-01-02T03:04:05.123-00:00 [a.b] text",
            Level::Error,
            second,
            "a.b",
            "text",
        ),
        (
            "<30>Jan 02 03:04:05.000: not a header",
            Level::Info,
            second,
            "",
            "not a header",
        ),
        (
            "<30>2026-01-02T03:04:05-00:00 [a.b] text",
            Level::Info,
            second,
            "a.b",
            "text",
        ),
        (
            "<30>{\"a\":\"b c: d\"}",
            Level::Info,
            second,
            "",
            "{\"a\":\"b c: d\"}",
        ),
    ] {
        let expected = LogEntry {
            time: time(at),
            level,
            section: section.to_owned(),
            message: message.to_owned(),
        };
        assert_eq!(datagram(line), expected, "{line}");
    }
}

#[test]
fn datagrams_that_are_not_well_formed_are_counted_and_kept() {
    for (line, message) in [
        (&b"text"[..], "text"),
        (b"<192>text", "<192>text"),
        (b"<1234>text", "<1234>text"),
        (b"<+1>text", "<+1>text"),
        (b"<30>1 yesterday h a 1 m - text", "text"),
        (b"<30>1 2026-01-02T03:04:05Z h a", "a"),
        (b"<30>1 2026-01-02T03:04:05Z h a 1 m [x text", "[x text"),
        (b"<30>Feb 30 03:04:05 tag: text", "text"),
        (b"<30>tag: \xfftext", "\u{fffd}text"),
    ] {
        let datagram = syslog::read(line, &clock());
        assert!(!datagram.well_formed, "{line:?}");
        assert_eq!(datagram.entry.message, message);
    }
}

#[test]
fn times_without_a_year_are_of_the_year_in_which_they_are_not_in_the_future() {
    let zone = |hours| TimeZone::fixed(jiff::tz::offset(hours));
    for (now, hours, line, expected) in [
        (
            "2026-01-01T00:00:01Z",
            0,
            "Dec 31 23:59:59",
            "2025-12-31T23:59:59Z",
        ),
        // The sender's clock is ahead.
        (
            "2025-12-31T23:59:59Z",
            0,
            "Jan  1 00:00:01",
            "2026-01-01T00:00:01Z",
        ),
        (
            "2025-12-31T23:59:59Z",
            0,
            "Jan  2 00:00:01",
            "2025-01-02T00:00:01Z",
        ),
        (
            "2026-06-15T12:00:00Z",
            0,
            "Jun 17 12:00:00",
            "2025-06-17T12:00:00Z",
        ),
        (
            "2027-06-15T12:00:00Z",
            0,
            "Feb 29 12:00:00",
            "2024-02-29T12:00:00Z",
        ),
        (
            "2026-01-01T00:30:00Z",
            2,
            "Jan  1 02:29:00",
            "2026-01-01T00:29:00Z",
        ),
        (
            "2025-12-31T23:30:00Z",
            2,
            "Jan  1 01:29:00",
            "2025-12-31T23:29:00Z",
        ),
        (
            "2026-01-01T01:30:00Z",
            -3,
            "Dec 31 22:29:00",
            "2026-01-01T01:29:00Z",
        ),
        (
            "2017-01-01T00:00:00Z",
            0,
            "Dec 31 23:59:60",
            "2016-12-31T23:59:59Z",
        ),
    ] {
        let clock = Clock {
            now: time(now),
            zone: zone(hours),
        };
        let datagram = syslog::read(format!("<30>{line} tag: text").as_bytes(), &clock);
        assert_eq!(datagram.entry.time, time(expected), "{line} at {now}");
        let line = format!("{line}.25: text");
        let read = text::read(&line, &clock).time.unwrap();
        assert_eq!(read.0 - time(expected).0, 250_000_000);
    }
    let rounded = text::read("Jan  1 00:00:00.1000: text", &clock());
    assert_eq!(rounded.time, Some(time("2026-01-01T00:00:01Z")));
}

#[test]
fn every_prefix_and_every_foreign_character_is_survived() {
    let more = [
        "Jan 02 03:04:05.123: x",
        "<30>Jan  2 03:04:05 host tag[1]: x",
        "<30>1 - - - - - [a b=\"c\\\"\"] \x1b[1;31mx",
        "<30>2026-01-02T03:04:05Z h t: <004> 2026-01-02T03:04:05.123-00:00 [a] x",
    ];
    let examples = each(&vectors()["logs"]).map(|e| string(&e["datagram"]));
    for line in examples.chain(more) {
        let bytes = line.as_bytes();
        for at in 0..=bytes.len() {
            log_line(&bytes[..at]);
            log_line(&bytes[at..]);
            for foreign in ["é", "│", "🦀", "\u{feff}", "\x1b", "\x1b[", "\0", "\n"] {
                let (before, after) = bytes.split_at(at);
                log_line(&[before, foreign.as_bytes(), after].concat());
                let rest = after.get(foreign.len()..).unwrap_or_default();
                log_line(&[before, foreign.as_bytes(), rest].concat());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(effort::rounds(2000)))]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        log_line(&bytes);
    }

    #[test]
    fn arbitrary_texts_in_headers_are_survived(
        priority in 0..1200u16,
        header in "(1 )?[-A-Za-z0-9:.+ \\[\\]\"=\\\\]{0,60}",
        text in "(\\PC{0,80}|[<>{}\\[\\]:. 0-9A-Za-z│\x1b]{0,80})",
    ) {
        log_line(format!("<{priority}>{header} {text}").as_bytes());
    }
}
