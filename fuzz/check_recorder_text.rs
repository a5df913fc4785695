//! Properties of the network recorder's readers of text that must hold for arbitrary bytes: log lines and configurations. Shared by the
//! fuzz target and by the recorder's tests.

use std::collections::HashSet;
use std::path::Path;

use tezos_recorder::config::Config;
use tezos_recorder::logs::{Clock, syslog, text};
use tezos_recorder::time::Timestamp;

/// 2 January 2026, 03:04:05, in UTC.
pub fn clock() -> Clock {
    Clock::utc(Timestamp(1_767_323_045_000_000_000))
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

/// Reads a configuration. An error says where it is, and what to do.
pub fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Config::parse(text, Path::new("config.toml")) {
        Ok(config) => {
            assert!(!config.nodes.is_empty() && !config.listen.is_empty());
            assert!(
                config
                    .nodes
                    .iter()
                    .all(|n| n.p2p.is_some() || n.log.is_some())
            );
            let names = config.nodes.iter().map(|node| &node.name);
            assert_eq!(names.collect::<HashSet<_>>().len(), config.nodes.len());
        }
        Err(error) => {
            assert!(
                error
                    .line
                    .is_none_or(|line| line <= text.split('\n').count())
            );
            assert!(!error.what.is_empty() && !error.remedy.is_empty());
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// Tries all readers.
pub fn text_readers(bytes: &[u8]) {
    log_line(bytes);
    configuration(bytes);
}
