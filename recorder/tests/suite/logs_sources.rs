//! Sources of logs: sockets, files that are rotated or truncated, daily files, the journal.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tezos_recorder::logs::{self, Counts, MAX_LINE, Running, Source};
use tezos_recorder::store::{Direction, Entry, Level, LogEntry, LogQuery, Settings, Store};
use tezos_recorder::time::Timestamp;

type Kept = Arc<Mutex<Vec<LogEntry>>>;

/// A source that is followed, and what came from it.
pub struct Followed {
    pub running: Running,
    pub kept: Kept,
}

impl Followed {
    pub fn start(source: Source, state: &Path) -> Self {
        let kept = Kept::default();
        let sink = kept.clone();
        let running = logs::start(&source, state, move |entry| {
            sink.lock().unwrap().push(entry);
            true
        });
        Self {
            running: running.unwrap(),
            kept,
        }
    }

    /// Waits for so many lines; returns all messages.
    pub fn messages(&self, count: usize) -> Vec<String> {
        until(|| self.kept.lock().unwrap().len() >= count);
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|entry| entry.message.clone()).collect()
    }

    /// Ends it; returns all messages and the counts.
    pub fn stop(self) -> (Vec<String>, Counts) {
        let counts = self.running.counts();
        self.running.stop();
        let kept = self.kept.lock().unwrap();
        (
            kept.iter().map(|entry| entry.message.clone()).collect(),
            counts,
        )
    }
}

/// Waits until something holds, at most ten seconds.
pub fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() && began.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(10));
    }
}

fn any_port() -> Source {
    Source::Udp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

pub fn append(path: &Path, text: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// Time in which the thread has certainly looked at a file.
pub fn pause() {
    sleep(Duration::from_millis(700));
}

#[test]
fn datagrams_are_received_by_udp_and_counted() {
    let directory = TempDir::new().unwrap();
    let followed = Followed::start(any_port(), directory.path());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = followed.running.address().unwrap();
    let long = format!("<30>tag: {}", "x".repeat(60_000));
    for datagram in [
        &b"<30>tag: first"[..],
        b"",
        b"no header",
        long.as_bytes(),
        b"<30>tag: \xff",
    ] {
        sender.send_to(datagram, to).unwrap();
    }
    let messages = followed.messages(5);
    assert_eq!(messages[..3], ["first", "", "no header"]);
    assert_eq!((messages[3].len(), &messages[4][..]), (60_000, "\u{fffd}"));
    let expected = Counts {
        received: 5,
        malformed: 3,
        ..Counts::default()
    };
    let began = Instant::now();
    assert_eq!(followed.stop().1, expected);
    assert!(began.elapsed() < Duration::from_secs(5));
    // The port is free again.
    UdpSocket::bind(to).unwrap();
}

#[test]
fn every_datagram_is_received_refused_or_counted_as_an_overrun() {
    let directory = TempDir::new().unwrap();
    let running = logs::start(&any_port(), directory.path(), |entry| {
        // A thread that cannot keep up.
        sleep(Duration::from_micros(50));
        !entry.message.ends_with('7')
    });
    let running = running.unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sent = 40_000;
    for number in 0..sent {
        let line = format!("<30>tag: {:0>500}", number % 10);
        sender
            .send_to(line.as_bytes(), running.address().unwrap())
            .unwrap();
    }
    let received = |counts: Counts| counts.received + counts.overruns;
    let last = b"<30>tag: last";
    until(|| {
        // The count of overruns comes with the next datagram.
        sender.send_to(last, running.address().unwrap()).unwrap();
        sleep(Duration::from_millis(300));
        received(running.counts()) >= sent
    });
    let counts = running.counts();
    println!("{counts:?}");
    assert!(counts.overruns > 0 && counts.dropped > 0);
    assert!(
        received(counts) >= sent && received(counts) <= sent + 40,
        "{counts:?}"
    );
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let directory = TempDir::new().unwrap();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = Source::Udp(taken.local_addr().unwrap());
    let error = logs::start(&source, directory.path(), |_| true).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("cannot listen at UDP 127.0.0.1:"),
        "{error}"
    );
    assert!(
        error.contains("in use") && error.contains("free port"),
        "{error}"
    );
}

#[test]
fn datagrams_are_received_by_a_unix_socket() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("log");
    // The remains of another run.
    drop(UnixDatagram::bind(&path).unwrap());
    let source = Source::Socket {
        path: path.clone(),
        mode: 0o620,
    };
    let followed = Followed::start(source.clone(), directory.path());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o620);
    let error = logs::start(&source, directory.path(), |_| true).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    let sender = UnixDatagram::unbound().unwrap();
    sender
        .send_to(b"<13>Jan  2 03:04:05 p2p.x: text", &path)
        .unwrap();
    let long = format!("<13>a: {}", "x".repeat(MAX_LINE));
    sender.send_to(long.as_bytes(), &path).unwrap();
    followed.messages(2);
    assert_eq!(followed.kept.lock().unwrap()[0].section, "p2p.x");
    let (messages, counts) = followed.stop();
    assert_eq!(messages[1].len(), MAX_LINE - "<13>a: ".len());
    assert_eq!((counts.received, counts.cut), (2, 1));
    assert!(!path.exists());
}

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
        let name = "logs_sources::the_journal_is_followed_over_ends_of_its_reader_and_restarts";
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

/// The second of the first line, and the levels, of the original's test of logs.
const BEGIN: u64 = 1_626_264_000;

fn level(second: u64) -> (&'static str, Level) {
    match second % 19 {
        1 | 4 | 5 | 8 => ("WARN", Level::Warning),
        7 | 10 => ("ERROR", Level::Error),
        _ => ("INFO", Level::Info),
    }
}

#[test]
fn ten_thousand_lines_reach_the_store_in_order_with_time_and_level() {
    let directory = TempDir::new().unwrap();
    let db = directory.path().join("db");
    let store = Store::open(&db, Settings::default()).unwrap();
    let writer = store.writer();
    let running = logs::start(&any_port(), &db, move |entry| writer.put(Entry::Log(entry)));
    let running = running.unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = running.address().unwrap();
    for number in 0..10_000_u64 {
        let second = BEGIN + number;
        let time = jiff::Timestamp::from_second(second as i64).unwrap();
        let level = level(second).0;
        let line =
            format!("<30>1 {time} host id 1 id - Jul 14 12:00:00.000 {level} some line {number}");
        sender.send_to(line.as_bytes(), to).unwrap();
        if number % 10 == 0 {
            sleep(Duration::from_millis(1));
        }
    }
    let reader = store.reader().unwrap();
    let query = LogQuery {
        limit: 10_001,
        direction: Direction::Forward,
        ..LogQuery::default()
    };
    until(|| running.counts().received == 10_000);
    let counts = running.counts();
    running.stop();
    store.writer().flush();
    let rows = reader.logs(&query).unwrap();
    let expected = Counts {
        received: 10_000,
        ..Counts::default()
    };
    assert_eq!((counts, rows.len()), (expected, 10_000));
    for (number, row) in (0..).zip(rows) {
        let second = BEGIN + number;
        assert_eq!(
            (row.id, row.time),
            (number, Timestamp(second * 1_000_000_000))
        );
        assert_eq!(
            (row.level, row.message),
            (level(second).1, format!("some line {number}"))
        );
    }
}
