//! `/v4`: lists, filters, pages and errors.

use serde_json::{Value, json};

use super::client::{Server, ids};
use super::fixture::{
    ACCEPTED, BEGIN, IGNORED, MESSAGES, NONE, OPENED, PEER, PLAIN, Recording, time,
};
use crate::common::{each, text};

#[track_caller]
fn items(server: &Server, target: &str) -> Vec<u64> {
    ids(&server.json(target))
}

#[test]
fn a_message() {
    let Recording { server, .. } = &Recording::new();
    let list = server.json("/v4/messages?limit=1&cursor=6");
    let item = json!({
        "id": 6, "time": time(6).to_string(), "time_ms": time(6) / 1_000_000, "connection": OPENED.to_string(),
        "peer_id": PEER, "address": PLAIN, "initiator": "local", "incoming": false, "kind": "operation",
        "category": "p2p", "size": list["items"][0]["size"], "preview": list["items"][0]["preview"],
        "hash": list["items"][0]["hash"], "error": null,
    });
    assert_eq!(list, json!({"items": [item], "next": 5}));
    assert!(text(&item["hash"]).starts_with('o') && item["size"].as_u64() > Some(40));
    let mut details = server.json("/v4/messages/6");
    let details = details.as_object_mut().unwrap();
    assert_eq!(details.remove("raw"), Some(json!("01".repeat(20))));
    assert_eq!(details.remove("cut"), Some(json!(false)));
    assert_eq!(details.remove("message_cut"), Some(json!(false)));
    assert!(text(&details.remove("plain").unwrap()).starts_with("0000"));
    assert!(details.remove("message").unwrap()["Operation"].is_object());
    assert_eq!(Value::Object(details.clone()), item);
    assert_eq!(server.json("/v4/messages/7")["peer_id"], Value::Null);
}

#[test]
fn filters_of_messages() {
    let Recording { server, .. } = &Recording::new();
    let all = server.json("/v4/messages?limit=1000");
    let hash = text(&server.json("/v4/messages/6")["hash"]).to_owned();
    for (filter, field, value) in [
        ("incoming=true", "incoming", json!(true)),
        ("initiator=local", "initiator", json!("local")),
        ("source_type=remote", "initiator", json!("remote")),
        ("kinds=operation", "kind", json!("operation")),
        ("kind=metadata", "kind", json!("metadata")),
        ("types=ack_message", "kind", json!("ack_message")),
        (&format!("address={PLAIN}"), "address", json!(PLAIN)),
        ("host=::ffff:203.0.113.7", "address", json!(PLAIN)),
        ("host=203.0.113.7", "address", json!(PLAIN)),
        (&format!("peer={PEER}"), "peer_id", json!(PEER)),
        (
            &format!("connection={OPENED}"),
            "connection",
            json!(OPENED.to_string()),
        ),
        (
            "connection=1699999994.000000005",
            "connection",
            json!(OPENED.to_string()),
        ),
        (&format!("hash={hash}"), "hash", json!(hash)),
        (&format!("hash={}", &hash[..8]), "hash", json!(hash)),
    ] {
        let wanted: Vec<u64> = each(&all["items"])
            .filter(|row| row[field] == value)
            .map(|row| row["id"].as_u64().unwrap())
            .collect();
        assert!(
            !wanted.is_empty() && wanted.len() < MESSAGES as usize,
            "{filter}"
        );
        assert_eq!(
            items(server, &format!("/v4/messages?limit=1000&{filter}")),
            wanted,
            "{filter}"
        );
    }
    assert_eq!(items(server, "/v4/messages?error=true"), [MESSAGES - 1]);
    assert_eq!(
        items(server, "/v4/messages?error=false").len() as u64,
        MESSAGES - 1
    );
    assert_eq!(
        items(
            server,
            "/v4/messages?kinds=operation,operation&incoming=false&error=false"
        ),
        [6]
    );
    assert_eq!(items(server, "/v4/messages?peer=idnobody"), NONE);
}

