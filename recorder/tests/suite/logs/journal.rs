//! The journal of a systemd unit.

use std::fs::{self};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tezos_recorder::logs::{Counts, Source};
use tezos_recorder::store::Level;
use tezos_recorder::time::Timestamp;

use super::followed::{Followed, until};

/// Entries of a journal, as `journalctl` writes them.
const ENTRIES: [&str; 2] = [
    r#"{"__CURSOR":"c1","__REALTIME_TIMESTAMP":"1767323045123456","PRIORITY":"4","MESSAGE":"Jan 02 03:04:05.000: one"}
{"__CURSOR":"c2","__REALTIME_TIMESTAMP":"1767323045123457","PRIORITY":"6","MESSAGE":[27,91,49,109,116,255]}"#,
    r#"damaged
{"__CURSOR":"c3","__REALTIME_TIMESTAMP":"1767323045123458","MESSAGE":"<003> 2026-01-02T03:04:05.123-00:00 [a.b] three"}
{"__CURSOR":"c4","__REALTIME_TIMESTAMP":"x","MESSAGE":null}"#,
];

/// A `journalctl` that gives the first entries and ends with an error, gives the others after their cursor, and runs on.
const READER: &str = r#"#!/bin/sh
echo "$@" >>"$JOURNAL/arguments"
case "$*" in
*--after-cursor=c2) cat "$JOURNAL/1" && exec sleep 600 ;;
*--after-cursor=c4) exec sleep 600 ;;
*) cat "$JOURNAL/0" && echo "no right to go on" >&2 && exit 1 ;;
esac
"#;

/// The test runs itself again with that `journalctl` in its path, which only its own process may have.
#[test]
fn the_journal_is_followed_over_ends_of_its_reader_and_restarts() {
    let Some(directory) = std::env::var_os("JOURNAL") else {
        let directory = TempDir::new().unwrap();
        let reader = directory.path().join("journalctl");
        fs::write(&reader, READER).unwrap();
        fs::set_permissions(&reader, fs::Permissions::from_mode(0o700)).unwrap();
        for (number, entries) in ENTRIES.iter().enumerate() {
            fs::write(
                directory.path().join(number.to_string()),
                format!("{entries}\n"),
            )
            .unwrap();
        }
        let name = "logs::journal::the_journal_is_followed_over_ends_of_its_reader_and_restarts";
        let path = std::env::var("PATH").unwrap();
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"])
            .env("JOURNAL", directory.path());
        test.env("PATH", format!("{}:{path}", directory.path().display()));
        assert!(test.status().unwrap().success());
        return;
    };
    let directory = PathBuf::from(directory);
    let source = Source::Journal {
        unit: "octez.service".into(),
    };
    let followed = Followed::start(source.clone(), &directory);
    until(|| followed.running.error().is_some());
    assert_eq!(
        followed.running.error().unwrap(),
        "journalctl -u octez.service ended (exit status: 1): no right to go on; it is started again"
    );
    assert_eq!(followed.messages(4), ["one", "t\u{fffd}", "three", ""]);
    until(|| followed.running.error().is_none());
    assert_eq!(followed.running.error(), None);
    let kept: Vec<_> = followed.kept.lock().unwrap().clone();
    let levels: Vec<_> = kept.iter().map(|entry| entry.level).collect();
    assert_eq!(
        levels,
        [Level::Warning, Level::Info, Level::Error, Level::Info]
    );
    assert_eq!(kept[0].time, Timestamp(1_767_323_045_123_456_000));
    assert_eq!(kept[2].section, "a.b");
    let began = Instant::now();
    let (_, counts) = followed.stop();
    assert!(began.elapsed() < Duration::from_secs(5));
    let expected = Counts {
        received: 5,
        malformed: 2,
        interruptions: 1,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    let followed = Followed::start(source, &directory);
    let arguments = || fs::read_to_string(directory.join("arguments")).unwrap();
    until(|| arguments().lines().count() == 3);
    followed.stop();
    let arguments = arguments();
    let ends: Vec<_> = arguments
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(
        ends,
        ["--lines=0", "--after-cursor=c2", "--after-cursor=c4"]
    );
    assert!(
        arguments
            .lines()
            .all(|line| line.contains("--unit=octez.service"))
    );
}
