//! Rates and times of the store:
//!
//!     cargo bench -p tezos-recorder --bench store
//!
//! `MEMPROF_BENCH_FULL=1` stores 10 million messages instead of one (9 GB in the temporary directory), `MEMPROF_BENCH_SHORT=1`
//! 100,000. Goals: 20,000 messages of 250 bytes a second; lists of 1,000 within 20 ms.

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
const THREAD: ClockId = ClockId::CLOCK_THREAD_CPUTIME_ID;
const ALL_THREADS: ClockId = ClockId::CLOCK_PROCESS_CPUTIME_ID;
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

/// Hashes in no order.
fn hash(n: u64) -> String {
    format!("oo{:049}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
        address: (
            [10, 0, (connection / 200) as u8, (connection % 200) as u8],
            9732,
        )
            .into(),
        initiator: Some(Side::BOTH[connection as usize % 2]),
        sender: Side::Remote,
        kind: kind(n),
        time,
        chunks: (n, n),
        start: 0,
        size: 250,
        preview: Some(format!(
            "{{\"Operation\":{{\"operation\":{{\"branch\":\"{}\"",
            "B".repeat(60)
        )),
        hash: Some(hash(n)),
        error: (n % 500_000 == 3).then(|| "body longer than its grammar".into()),
    };
    [Entry::Chunk(chunk), Entry::Message(Box::new(message))]
}

/// A line of nine words.
fn line(n: u64) -> Entry {
    let level = [Level::Info, Level::Error][usize::from(n.is_multiple_of(1000))];
    let (peer, block, height) = (n % 200, n % 1_000_003, n / 50);
    let message = format!("peer 10.0.0.{peer} sent block {block} of chain main, level {height}");
    Entry::Log(LogEntry {
        time: Timestamp(BEGIN + n * STEP),
        level,
        section: "validator.chain".into(),
        message,
    })
}

