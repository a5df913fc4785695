//! `/v3`: connections and chunks.

use serde_json::{Value, json};

use super::fixture::{BEGIN, MESSAGES, PEER, PLAIN, Recording};
use crate::common::{each, text};

#[test]
fn connections_of_a_node() {
    let Recording { server, .. } = &Recording::new();
    let opened = json!(["1699999994.000000005",
        {"initiator": "local", "remote_addr": PLAIN, "peer_id": PEER,
         "comments": ["incoming connection message bad proof-of-work, target: 26"]}]);
    let ignored = json!(["1699999997.000000000",
        {"initiator": null, "remote_addr": "192.0.2.9:1234", "peer_id": "unknown",
         "comments": ["opened before the recorder"]}]);
    let all = server.json("/v3/connections");
    assert_eq!(
        (all.as_array().unwrap().len(), &all[0], &all[2]),
        (3, &opened, &ignored)
    );
    assert_eq!(all[1][1]["peer_id"], "unknown");
    assert_eq!(server.json("/v3/connections/?limit=1"), json!([opened]));
}

#[test]
fn chunks_of_connections() {
    let Recording { server, .. } = &Recording::new();
    let all = server.json("/v3/chunks?limit=1000");
    assert_eq!(all.as_array().unwrap().len() as u64, MESSAGES);
    let of_opened = server.json("/v3/chunks?cn=1699999994.5");
    assert_eq!(of_opened.as_array().unwrap().len(), 7);
    assert_eq!(of_opened, server.json("/v3/chunks?cn=1699999994.000000005"));
    assert_eq!(
        of_opened[6],
        json!(["1699999994.000000005-local-3",
            {"net": true, "timestamp": BEGIN / 1_000_000_000, "bytes": "01".repeat(20),
             "plain": of_opened[6][1]["plain"]}])
    );
    assert_eq!(server.json("/v3/chunks?limit=1"), json!([all[0]]));
    assert_eq!(server.json("/v3/chunks?limit=0"), json!([]));
    for id in ["1699999994.000000005-local-3", "1699999994.5-local-3"] {
        assert_eq!(server.json(&format!("/v3/chunk/{id}")), of_opened[6][1]);
    }
    assert_eq!(server.json("/v3/chunk/1699999994.5-local-99"), Value::Null);
    // The largest one is cut in the list only.
    let long = each(&all)
        .find(|row| text(&row[1]["plain"]).contains("...truncated"))
        .unwrap();
    let (shown, whole) = (
        text(&long[1]["plain"]),
        server.json(&format!("/v3/chunk/{}", text(&long[0]))),
    );
    let (digits, rest) = shown.split_once("...truncated ").unwrap();
    let whole = text(&whole["plain"]);
    assert_eq!((digits.len(), &whole[..digits.len()]), (2 << 16, digits));
    assert_eq!(rest, format!("{} bytes", whole.len() / 2 - (1 << 16)));
}
