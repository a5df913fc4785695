//! What the tests of the original network recorder require, over HTTP: limits, cursors, kinds, the log's levels, pages, times and words.

use serde_json::Value;
use tezos_recorder::api::Api;
use tezos_recorder::p2p::message::Kind;
use tezos_recorder::side::Side;
use tezos_recorder::store::{ConnectionId, Entry, Level, LogEntry, MessageEntry, Settings};
use tezos_recorder::time::Timestamp;

use super::client::{Server, ids};
use super::fixture::{node, options, store, write};
use crate::common::{each, text};

/// When the first line of the log was written, in seconds.
const START: u64 = 1_626_264_000;

#[test]
fn limits_cursors_and_kinds() {
    let (_dir, store) = store(Settings::default());
    write(&store, (0..1000).map(message));
    let server = Server::new(Api::new(vec![node("tezedge", 9732, &store)], options()));
    for list in ["/v2/p2p?node_name=tezedge&", "/v3/messages?"] {
        assert_eq!(server.ids(&format!("{list}limit=1000")).len(), 1000);
        for n in 0..8 {
            assert_eq!(server.ids(&format!("{list}limit={n}")).len() as u64, n);
            assert_eq!(server.ids(&format!("{list}cursor={n}"))[0], n);
        }
        let count = |types: &str| {
            server
                .ids(&format!("{list}cursor=999&limit=1000&types={types}"))
                .len()
        };
        let types = [
            "connection_message",
            "metadata",
            "advertise",
            "get_block_headers",
            "block_header",
        ];
        for (n, one) in types.iter().enumerate() {
            assert!(count(one) > 100, "{one}");
            for other in &types[n + 1..] {
                assert_eq!(count(&format!("{one},{other}")), count(one) + count(other));
            }
        }
    }
}

fn message(id: u64) -> Entry {
    let kinds = [
        Kind::ConnectionMessage,
        Kind::Metadata,
        Kind::Advertise,
        Kind::GetBlockHeaders,
        Kind::BlockHeader,
        Kind::Operation,
        Kind::CurrentHead,
    ];
    Entry::Message(Box::new(MessageEntry {
        connection: ConnectionId(1),
        address: "203.0.113.7:9732".parse().unwrap(),
        initiator: Some(Side::Local),
        sender: Side::Remote,
        kind: kinds[id as usize % kinds.len()],
        time: Timestamp(START * 1_000_000_000 + id),
        chunks: (id, id),
        start: 0,
        size: 6,
        preview: None,
        hash: None,
        error: None,
    }))
}

/// Half of the lines before a restart, half of them after it.
#[test]
fn levels_pages_and_times_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    for (before, lines) in [(0, 0..5000), (1, 5000..10_000), (2, 0..0)] {
        let store = tezos_recorder::store::Store::open(dir.path(), Settings::default()).unwrap();
        let store = std::sync::Arc::new(store);
        write(&store, lines.map(line));
        let server = Server::new(Api::new(vec![node("initiator", 29732, &store)], options()));
        if before > 0 {
            levels(&server);
            pages(&server);
            times(&server);
        }
    }
}

fn line(n: u64) -> Entry {
    let level = match (START + n) % 19 {
        1 | 4 | 5 | 8 => Level::Warning,
        7 | 10 => Level::Error,
        _ => Level::Info,
    };
    Entry::Log(LogEntry {
        time: Timestamp((START + n) * 1_000_000_000),
        level,
        section: String::new(),
        message: format!("some line {n}"),
    })
}

fn log(server: &Server, parameters: &str) -> Value {
    server.json(&format!("/v2/log?node_name=initiator&{parameters}"))
}

fn levels(server: &Server) {
    for (asked, levels) in [
        ("info", &["Info"][..]),
        ("warn", &["Warning"]),
        ("error", &["Error"]),
        ("warn,error", &["Warning", "Error"]),
        ("error,info", &["Error", "Info"]),
        ("info,warn", &["Info", "Warning"]),
    ] {
        for direction in ["direction=forward&cursor=0", "direction=backward"] {
            let rows = log(server, &format!("limit=1000&log_level={asked}&{direction}"));
            assert!(each(&rows).all(|row| levels.contains(&text(&row["level"]))));
            assert!(
                levels
                    .iter()
                    .all(|level| each(&rows).any(|row| row["level"] == *level))
            );
        }
    }
}

