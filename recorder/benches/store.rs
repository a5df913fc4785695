//! Rates and times of the store:
//!
//!     cargo bench -p tezos-recorder --bench store
//!
//! `MEMPROF_BENCH_FULL=1` stores 10 million messages instead of one (9 GB in the temporary directory), `MEMPROF_BENCH_SHORT=1` 100,000. Goals: 20,000 messages of
//! 250 bytes a second; lists of 1,000 within 20 ms.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{
    ChunkEntry, ConnectionId, Direction, Entry, Level, LogEntry, LogQuery, MessageEntry,
    MessageQuery, Position, Settings, Store,
};
use tezos_recorder::time::Timestamp;

/// Runs of each question, of which the fastest counts: other programs only slow them down.
const RUNS: usize = 5;
/// Time of the first message.
const BEGIN: u64 = 1_600_000_000_000_000_000;
/// Time between messages.
const STEP: u64 = 50_000;

/// Mostly operations and heads; one in 100,000 is a rare kind.
fn kind(n: u64) -> Kind {
    match n {
        n if n % 100_000 == 77 => Kind::SwapRequest,
        n if n % 1000 == 7 => Kind::Advertise,
        n if n % 5 < 3 => Kind::Operation,
        n if n % 5 == 3 => Kind::CurrentHead,
        _ => Kind::GetOperations,
    }
}

/// Eight connections at a time, each of 50,000 messages.
fn connection(n: u64) -> u64 {
    1 + n / 400_000 * 8 + n % 8
}

