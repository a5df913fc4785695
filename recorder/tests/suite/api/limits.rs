//! Bounds of replies and of the memory that they need.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use tezos_recorder::api::Api;
use tezos_recorder::store::{Entry, Level, LogEntry, Settings};
use tezos_recorder::time::Timestamp;

use super::client::{Server, ids};
use super::fixture::{node, options, store, write};

fn line(n: u64, size: usize) -> Entry {
    Entry::Log(LogEntry {
        time: Timestamp(n),
        level: Level::Info,
        section: String::new(),
        message: "y".repeat(size),
    })
}

fn serve(lines: impl Iterator<Item = Entry>) -> (impl Drop, Server) {
    let (dir, store) = store(Settings::default());
    write(&store, lines);
    (
        dir,
        Server::new(Api::new(vec![node("x", 1, &store)], options())),
    )
}

#[test]
fn at_most_ten_thousand_rows() {
    let (_dir, server) = serve((0..10_010).map(|n| line(n, 10)));
    for limit in [10_000, 10_001, u64::MAX] {
        let rows = server.ids(&format!("/v2/log?limit={limit}"));
        assert!(rows.into_iter().eq((10..10_010).rev()), "{limit}");
        let list = server.json(&format!("/v4/logs?limit={limit}"));
        assert_eq!((ids(&list).len(), &list["next"]), (10_000, &9.into()));
    }
    // Whatever is read at once, the next row is known.
    for limit in [255, 256, 257, 511, 512, 513] {
        let list = server.json(&format!("/v4/logs?limit={limit}"));
        let found = (ids(&list).len(), list["next"].as_u64());
        assert_eq!(found, (limit, Some(10_009 - limit as u64)));
        let list = server.json(&format!("/v4/logs?limit={limit}&cursor={}", limit - 1));
        assert_eq!(
            (ids(&list).len(), &list["next"]),
            (limit, &serde_json::Value::Null)
        );
    }
}

/// A list ends after 16 MiB, and tells where to go on.
#[test]
fn large_rows_end_a_list() {
    const SIZE: usize = 60_000;
    let (_dir, server) = serve((0..600).map(|n| line(n, SIZE)));
    let reply = server.get("/v4/logs?limit=10000");
    assert!(
        (16 << 20..(16 << 20) + SIZE + 200).contains(&reply.body.len()),
        "{}",
        reply.body.len()
    );
    let list = serde_json::from_slice(&reply.body).unwrap();
    let first = ids(&list);
    let next = list["next"].as_u64().unwrap();
    assert_eq!(next, 600 - first.len() as u64 - 1);
    let rest = server.json(&format!("/v4/logs?limit=10000&cursor={next}"));
    let second = ids(&rest);
    let all = first.iter().chain(&second).copied();
    assert!(all.eq((600 - (first.len() + second.len()) as u64..600).rev()));
}

/// Replies that nobody reads hold a bounded amount of memory; further ones wait until it is free.
#[test]
fn unread_replies_hold_little_memory() {
    let (_dir, server) = &serve((0..280).map(|n| line(n, 60_000)));
    let mut asked: Vec<_> = (0..8)
        .map(|_| server.send("GET", "/v2/log?limit=1000", ""))
        .collect();
    let has_begun = |client: &BufReader<TcpStream>| {
        client.get_ref().set_nonblocking(true).unwrap();
        let begun = client.get_ref().peek(&mut [0]).is_ok();
        client.get_ref().set_nonblocking(false).unwrap();
        begun
    };
    let begun = |asked: &[BufReader<TcpStream>]| asked.iter().filter(|c| has_begun(c)).count();
    // Each reply holds 16 of 64 MiB.
    let start = Instant::now();
    wait_until(|| begun(&asked) == 4);
    // As long as the others would take, and some more; after 15 s slow readers are sent away.
    thread::sleep((2 * start.elapsed() + Duration::from_secs(1)).min(Duration::from_secs(10)));
    assert_eq!(begun(&asked), 4);
    // Small requests about the recorder itself do not wait.
    assert_eq!(server.get("/v4/health").status, 200);
    for client in asked.iter_mut().filter(|client| has_begun(client)) {
        client.read_to_end(&mut Vec::new()).unwrap();
    }
    wait_until(|| begun(&asked) == 8);
}

fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("it did not come about");
}
