//! Logs: lines in all forms, and the sources that they come from.

mod arbitrary;
mod files;
mod followed;
mod forms;
mod journal;
mod sockets;
mod times;

use tezos_recorder::logs::syslog;
use tezos_recorder::store::{Level, LogEntry};
use tezos_recorder::time::Timestamp;

use crate::check_text::clock;
use crate::common::{each, text as string, vectors};

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
