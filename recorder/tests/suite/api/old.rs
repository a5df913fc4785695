//! `/v2` and `/v3`: every parameter, form and error of the contract.

use serde_json::{Value, json};

use super::client::{Server, ids};
use super::fixture::{BEGIN, MESSAGES, NONE, PLAIN, Recording, STEP, time};
use crate::common::{each, text, vectors};

/// Ids of messages that meet a condition, newest first.
fn where_(server: &Server, condition: impl Fn(&Value) -> bool) -> Vec<u64> {
    let all = server.json("/v2/p2p?limit=1000");
    let found = all.as_array().unwrap().iter().filter(|row| condition(row));
    found.map(|row| row["id"].as_u64().unwrap()).collect()
}

#[test]
fn rows_of_messages() {
    let Recording { server, .. } = &Recording::new();
    let rows = server.json("/v2/p2p?direction=forward&limit=8");
    assert_eq!(
        rows[0],
        json!({"id": 0, "timestamp": BEGIN, "remote_addr": PLAIN, "source_type": "local", "incoming": false,
               "category": "connection", "kind": null, "message_preview": rows[0]["message_preview"]})
    );
    assert!(text(&rows[0]["message_preview"]).starts_with("{\"port\":9732"));
    assert_eq!(
        rows[7],
        json!({"id": 7, "timestamp": time(7), "remote_addr": "[2001:db8::1]:40000", "source_type": "remote",
               "incoming": true, "category": "p2p", "kind": "disconnect", "message_preview": "\"Disconnect\""})
    );
    let handshake: Vec<_> = each(&rows)
        .map(|row| {
            (
                text(&row["category"]),
                row["kind"].as_str(),
                row["incoming"] == true,
            )
        })
        .take(7)
        .collect();
    assert_eq!(
        handshake,
        [
            ("connection", None, false),
            ("connection", None, true),
            ("meta", None, false),
            ("meta", None, true),
            ("ack", None, false),
            ("ack", None, true),
            ("p2p", Some("operation"), false),
        ]
    );
}

#[test]
fn limit_cursor_and_direction() {
    let Recording { server, .. } = &Recording::new();
    let last = MESSAGES - 1;
    assert_eq!(server.ids("/v2/p2p").len() as u64, MESSAGES);
    assert_eq!(server.ids("/v2/p2p?limit=0"), NONE);
    assert_eq!(server.ids("/v2/p2p?limit=2"), [last, last - 1]);
    assert_eq!(server.ids("/v2/p2p?limit=2&cursor=5"), [5, 4]);
    assert_eq!(server.ids("/v2/p2p?limit=2&cursor_id=5"), [5, 4]);
    assert_eq!(
        server.ids("/v2/p2p?limit=2&cursor=5&direction=forward"),
        [5, 6]
    );
    assert_eq!(server.ids("/v2/p2p?limit=2&direction=forward"), [0, 1]);
    assert_eq!(
        server.ids("/v2/p2p?limit=2&direction=sideways"),
        [last, last - 1]
    );
    assert_eq!(server.ids("/v2/p2p?limit=2&cursor=99999"), [last, last - 1]);
    assert_eq!(server.ids("/v2/p2p?limit=3&cursor=1"), [1, 0]);
    assert_eq!(server.ids("/v2/p2p?limit=99999999").len() as u64, MESSAGES);
}

#[test]
fn filters_of_messages() {
    let Recording { server, .. } = &Recording::new();
    let of_peer = where_(server, |row| row["remote_addr"] == PLAIN);
    assert_eq!(of_peer.len(), 7);
    for address in [
        PLAIN,
        "[::ffff:203.0.113.7]:9732",
        "%5B::ffff:203.0.113.7%5D%3A9732",
        "203.0.113.7",
    ] {
        assert_eq!(
            server.ids(&format!("/v2/p2p?remote_addr={address}")),
            of_peer
        );
    }
    assert_eq!(server.ids("/v2/p2p?remote_addr=203.0.113.7:1"), NONE);
    for (parameter, field, value) in [
        ("source_type=local", "source_type", json!("local")),
        ("source_type=remote", "source_type", json!("remote")),
        ("incoming=true", "incoming", json!(true)),
        ("incoming=false", "incoming", json!(false)),
        ("types=connection_message", "category", json!("connection")),
        ("types=metadata", "category", json!("meta")),
        ("types=ack_message", "category", json!("ack")),
    ] {
        let wanted = where_(server, |row| row[field] == value);
        assert!(
            !wanted.is_empty() && wanted.len() < MESSAGES as usize,
            "{parameter}"
        );
        assert_eq!(
            server.ids(&format!("/v2/p2p?limit=1000&{parameter}")),
            wanted
        );
    }
    for example in each(&vectors()["messages"]) {
        let kind = text(&example["kind"]);
        let wanted = where_(server, |row| row["kind"] == kind);
        assert!(!wanted.is_empty(), "{kind}");
        assert_eq!(server.ids(&format!("/v2/p2p?types={kind}")), wanted);
    }
    let pair = server.ids("/v2/p2p?types=advertise,block_header&direction=forward");
    let mut wanted = where_(server, |row| {
        row["kind"] == "advertise" || row["kind"] == "block_header"
    });
    wanted.reverse();
    assert_eq!(pair, wanted);
    assert_eq!(server.ids("/v2/p2p?types=operation&incoming=false"), [6]);
    // In the original this one has another name in the parameter.
    for name in [
        "operation_hashes_for_block",
        "operation_hashes_for_blocks",
        "unknown",
    ] {
        assert_eq!(server.ids(&format!("/v2/p2p?types={name}")), NONE);
    }
    assert_eq!(
        server.ids("/v2/p2p?types=&remote_addr=&limit=1&kinds=operation&x=1"),
        [MESSAGES - 1]
    );
}

