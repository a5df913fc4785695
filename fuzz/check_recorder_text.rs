//! Properties of the network recorder's readers of text that must hold for arbitrary bytes: log lines and configurations. Shared by the
//! fuzz target and by the recorder's tests.

use tezos_recorder::logs::{Clock, syslog, text};
use tezos_recorder::time::Timestamp;

/// 2 January 2026, 03:04:05 UTC, in UTC.
pub fn clock() -> Clock {
    Clock {
        now: Timestamp(1_767_323_045_000_000_000),
        zone: jiff::tz::TimeZone::UTC,
    }
}

/// Reads a line as a datagram, and as a line of a file.
pub fn log_line(bytes: &[u8]) {
    let clock = clock();
    let datagram = syslog::read(bytes, &clock);
    assert!(!datagram.well_formed || std::str::from_utf8(bytes).is_ok());
    let clean = text::clean(bytes);
    assert!(!clean.contains('\x1b'));
    let line = text::read(&clean, &clock);
    // Sections are joined by points, and invalid bytes replaced by three.
    for (section, message) in [
        (&datagram.entry.section[..], &datagram.entry.message[..]),
        (&line.section, &line.message),
    ] {
        assert!(section.len() + message.len() <= 3 * bytes.len() + 1);
    }
}