/// Pages of any size have each row once, in order, and say where the next one begins.
#[test]
fn pages() {
    let Recording { server, .. } = &Recording::new();
    for (list, count) in [
        ("/v4/messages?", MESSAGES),
        ("/v4/messages?incoming=true&", 28),
        ("/v4/logs?", 20),
    ] {
        for direction in ["backward", "forward"] {
            let list = format!("{list}direction={direction}&");
            let whole = items(server, &format!("{list}limit=1000"));
            assert_eq!(whole.len() as u64, count);
            assert_eq!(
                server.json(&format!("{list}limit=1000"))["next"],
                Value::Null
            );
            for limit in [1, 3, 7, count] {
                let (mut found, mut cursor) = (Vec::new(), String::new());
                loop {
                    let page = server.json(&format!("{list}limit={limit}&cursor={cursor}"));
                    found.extend(ids(&page));
                    match &page["next"] {
                        Value::Null => break,
                        next => cursor = next.to_string(),
                    }
                    assert_eq!(ids(&page).len() as u64, limit);
                }
                assert_eq!(found, whole, "{list}{limit}");
            }
        }
    }
    let from_time = format!(
        "/v4/messages?timestamp={}&direction=forward&limit=2",
        time(4)
    );
    assert_eq!(server.json(&from_time)["next"], 7);
    assert_eq!(items(server, &format!("{from_time}&cursor=7")), [7, 8]);
}

#[test]
fn connections() {
    let Recording { server, .. } = &Recording::new();
    let opened = server.json(&format!("/v4/connections/{OPENED}"));
    assert_eq!(
        opened,
        json!({
            "id": OPENED.to_string(), "time": OPENED.to_string(), "time_ms": OPENED / 1_000_000, "address": PLAIN,
            "initiator": "local", "peer_id": PEER,
            "versions": {"local": {"port": 9732}, "remote": {"port": 9733}},
            "metadata": {"local": {"disable_mempool": false, "private_node": false}, "remote": null},
            "acks": {"local": "Ack", "remote": null},
            "last": time(6).to_string(), "ended": time(7).to_string(), "end": "seen",
            "state": "partly_decrypted", "reason": "next_chunk_not_found",
            "bytes": {"sent": 1020, "received": 3004, "lost": 24, "gaps": 2}, "chunks": {"sent": 4, "received": 3},
            "ignored": null,
            "remarks": [{"time": time(1).to_string(), "time_ms": time(1) / 1_000_000,
                         "text": "incoming connection message bad proof-of-work, target: 26"}],
        })
    );
    let list = |query: &str| -> (Vec<u64>, Value) {
        let list = server.json(&format!("/v4/connections?{query}"));
        let ids = list["items"].as_array().unwrap().iter();
        let ids = ids.map(|row| text(&row["id"]).parse().unwrap()).collect();
        (ids, list["next"].clone())
    };
    assert_eq!(list(""), (vec![IGNORED, ACCEPTED, OPENED], Value::Null));
    assert_eq!(
        list("limit=1"),
        (vec![IGNORED], json!(ACCEPTED.to_string()))
    );
    assert_eq!(list(&format!("cursor={ACCEPTED}")).0, [ACCEPTED, OPENED]);
    assert_eq!(
        list("direction=forward&limit=2"),
        (vec![OPENED, ACCEPTED], json!(IGNORED.to_string()))
    );
    assert_eq!(list(&format!("peer={PEER}")).0, [OPENED]);
    assert_eq!(list("host=203.0.113.7").0, [OPENED]);
    assert_eq!(list("limit=0"), (vec![], Value::Null));
    let ignored = server.json(&format!("/v4/connections/{IGNORED}"));
    assert_eq!(ignored["ignored"], "opened before the recorder");
    assert_eq!(
        (&ignored["initiator"], &ignored["ended"]),
        (&Value::Null, &Value::Null)
    );
    let state = [&ignored["end"], &ignored["state"], &ignored["reason"]];
    assert_eq!(state, ["unseen", "unrecorded", "opened_before"]);
    let open = server.json(&format!("/v4/connections/{ACCEPTED}"));
    assert_eq!([&open["end"], &open["state"]], ["open", "handshake"]);
}

