//! Ends of connections that were not seen, and clocks that are set.

use tezos_recorder::side::Side;
use tezos_recorder::store::{ConnectionEntry, Entry};
use tezos_recorder::time::Timestamp;

use super::played::{Played, peers};

#[test]
fn an_end_that_was_not_seen_is_found_and_said() {
    const UNSEEN: &str = "ended some time before: its end was not seen";
    let (peers, mut played) = (peers(), Played::new());
    played.open(1, &peers);
    played.open(2, &peers);
    // The list may be older than what was captured last.
    for _ in 0..3 {
        played.keep_open(&[2]);
        played.data(1, (50_000, 9732), Side::Remote, 0, &peers.sent.remote);
    }
    assert_eq!(played.recording.counts().open, 2);
    for _ in 0..2 {
        assert!(!played.stored.remarks().contains(&UNSEEN));
        played.keep_open(&[2]);
    }
    assert_eq!(played.recording.counts().open, 1);
    let connection = played.stored.connection();
    assert!(connection.ended.is_none() && connection.status.end_unseen);
    let remarks: Vec<_> = connection.remarks.iter().map(|(_, text)| text).collect();
    assert_eq!(remarks, [UNSEEN]);
    played.keep_open(&[2]);
    played.keep_open(&[2]);
    assert_eq!(played.recording.counts().open, 1, "it is in the list");
}

#[test]
fn the_wall_clock_is_set_back_and_forth() {
    const HOUR: u64 = 3600 * 1_000_000_000;
    let (peers, mut played) = (peers(), Played::new());
    let times = [10 * HOUR, 12 * HOUR, 5 * HOUR, 5 * HOUR, 11 * HOUR];
    for (n, time) in times.into_iter().enumerate() {
        played.time = Timestamp(time);
        played.now = Timestamp(1000 + n as u64);
        played.open(n as u64, &peers);
    }
    // Of at most two, those without traffic for the longest time were given up, whatever the wall clock said.
    let ended = |entry: &Entry| match entry {
        Entry::Connection(connection) if connection.status.end_unseen => {
            Some((connection.id.0, connection.last.0))
        }
        _ => None,
    };
    let ended: Vec<_> = played.stored.0.iter().filter_map(ended).collect();
    assert_eq!(
        ended,
        [
            (10 * HOUR, 10 * HOUR),
            (12 * HOUR, 12 * HOUR),
            (5 * HOUR, 5 * HOUR)
        ]
    );
    let last = played.stored.connection();
    assert_eq!((last.id.0, last.last.0), (11 * HOUR, 11 * HOUR));
    let ids = played.stored.0.iter().filter_map(|entry| match entry {
        Entry::Connection(connection) => Some(connection.id),
        _ => None,
    });
    let ids: std::collections::BTreeSet<_> = ids.collect();
    assert_eq!(ids.len(), times.len(), "two began at the same time");
    // Records that are late are waited for by the other clock.
    let from = peers.sent.remote.len() / 2;
    let rest = &peers.sent.remote[from..];
    played.time = Timestamp(HOUR);
    played.data(4, (50_000, 9732), Side::Remote, from, rest);
    let is_late = |connection: &ConnectionEntry| connection.id.0 == 11 * HOUR;
    assert_eq!(played.stored.last(is_late).traffic.remote.lost, 0);
    played.tick();
    let connection = played.stored.last(is_late);
    assert_eq!(connection.traffic.remote.lost, from as u64);
    assert_eq!(connection.last, Timestamp(HOUR));
}