fn pages(server: &Server) {
    let page = |cursor: u64, first: u64| {
        let found = ids(&log(server, &format!("cursor={cursor}&limit=1000")));
        assert!(
            found.iter().copied().eq((first - 999..=first).rev()),
            "{cursor}"
        );
    };
    let last = ids(&log(server, "limit=1"))[0];
    page(last * 2, last);
    for first in (999..=last).rev().step_by(1000) {
        page(first, first);
    }
    page(1234, 1234);
}

fn times(server: &Server) {
    for (shift, direction, count) in [
        (321, "backward", 322),
        (321, "forward", 500),
        (6789, "backward", 500),
        (6789, "forward", 500),
        (9876, "backward", 500),
        (9876, "forward", 9999 - 9876),
    ] {
        let at = (START + shift) * 1000;
        let rows = log(
            server,
            &format!("timestamp={at}&limit=500&direction={direction}"),
        );
        let times: Vec<u64> = each(&rows)
            .map(|row| row["timestamp"].as_u64().unwrap() / 1_000_000)
            .collect();
        assert_eq!(times.len(), count, "{shift} {direction}");
        let ordered = |pair: &[u64]| {
            if direction == "forward" {
                pair[0] < pair[1]
            } else {
                pair[0] > pair[1]
            }
        };
        assert!(times.windows(2).all(ordered));
        assert_eq!(
            times[0],
            if direction == "forward" {
                at + 1000
            } else {
                at
            }
        );
    }
    for direction in ["backward", "forward"] {
        let at = (START + 3000) * 1000;
        let rows = log(
            server,
            &format!("timestamp={at}&limit=500&direction={direction}&log_level=warn"),
        );
        assert!(each(&rows).all(|row| row["level"] == "Warning"));
    }
}

const WORDS: [&str; 8] = [
    "peer",
    "branch",
    "head",
    "chain",
    "address",
    "ip",
    "message",
    "connection",
];

/// Each line has another of the 255 sets of words, in an order of its own.
#[test]
fn words_of_the_log() {
    let (_dir, store) = store(Settings::default());
    write(
        &store,
        (1..256).map(|n| {
            // 167 has no divisor in common with 256, so each set comes once.
            let set = n * 167 % 256;
            let mut words: Vec<_> = (0..8)
                .filter(|bit| set >> bit & 1 == 1)
                .map(|bit| WORDS[bit])
                .collect();
            let first = n % words.len();
            words.rotate_left(first);
            Entry::Log(LogEntry {
                time: Timestamp(START * 1_000_000_000 + n as u64),
                level: Level::Info,
                section: String::new(),
                message: words.join(" "),
            })
        }),
    );
    let server = Server::new(Api::new(vec![node("initiator", 29732, &store)], options()));
    for (query, limit, one, none, all) in [
        ("peer", 500, &["peer"][..], &[][..], &[][..]),
        ("peer%20-branch", 500, &["peer"], &["branch"], &[]),
        (
            "peer%20chain%20-branch",
            500,
            &["peer", "chain"],
            &["branch"],
            &[],
        ),
        (
            "peer%20-branch%20-head",
            500,
            &["peer"],
            &["branch", "head"],
            &[],
        ),
        (
            "ip%20address%20-peer",
            500,
            &["ip", "address"],
            &["peer"],
            &[],
        ),
        // Its tests send the signs as they are.
        ("+ip%20+address", 16, &[], &[], &["ip", "address"]),
        ("%2Bip+%2Baddress", 500, &[], &[], &["ip", "address"]),
        (
            "+head%20+chain%20+branch%20-peer%20-connection",
            4,
            &[],
            &["peer", "connection"],
            &["head", "chain", "branch"],
        ),
        (
            "%2Bhead%20%2Bchain%20%2Bbranch%20-peer%20-connection",
            500,
            &[],
            &["peer", "connection"],
            &["head", "chain", "branch"],
        ),
    ] {
        let wanted = |message: &str| {
            let has = |word: &&str| message.split(' ').any(|w| w == *word);
            (one.is_empty() || one.iter().any(has)) && !none.iter().any(has) && all.iter().all(has)
        };
        let lines = log(&server, "limit=500");
        let expected: Vec<_> = each(&lines)
            .map(|row| text(&row["message"]))
            .filter(|m| wanted(m))
            .take(limit)
            .collect();
        let rows = log(&server, &format!("limit={limit}&query={query}"));
        let found: Vec<_> = each(&rows).map(|row| text(&row["message"])).collect();
        assert_eq!(found, expected, "{query}");
    }
}
