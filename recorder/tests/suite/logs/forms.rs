//! All forms of texts and of headers.

use tezos_recorder::logs::text;
use tezos_recorder::store::{Level, LogEntry};

use crate::check_text::clock;

use super::{datagram, time};

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