#[test]
fn times_in_any_unit() {
    let Recording { server, .. } = &Recording::new();
    let ids = |query: &str| server.ids(&format!("/v2/p2p?limit=1000&direction=forward&{query}"));
    for (nanos, name) in [(1_000_000, "ms"), (1_000, "µs"), (1, "ns")] {
        let at = |id| time(id) / nanos;
        assert_eq!(
            ids(&format!("from={}&to={}", at(3), at(5))),
            [3, 4, 5],
            "{name}"
        );
        assert_eq!(ids(&format!("to={}", at(2))), [0, 1, 2], "{name}");
    }
    assert_eq!(ids(&format!("from={}", (time(30) / 1_000_000) + 1)), [31]);
    let all: Vec<u64> = (0..MESSAGES).collect();
    assert_eq!(ids(&format!("from={0}&to={0}", BEGIN / 1_000_000_000)), all);
    let jump = |time: u64, direction| {
        server.ids(&format!(
            "/v2/p2p?limit=3&direction={direction}&timestamp={time}"
        ))
    };
    for time in [time(9), time(9) / 1_000_000] {
        assert_eq!(jump(time, "backward"), [9, 8, 7]);
        assert_eq!(jump(time, "forward"), [10, 11, 12]);
    }
    assert_eq!(jump(BEGIN - STEP, "backward"), NONE);
    assert_eq!(jump(BEGIN - STEP, "forward"), [0, 1, 2]);
    let with_cursor = format!("/v2/p2p?limit=3&timestamp={}&cursor=20", time(9));
    assert_eq!(server.ids(&with_cursor), [9, 8, 7]);
}

#[test]
fn nodes_by_port_and_name() {
    let recording = Recording::new();
    let server = &recording.server;
    for known in ["", "node_name=9732&", "node_name=tezedge&"] {
        assert_eq!(
            server.ids(&format!("/v2/p2p?{known}limit=1")),
            [MESSAGES - 1]
        );
    }
    for known in ["29732", "initiator"] {
        assert_eq!(server.ids(&format!("/v2/p2p?node_name={known}")), NONE);
        assert_eq!(server.ids(&format!("/v2/log?node_name={known}")), NONE);
    }
    for path in ["/v2/p2p?", "/v2/p2p/0?", "/v2/log?", "/v3/connections?"] {
        let path = format!("{path}node_name=a%22b");
        assert_eq!(
            server.status_json(&path, 404),
            r#"no such node: "a\"b""#,
            "{path}"
        );
    }
    // A server of one node has only its own.
    let own = Server::new(recording.api.of_node(0));
    let other = Server::new(recording.api.of_node(1));
    assert_eq!(own.ids("/v3/messages?limit=1&node_name=x"), [MESSAGES - 1]);
    assert_eq!(other.ids("/v3/messages"), NONE);
    assert_eq!(own.json("/v2/version/"), "c0ffee");
    assert_eq!(
        own.get("/openapi/network-recorder-openapi.json").status,
        200
    );
    for path in ["/", "/v2/p2p", "/v4/messages", "/metrics"] {
        assert_eq!(own.refused(path, 404), "no such path");
    }
}

#[test]
fn errors() {
    let Recording { server, .. } = &Recording::new();
    for target in [
        "/v2/p2p?remote_addr=nowhere",
        "/v2/p2p?types=advertise,nonsense",
        "/v2/p2p/abc",
        "/v2/log?log_level=loud",
        "/v3/chunks?cn=1x",
        "/v3/chunk/1.2-sideways-3",
        "/v3/chunk/1.2-local",
    ] {
        let error = server.status_json(target, 400);
        assert!(
            text(&error).starts_with("database error: "),
            "{target}: {error}"
        );
    }
    for target in [
        "/v2/p2p?limit=many",
        "/v2/p2p?limit=-1",
        "/v2/p2p?limit=99999999999999999999",
        "/v2/p2p?cursor=x",
        "/v2/p2p?incoming=maybe",
        "/v2/p2p?source_type=neither",
        "/v2/p2p?limit=1&limit=2",
        "/v2/log?timestamp=now",
    ] {
        let error = server.status_json(target, 400);
        assert!(
            text(&error).starts_with("invalid query: "),
            "{target}: {error}"
        );
    }
    for target in [
        "/v2",
        "/v2/p2p/1/2",
        "/v2//p2p",
        "/v3/chunk",
        "/v5/messages",
        "/v2/p2p//",
    ] {
        assert_eq!(server.refused(target, 404), "no such path", "{target}");
    }
    for method in ["POST", "DELETE", "PUT", "PATCH"] {
        let reply = server.request(method, "/v2/p2p", "Content-Length: 0\r\n");
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some("GET, HEAD")),
            "{method}"
        );
    }
    assert_eq!(server.json("/v2/version"), "c0ffee");
    assert_eq!(server.json("/v2/rpc?limit=30"), json!([]));
    assert_eq!(ids(&server.json("/v2/p2p/?limit=1")), [MESSAGES - 1]);
}