/// Puts entries as fast as they are written, and prints how fast.
fn fill<const N: usize>(
    store: &Store,
    name: &str,
    count: u64,
    entries: impl Fn(u64) -> [Entry; N],
) {
    let (began, processor) = (Instant::now(), clock(ALL_THREADS));
    let before = store.health().bytes;
    let writer = store.writer();
    for n in 0..count {
        for entry in entries(n) {
            writer.put(entry);
        }
        // The queue has room for 50,000.
        while n % 100 == 99 && store.health().queue.entries > 20_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    writer.flush();
    let health = store.health();
    assert_eq!((health.failed, health.queue.dropped), (0, 0), "{health:?}");
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    let (rate, own) = (rate(began.elapsed()), rate(clock(ALL_THREADS) - processor));
    let bytes = (health.bytes - before) / count;
    println!("{name:48} {rate:9.0} a second, {own:.0} on one processor; {bytes} bytes each");
}

/// Prints how long a question takes: on the processor, since other programs do not count there, the first time and at best.
fn time(name: &str, mut ask: impl FnMut() -> (usize, bool)) {
    let mut rows = (0, false);
    let times: Vec<_> = (0..RUNS)
        .map(|_| {
            let began = clock(THREAD);
            rows = ask();
            (clock(THREAD) - began).as_secs_f64() * 1e3
        })
        .collect();
    let fastest = times.iter().copied().fold(f64::MAX, f64::min);
    let cut = if rows.1 { ", cut" } else { "" };
    println!(
        "{name:48} {:9.2} ms first, {fastest:8.2} ms again, {} rows{cut}",
        times[0], rows.0
    );
}

/// Time that this thread or all threads have run.
fn clock(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

fn messages(store: &Store, name: &str, change: impl FnOnce(&mut MessageQuery)) {
    let reader = store.reader().expect("a reader");
    let mut query = MessageQuery::default();
    change(&mut query);
    query.limit = 1000;
    time(name, || {
        let found = reader.find_messages(&query).expect("messages");
        (found.rows.len(), found.cut.is_some())
    });
}

fn lines(store: &Store, name: &str, change: impl FnOnce(&mut LogQuery)) {
    let reader = store.reader().expect("a reader");
    let mut query = LogQuery::default();
    change(&mut query);
    query.limit = 1000;
    time(&format!("lines: {name}"), || {
        let found = reader.find_logs(&query).expect("lines");
        (found.rows.len(), found.cut.is_some())
    });
}

fn ask_messages(store: &Store, count: u64) {
    let middle = Position::Time(Timestamp(BEGIN + count / 2 * STEP));
    let first = "10.0.0.1".parse().ok();
    messages(store, "newest", |_| {});
    messages(store, "oldest", |q| q.direction = Direction::Forward);
    messages(store, "from the middle", |q| {
        q.position = Position::Id(count / 2)
    });
    messages(store, "from the middle by time", |q| q.position = middle);
    messages(store, "later than the middle", |q| {
        (q.position, q.direction) = (middle, Direction::Forward);
    });
    for kind in [
        Kind::Operation,
        Kind::Advertise,
        Kind::SwapRequest,
        Kind::Protocol,
    ] {
        messages(store, &format!("kind {kind}"), |q| q.kinds = vec![kind]);
    }
    let others = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| *kind != Kind::Operation);
    messages(store, "all kinds but operation", |q| {
        q.kinds = others.collect()
    });
    messages(store, "sent by the node (none)", |q| {
        q.sender = Some(Side::Local)
    });
    messages(store, "opened by the node", |q| {
        q.initiator = Some(Side::Local)
    });
    messages(store, "first host", |q| q.host = first);
    for kind in [Kind::SwapRequest, Kind::CurrentHead] {
        messages(store, &format!("first host, kind {kind}"), |q| {
            (q.host, q.kinds) = (first, vec![kind]);
        });
    }
    messages(store, "no host", |q| q.host = "1.1.1.1".parse().ok());
    messages(store, "connection", |q| {
        q.connection = Some(ConnectionId(3))
    });
    messages(store, "no peer", |q| q.peer_id = Some("id".into()));
    messages(store, "with an error", |q| q.error = Some(true));
    messages(store, "hash", |q| q.hash = Some(hash(5)));
    messages(store, "beginning of all hashes, rare kind", |q| {
        (q.hash, q.kinds) = (Some("oo00000".into()), vec![Kind::SwapRequest]);
    });
    let reader = store.reader().expect("a reader");
    time("one message with its bytes", || {
        let details = reader.message(count / 3, 1 << 20).expect("a message");
        (
            usize::from(details.is_some_and(|details| !details.cut)),
            false,
        )
    });
}

fn ask_lines(store: &Store, count: u64) {
    let middle = Position::Time(Timestamp(BEGIN + count / 2 * STEP));
    lines(store, "newest", |_| {});
    lines(store, "errors", |q| q.levels = vec![Level::Error]);
    lines(store, "fatal (none)", |q| q.levels = vec![Level::Fatal]);
    lines(store, "from the middle by time", |q| q.position = middle);
    for (name, text) in [
        ("a word of all", "chain"),
        ("a phrase of one in 200", "\"10.0.0.7 sent\""),
        ("a word of one line", "+chain +77777"),
        ("no such word", "nothing"),
        ("without a word of all", "-chain"),
    ] {
        lines(store, name, |q| q.text = Some(text.into()));
    }
    lines(store, "a word of all, errors", |q| {
        (q.text, q.levels) = (Some("chain".into()), vec![Level::Error]);
    });
}

fn open(path: &Path) -> Store {
    let (began, processor) = (Instant::now(), clock(THREAD));
    let store = Store::open(path, Settings::default()).expect("a store");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (took, processor) = (ms(began.elapsed()), ms(clock(THREAD) - processor));
    let health = store.health();
    let (files, mib) = (health.segments, health.bytes >> 20);
    println!("opened in {took:.1} ms, {processor:.1} on the processor: {files} files, {mib} MiB");
    store
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let is_set = |name| std::env::var_os(name).is_some_and(|value| value == "1");
    let count = match (is_set("MEMPROF_BENCH_FULL"), is_set("MEMPROF_BENCH_SHORT")) {
        (true, _) => 10_000_000,
        (false, true) => 100_000,
        (false, false) => 1_000_000,
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let store = open(&path);
    fill(
        &store,
        "messages of 250 bytes, with their chunks",
        count,
        message,
    );
    fill(&store, "lines, with index of words", count / 2, |n| {
        [line(n)]
    });
    let began = Instant::now();
    store.close();
    println!("closed in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    let store = open(&path);
    ask_messages(&store, count);
    ask_lines(&store, count / 2);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("memory: {}", memory.unwrap_or_default());
}