#[test]
fn logs_and_nodes() {
    let Recording { server, .. } = &Recording::new();
    let list = server.json("/v4/logs?limit=1");
    assert_eq!(
        list,
        json!({"items": [{"id": 19, "time": (BEGIN + 19_000_000_000).to_string(), "time_ms": BEGIN / 1_000_000 + 19_000,
                          "level": "Info", "section": "p2p", "message": "line 19 of \"peer\" "}], "next": 18})
    );
    assert_eq!(items(server, "/v4/logs?levels=warning&limit=2"), [18, 15]);
    assert_eq!(items(server, "/v4/logs?query=seven"), [7]);
    assert_eq!(items(server, &format!("/v4/logs?to={}", BEGIN + 1)), [0]);
    assert_eq!(
        server.json("/v4/nodes"),
        json!({"items": [
            {"name": "tezedge", "p2p_port": 9732, "peer_id": PEER, "identity": "known", "messages": MESSAGES,
             "connections": 3, "logs": 20, "peers": 1,
             "losses": {"bytes": 24, "gaps": 2, "connections": 1, "unrecorded": 1, "undecryptable": 0, "partly_decrypted": 1},
             "first_time": BEGIN.to_string()},
            {"name": "initiator", "p2p_port": 29732, "peer_id": PEER, "identity": "known", "messages": 0,
             "connections": 0, "logs": 0, "peers": 0,
             "losses": {"bytes": 0, "gaps": 0, "connections": 0, "unrecorded": 0, "undecryptable": 0, "partly_decrypted": 0},
             "first_time": null},
        ], "next": null})
    );
    assert_eq!(items(server, "/v4/messages?node=initiator"), NONE);
    assert_eq!(
        items(server, "/v4/messages?node=9732&limit=1"),
        [MESSAGES - 1]
    );
}

#[test]
fn errors() {
    let Recording { server, .. } = &Recording::new();
    for (target, status, said) in [
        (
            "/v4/messages?nonsense=1",
            400,
            "unknown parameter \"nonsense\": use one of limit, ",
        ),
        ("/v4/messages?limit=1&limit=2", 400, "limit is given twice"),
        (
            "/v4/messages?direction=sideways",
            400,
            "direction: \"sideways\" is not forward or backward",
        ),
        (
            "/v4/messages?incoming=1",
            400,
            "incoming: \"1\" is not true or false",
        ),
        (
            "/v4/messages?kinds=nonsense",
            400,
            "kinds: unknown value \"nonsense\"",
        ),
        (
            "/v4/messages?connection=x",
            400,
            "\"x\" is not the id of a connection",
        ),
        ("/v4/messages?host=x", 400, "host: \"x\" has another form"),
        ("/v4/messages?node=x", 404, "no such node: \"x\""),
        ("/v4/messages/x", 400, "\"x\" is not the id of a message"),
        ("/v4/messages/999", 404, "there is no message 999"),
        (
            "/v4/connections?cursor=x",
            400,
            "cursor: \"x\" is not the id of a connection",
        ),
        ("/v4/connections/1", 404, "there is no connection 1"),
        (
            "/v4/connections/x",
            400,
            "\"x\" is not the id of a connection",
        ),
        ("/v4/stream?limit=1", 400, "unknown parameter \"limit\""),
        ("/v4/export.pcapng?kinds=x", 400, "kinds: unknown value"),
        ("/v4/", 404, "no such path"),
    ] {
        let refusal = server.refused(target, status);
        assert!(refusal.starts_with(said), "{target}: {refusal}");
    }
}
