//! Rates of decoding on one processor, and times of searches after lost bytes:
//!
//!     cargo bench -p tezos-recorder
//!
//! Goals: 300,000 messages of 250 bytes a second; a gap of 64 KiB resynchronised within a second.

use std::hint::black_box;
use std::time::Duration;

use tezos_recorder::connection::{Connection, Event, Remark};
use tezos_recorder::side::{Both, Side};
use tezos_recorder::time::Timestamp;

#[path = "../../fuzz/check_recorder.rs"]
#[allow(dead_code)]
mod check;

use check::{Peers, connection, record};

/// Messages of each run.
const MESSAGES: usize = 100_000;
/// Runs, of which the fastest counts: other programs only slow them down.
const RUNS: usize = 5;

/// Time that this thread has run: other programs do not count.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.expect("the kernel counts run time (CONFIG_SCHED_INFO)"))
}

/// An operation of `size` bytes with its length and tag, whose data is pseudo-random.
fn operation(n: usize, size: usize) -> Vec<u8> {
    let mut state = n as u32 | 1;
    let body = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let length = (size as u32 - 4).to_be_bytes();
    let head = [&length[..], &[0, 0x31]].concat();
    head.into_iter().chain(body).take(size).collect()
}

/// A connection that has seen the handshake, and the peer's first byte that it has not.
fn open(peers: &Peers, sink: &mut dyn FnMut(Event<'_>)) -> (Connection, usize) {
    let mut connection = connection();
    let start = peers.starts.remote[3];
    for (side, to) in [(Side::Local, peers.sent.local.len()), (Side::Remote, start)] {
        let record = record(peers.sent.of(side), 0, to, 1);
        connection.record(side, &record, Timestamp(1), sink);
    }
    (connection, start)
}

/// Gives the peer's chunks, each in a record; returns the time that it took.
fn decode(peers: &Peers, sink: &mut dyn FnMut(Event<'_>)) -> Duration {
    let (mut connection, _) = open(peers, sink);
    let sent = &peers.sent.remote;
    let ends = peers.starts.remote[4..].iter().copied().chain([sent.len()]);
    let chunks: Vec<_> = peers.starts.remote[3..].iter().copied().zip(ends).collect();
    let began = processor_time();
    for (from, to) in chunks {
        let record = record(sent, from, to, 1);
        connection.record(Side::Remote, &record, Timestamp(1), sink);
    }
    processor_time() - began
}

fn rate(name: &str, peers: &Peers, sink: &mut dyn FnMut(&Event<'_>)) {
    let mut messages = 0;
    let mut count = |event: Event<'_>| {
        messages += usize::from(matches!(event, Event::Message(_)));
        sink(&event);
    };
    let times = (0..RUNS).map(|_| decode(peers, &mut count));
    let fastest = times.min().unwrap_or_default();
    assert_eq!(messages, RUNS * (MESSAGES + 6));
    let rate = MESSAGES as f64 / fastest.as_secs_f64();
    println!("{name:48} {rate:9.0} messages/s");
}

/// Authenticates chunks that do not match, as a search does.
fn authenticate(size: usize) {
    let peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 1);
    let mut opener = peers.opener(Side::Remote);
    let key = opener.tag_key(9);
    let (sealed, count) = (vec![7; size], (200 << 20) / (size + 1000));
    let began = processor_time();
    let matches = (0..count).filter(|_| key.verify(black_box(&sealed)).is_some());
    assert_eq!(matches.count(), 0);
    let nanos = (processor_time() - began).as_nanos() as f64 / count as f64;
    println!("authenticating {size} bytes: {nanos:.0} ns");
}

/// Loses `lost` bytes of a stream of messages of these sizes, and prints how long the search for the next chunk takes.
fn resynchronise(name: &str, lost: usize, sizes: &[usize]) {
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 1);
    let mut rest = lost + (1 << 20);
    for (n, size) in sizes.iter().cycle().enumerate() {
        for part in operation(n, *size).chunks(65_517) {
            peers.send(Side::Remote, part);
        }
        rest = rest.saturating_sub(*size);
        if rest == 0 {
            break;
        }
    }
    let mut resumed = None;
    let mut sink = |event: Event<'_>| {
        if let Event::Remark { remark, .. } = event {
            match remark {
                Remark::Resumed { chunk, lost, .. } => resumed = Some((chunk, lost)),
                Remark::BytesLost { .. } => {}
                other => println!("{name}: {other}"),
            }
        }
    };
    let (mut connection, start) = open(&peers, &mut sink);
    let sent = &peers.sent.remote;
    let (from, to) = (start + 150_001, start + 150_001 + lost);
    let mut took = Duration::ZERO;
    let mut at = to;
    let before = record(sent, start, from, 1);
    connection.record(Side::Remote, &before, Timestamp(1), &mut sink);
    while at == to || connection.is_searching() && at < sent.len() {
        let after = record(sent, at, at + 1460, 1);
        connection.record(Side::Remote, &after, Timestamp(1), &mut sink);
        connection.expire(Timestamp(3_000_000_000), &mut sink);
        at += 1460;
        let began = processor_time();
        while connection.search(1 << 20, &mut sink) {}
        took += processor_time() - began;
    }
    connection.end(Both::default(), &mut sink);
    let found = resumed.map_or("not found".into(), |(chunk, lost)| {
        format!("chunk {chunk}, {lost} lost, after {} KiB", (at - to) >> 10)
    });
    println!("{name:48} {:9.1} ms  {found}", took.as_secs_f64() * 1e3);
}

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    let mut peers = Peers::connected(Side::Local, "TEZOS_MAINNET", 1);
    for n in 0..MESSAGES {
        peers.send(Side::Remote, &operation(n, 250));
    }
    rate("messages of 250 bytes", &peers, &mut |event| {
        black_box(event);
    });
    rate("the same with previews", &peers, &mut |event| {
        if let Event::Message(message) = event {
            black_box(message.preview());
        }
    });
    rate("the same with previews and hashes", &peers, &mut |event| {
        if let Event::Message(message) = event {
            black_box((message.preview(), message.content_hash()));
        }
    });
    for size in [64, 268, 1024, 16 << 10, 65_533] {
        authenticate(size);
    }
    for lost in [1 << 10, 64 << 10, 1 << 20] {
        let kib = lost >> 10;
        resynchronise(
            &format!("{kib} KiB lost, messages of 250 bytes"),
            lost,
            &[250],
        );
        let mixed = [60, 250, 1200, 90, 5000, 250, 30_000];
        resynchronise(&format!("{kib} KiB lost, 60 to 30,000 bytes"), lost, &mixed);
        resynchronise(&format!("{kib} KiB lost, 300,000 bytes"), lost, &[300_000]);
    }
}
