//! Datagrams by UDP and at a Unix socket.

use std::fs::{self};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tezos_recorder::logs::{self, Counts, MAX_LINE, Source};
use tezos_recorder::store::{Direction, Entry, Level, LogEntry, LogQuery, Settings, Store};
use tezos_recorder::time::Timestamp;

use super::followed::{Followed, any_port, until};

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
    let sink = |entry: LogEntry| {
        // A thread that cannot keep up.
        sleep(Duration::from_micros(50));
        !entry.message.ends_with('7')
    };
    let running = logs::start(&any_port(), directory.path(), sink, |_| ()).unwrap();
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
    let error = logs::start(&source, directory.path(), |_| true, |_| ()).unwrap_err();
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
    let error = logs::start(&source, directory.path(), |_| true, |_| ()).unwrap_err();
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
    let running = logs::start(
        &any_port(),
        &db,
        move |entry| writer.put(Entry::Log(entry)),
        |_| (),
    );
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
