//! Bounds of replies and of the memory that they need.

use std::thread;

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

/// Many clients at once wait for each other instead of for memory.
#[test]
fn many_large_replies() {
    let (_dir, server) = &serve((0..280).map(|n| line(n, 60_000)));
    thread::scope(|scope| {
        let asked: Vec<_> = (0..10)
            .map(|_| scope.spawn(|| server.ids("/v2/log?limit=1000").len()))
            .collect();
        for asked in asked {
            assert!(asked.join().unwrap() > 270);
        }
    });
    let peak = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!("peak: {}", peak.unwrap().trim());
}