/// A message of 250 bytes in a chunk of its own.
fn message(n: u64) -> [Entry; 2] {
    let connection = connection(n);
    let time = Timestamp(BEGIN + n * STEP);
    let mut state = n | 1;
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    let plain: Vec<u8> = (0..250).map(|_| byte()).collect();
    let raw: Vec<u8> = (0..268).map(|_| byte()).collect();
    let chunk = ChunkEntry {
        connection: ConnectionId(connection),
        sender: Side::Remote,
        number: Some(n),
        offset: n * 268,
        time,
        raw,
        plain: Some(plain),
    };
    let message = MessageEntry {
        connection: ConnectionId(connection),
        address: format!("10.0.{}.{}:9732", connection / 200, connection % 200).parse().expect("an address"),
        initiator: Some(if connection.is_multiple_of(2) { Side::Local } else { Side::Remote }),
        sender: Side::Remote,
        kind: kind(n),
        time,
        chunks: (n, n),
        start: 0,
        size: 250,
        preview: Some("{\"Operation\":{\"operation\":{\"branch\":\"BLockGenesisGenesisGenesisGenesisGenesisf79b5d1CoW2\",\"data\":\"6".into()),
        hash: Some(format!("oo{:049}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
        error: (n % 500_000 == 3).then(|| "body longer than its grammar".into()),
    };
    [Entry::Chunk(chunk), Entry::Message(Box::new(message))]
}

/// A line of nine words.
fn line(n: u64) -> Entry {
    let level = if n.is_multiple_of(1000) {
        Level::Error
    } else {
        Level::Info
    };
    let message = format!(
        "peer 10.0.0.{} sent block {} of chain main, level {}",
        n % 200,
        n % 1_000_003,
        n / 50
    );
    Entry::Log(LogEntry {
        time: Timestamp(BEGIN + n * STEP),
        level,
        section: "validator.chain".into(),
        message,
    })
}

/// Puts entries as fast as they are written; returns the time and the processor's time.
fn fill(
    store: &Store,
    count: u64,
    mut entries: impl FnMut(u64) -> Vec<Entry>,
) -> (Duration, Duration) {
    let (began, processor) = (Instant::now(), processor_time());
    let writer = store.writer();
    for n in 0..count {
        for entry in entries(n) {
            writer.put(entry);
        }
        while store_is_full(store, n) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    writer.flush();
    let health = store.health();
    assert_eq!((health.failed, health.queue.dropped), (0, 0), "{health:?}");
    (began.elapsed(), processor_time() - processor)
}

/// Whether the queue is half full, asked now and then.
fn store_is_full(store: &Store, n: u64) -> bool {
    n % 100 == 99 && store.health().queue.entries > 20_000
}

/// Time that all threads of this process have run.
fn processor_time() -> Duration {
    clock(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Prints how long a question takes: on the processor, since other programs do not count there, the first time and at best.
fn time(name: &str, mut ask: impl FnMut() -> (usize, bool)) {
    let mut rows = (0, false);
    let times: Vec<_> = (0..RUNS)
        .map(|_| {
            let began = thread_time();
            rows = ask();
            (thread_time() - began).as_secs_f64() * 1e3
        })
        .collect();
    let fastest = times.iter().copied().fold(f64::MAX, f64::min);
    let cut = if rows.1 { ", cut" } else { "" };
    println!(
        "{name:48} {:9.2} ms first, {fastest:8.2} ms again, {} rows{cut}",
        times[0], rows.0
    );
}

/// Time that this thread has run.
fn thread_time() -> Duration {
    clock(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

fn messages(store: &Store, name: &str, query: MessageQuery) {
    let reader = store.reader().expect("a reader");
    let query = MessageQuery {
        limit: 1000,
        ..query
    };
    time(name, || {
        let found = reader.find_messages(&query).expect("messages");
        (found.rows.len(), found.cut.is_some())
    });
}

fn logs(store: &Store, name: &str, query: LogQuery) {
    let reader = store.reader().expect("a reader");
    let query = LogQuery {
        limit: 1000,
        ..query
    };
    time(name, || {
        let found = reader.find_logs(&query).expect("lines");
        (found.rows.len(), found.cut.is_some())
    });
}

fn ask_messages(store: &Store, count: u64) {
    let all = MessageQuery::default();
    let middle = Position::Time(Timestamp(BEGIN + count / 2 * STEP));
    let host = |text: &str| text.parse().ok();
    messages(store, "newest", all.clone());
    messages(
        store,
        "oldest",
        MessageQuery {
            direction: Direction::Forward,
            ..all.clone()
        },
    );
    messages(
        store,
        "from the middle",
        MessageQuery {
            position: Position::Id(count / 2),
            ..all.clone()
        },
    );
    messages(
        store,
        "from the middle by time",
        MessageQuery {
            position: middle,
            ..all.clone()
        },
    );
    messages(
        store,
        "later than the middle",
        MessageQuery {
            position: middle,
            direction: Direction::Forward,
            ..all.clone()
        },
    );
    for kind in [
        Kind::Operation,
        Kind::Advertise,
        Kind::SwapRequest,
        Kind::Protocol,
    ] {
        messages(
            store,
            &format!("kind {kind}"),
            MessageQuery {
                kinds: vec![kind],
                ..all.clone()
            },
        );
    }
    messages(
        store,
        "all kinds but operation",
        MessageQuery {
            kinds: Kind::ALL
                .iter()
                .copied()
                .filter(|k| *k != Kind::Operation)
                .collect(),
            ..all.clone()
        },
    );
    messages(
        store,
        "sent by the node (none)",
        MessageQuery {
            sender: Some(Side::Local),
            ..all.clone()
        },
    );
    messages(
        store,
        "opened by the node",
        MessageQuery {
            initiator: Some(Side::Local),
            ..all.clone()
        },
    );
    messages(
        store,
        "first host",
        MessageQuery {
            host: host("10.0.0.1"),
            ..all.clone()
        },
    );
    messages(
        store,
        "first host, rare kind",
        MessageQuery {
            host: host("10.0.0.1"),
            kinds: vec![Kind::SwapRequest],
            ..all.clone()
        },
    );
    messages(
        store,
        "first host, common kind",
        MessageQuery {
            host: host("10.0.0.1"),
            kinds: vec![Kind::CurrentHead],
            ..all.clone()
        },
    );
    messages(
        store,
        "no host",
        MessageQuery {
            host: host("1.1.1.1"),
            ..all.clone()
        },
    );
    messages(
        store,
        "connection, all its messages",
        MessageQuery {
            connection: Some(ConnectionId(3)),
            ..all.clone()
        },
    );
    messages(
        store,
        "peer without connections",
        MessageQuery {
            peer_id: Some("id".into()),
            ..all.clone()
        },
    );
    messages(
        store,
        "with an error",
        MessageQuery {
            error: Some(true),
            ..all.clone()
        },
    );
    messages(
        store,
        "hash",
        MessageQuery {
            hash: Some(format!(
                "oo{:049}",
                5u64.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            )),
            ..all.clone()
        },
    );
    messages(
        store,
        "common beginning of hashes, rare kind",
        MessageQuery {
            hash: Some("oo00000".into()),
            kinds: vec![Kind::SwapRequest],
            ..all.clone()
        },
    );
    let reader = store.reader().expect("a reader");
    time("one message with its bytes", || {
        let details = reader.message(count / 3, 1 << 20).expect("a message");
        (
            usize::from(details.is_some_and(|details| !details.cut)),
            false,
        )
    });
}

fn ask_logs(store: &Store, count: u64) {
    let all = LogQuery::default();
    let text = |text: &str| Some(text.to_owned());
    logs(store, "lines: newest", all.clone());
    logs(
        store,
        "lines: errors",
        LogQuery {
            levels: vec![Level::Error],
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: fatal (none)",
        LogQuery {
            levels: vec![Level::Fatal],
            ..all.clone()
        },
    );
    let middle = Position::Time(Timestamp(BEGIN + count / 2 * STEP));
    logs(
        store,
        "lines: from the middle by time",
        LogQuery {
            position: middle,
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: a word of all",
        LogQuery {
            text: text("chain"),
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: a phrase of one in 200",
        LogQuery {
            text: text("\"10.0.0.7 sent\""),
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: a word of one line",
        LogQuery {
            text: text("+chain +77777"),
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: no such word",
        LogQuery {
            text: text("nothing"),
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: without a word of all",
        LogQuery {
            text: text("-chain"),
            ..all.clone()
        },
    );
    logs(
        store,
        "lines: a word of all, errors",
        LogQuery {
            text: text("chain"),
            levels: vec![Level::Error],
            ..all
        },
    );
}

fn open(path: &Path) -> Store {
    let began = Instant::now();
    let store = Store::open(path, Settings::default()).expect("a store");
    println!(
        "opened in {:.1} ms: {} files, {} MiB",
        began.elapsed().as_secs_f64() * 1e3,
        store.health().segments,
        store.health().bytes >> 20
    );
    store
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let full = std::env::var_os("MEMPROF_BENCH_FULL").is_some_and(|value| value == "1");
    let short = std::env::var_os("MEMPROF_BENCH_SHORT").is_some_and(|value| value == "1");
    let count = if full {
        10_000_000
    } else if short {
        100_000
    } else {
        1_000_000
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let store = open(&path);
    for (name, count, entries) in [
        (
            "messages of 250 bytes, with their chunks",
            count,
            (&|n| message(n).to_vec()) as &dyn Fn(u64) -> Vec<Entry>,
        ),
        ("lines, with index of words", count / 2, &|n| vec![line(n)]),
    ] {
        let before = store.health().bytes;
        let (took, processor) = fill(&store, count, entries);
        let bytes = store.health().bytes - before;
        println!(
            "{name:56} {:9.0} a second, {:.0} on one processor; {} bytes each",
            count as f64 / took.as_secs_f64(),
            count as f64 / processor.as_secs_f64(),
            bytes / count,
        );
    }
    let began = Instant::now();
    store.close();
    println!("closed in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    let store = open(&path);
    ask_messages(&store, count);
    ask_logs(&store, count / 2);
}
