//! Bounds of replies and of the memory that they need.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use tezos_recorder::api::Api;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{
    ChunkEntry, ConnectionId, Entry, Level, LogEntry, MessageEntry, Settings,
};
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
    // The old form of a list has no room for that but in a header.
    for (target, cut) in [
        ("/v2/log?limit=10000", Some(next)),
        ("/v3/logs?limit=10000", Some(next)),
        (
            "/v2/log?limit=10000&direction=forward",
            Some(first.len() as u64),
        ),
        (&format!("/v2/log?limit={}", first.len()), None),
        (&format!("/v2/log?limit={}", first.len() + 1), Some(next)),
        ("/v2/log?limit=10000&cursor=100", None),
        ("/v2/log?limit=0", None),
        ("/v2/p2p", None),
    ] {
        let reply = server.get(target);
        let found = reply.header("x-list-cut-at").map(str::to_owned);
        assert_eq!(found, cut.map(|id| id.to_string()), "{target}");
        let exposed = reply.header("access-control-expose-headers");
        assert_eq!(exposed, cut.map(|_| "x-list-cut-at"), "{target}");
    }
}

fn chunk(n: u64, plain: Vec<u8>) -> Entry {
    Entry::Chunk(ChunkEntry {
        connection: ConnectionId(5),
        sender: Side::Local,
        number: Some(n),
        offset: 0,
        time: Timestamp(n),
        raw: plain.clone(),
        plain: Some(plain),
    })
}

#[test]
fn a_list_of_chunks_says_where_it_was_cut() {
    let (_dir, server) = serve((0..100).map(|n| chunk(n, vec![7; 60_000])));
    let reply = server.get("/v3/chunks?limit=1000");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&reply.body).unwrap();
    assert!((60..80).contains(&rows.len()), "{}", rows.len());
    let next = format!("0.000000005-local-{}", rows.len());
    assert_eq!(reply.header("x-list-cut-at"), Some(&next[..]));
    for limit in [0, 10, rows.len()] {
        let reply = server.get(&format!("/v3/chunks?limit={limit}"));
        assert_eq!(reply.header("x-list-cut-at"), None, "{limit}");
    }
}

/// A header of a block with that much data of its protocol.
fn block_header(size: usize) -> Vec<u8> {
    let header = [&[0; 4 + 1 + 32 + 8 + 1 + 32 + 4 + 32][..], &vec![7; size]].concat();
    [
        &(header.len() as u32 + 2).to_be_bytes()[..],
        &[0, 0x21],
        &header,
    ]
    .concat()
}

/// The largest details fit into the memory that is reserved for them; larger JSON is left out, which is said.
#[test]
fn details_are_of_bounded_size() {
    const MAX_JSON: usize = 5 << 20;
    for (size, is_cut) in [
        (MAX_JSON / 2 - 1000, false),
        (MAX_JSON / 2, true),
        (8_000_000, true),
    ] {
        let plain = block_header(size);
        let message = MessageEntry {
            connection: ConnectionId(5),
            address: "1.2.3.4:9732".parse().unwrap(),
            initiator: None,
            sender: Side::Local,
            kind: Kind::BlockHeader,
            time: Timestamp(5),
            chunks: (5, 5),
            start: 0,
            size: plain.len() as u64,
            preview: None,
            hash: None,
            error: None,
        };
        let entries = [chunk(5, plain), Entry::Message(Box::new(message))];
        let (_dir, server) = serve(entries.into_iter());
        for (target, flag) in [("/v2/p2p/0", "error"), ("/v4/messages/0", "message_cut")] {
            let reply = server.get(target);
            assert!(
                reply.body.len() < 16 << 20,
                "{target}: {}",
                reply.body.len()
            );
            let details: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(details["message"].is_null(), is_cut, "{target} {size}");
            let said = match &details[flag] {
                serde_json::Value::Bool(said) => *said,
                error => error.as_str().unwrap().contains("the JSON is left out"),
            };
            assert_eq!(said, is_cut, "{target} {size}");
        }
    }
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
