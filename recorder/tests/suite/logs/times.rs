//! Times without a year.

use jiff::tz::TimeZone;
use tezos_recorder::logs::{Clock, syslog, text};

use crate::check_text::clock;

use super::time;

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
