//! The requests of the TezEdge Explorer, in its spelling, with the parameters in its order.

use super::client::Server;
use super::fixture::{PLAIN, Recording, time};
use crate::common::{each, text};
use serde_json::Value;

/// A page shows rows with dense ids, newest first, of which it reads these fields.
fn shown(server: &Server, target: &str) -> Vec<u64> {
    let rows = server.json(target);
    for row in each(&rows) {
        assert!(
            row["timestamp"].is_u64()
                && row["category"].is_string()
                && row["incoming"].is_boolean()
        );
        assert!(["local", "remote"].contains(&text(&row["source_type"])));
        assert!(row["kind"].is_string() || row["kind"].is_null());
    }
    each(&rows).map(|row| row["id"].as_u64().unwrap()).collect()
}

#[test]
fn the_network_page() {
    let Recording { server, .. } = &Recording::new();
    let all = shown(server, "/v2/p2p?node_name=9732&limit=1000");
    assert!(all.iter().copied().eq((0..all.len() as u64).rev()));
    let all_kinds = "operation,get_operations";
    let kinds = shown(
        server,
        &format!("/v2/p2p?node_name=9732&types={all_kinds}&limit=1000"),
    );
    assert_eq!(kinds.len(), 4);
    assert_eq!(
        shown(
            server,
            "/v2/p2p?node_name=9732&types=connection_message&limit=1000"
        ),
        [1, 0]
    );
    let local = shown(
        server,
        "/v2/p2p?node_name=9732&source_type=local&limit=1000",
    );
    assert!(local.iter().copied().eq((0..7).rev()));
    // A click on an address filters by the very text that is shown.
    let address =
        text(&server.json("/v2/p2p/?node_name=9732&limit=1000")[30]["remote_addr"]).to_owned();
    assert_eq!(address, PLAIN);
    let of_address = format!(
        "/v2/p2p?node_name=9732&types=metadata&source_type=local&remote_addr={address}&cursor=998&limit=1000"
    );
    assert_eq!(shown(server, &of_address), [3, 2]);
    // The first page, of which id 0 is the last.
    assert_eq!(
        shown(server, "/v2/p2p?node_name=9732&cursor=998&limit=1000").last(),
        Some(&0)
    );
    let clicked = server.json("/v2/p2p/6?node_name=9732");
    assert!(
        clicked["message"]["Operation"].is_object() && clicked["original_bytes"][0].is_string()
    );
}

/// It asks for a time in nanoseconds as `from`, twice, and shows both halves.
#[test]
fn a_jump_to_a_time() {
    let Recording { server, .. } = &Recording::new();
    let at = time(12) / 1_000_000 * 1_000_000;
    let half = |direction, list: &str| {
        shown(
            server,
            &format!("/v2/{list}?node_name=9732&from={at}&direction={direction}&limit=5"),
        )
    };
    assert_eq!(half("backward", "p2p"), [11, 10, 9, 8, 7]);
    assert_eq!(half("forward", "p2p"), [12, 13, 14, 15, 16]);
    // With both ends it is a range.
    let range = format!("/v2/p2p?from={}&to={}&limit=1000", time(3), time(5));
    assert_eq!(shown(server, &range), [5, 4, 3]);
}

#[test]
fn the_page_of_logs() {
    let Recording { server, .. } = &Recording::new();
    let all = server.json("/v2/log?node_name=9732&limit=1000");
    assert_eq!(all.as_array().map(Vec::len), Some(20));
    assert!(each(&all).all(|row| row["timestamp"].is_u64() && row["section"].is_string()));
    let searched: Value = server.json("/v2/log?node_name=9732&query=%22of%20peer%22&limit=1000");
    assert_eq!(searched.as_array().map(Vec::len), Some(20));
    assert_eq!(
        server.ids("/v2/log?node_name=9732&query=%22seven%22&limit=1000"),
        [7]
    );
    let at = all[10]["timestamp"].as_u64().unwrap() / 1_000_000;
    let half = |direction| {
        server.ids(&format!(
            "/v2/log?node_name=9732&timestamp={at}&direction={direction}&limit=3"
        ))
    };
    assert_eq!(
        (half("backward"), half("forward")),
        (vec![9, 8, 7], vec![10, 11, 12])
    );
}

/// It is served from another port of this machine.
#[test]
fn its_origin_may_read() {
    let Recording { server, .. } = &Recording::new();
    let ask =
        |origin: &str| server.request("GET", "/v2/p2p?limit=1", &format!("Origin: {origin}\r\n"));
    let allowed = |origin| {
        ask(origin)
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    assert_eq!(
        allowed("http://localhost:4200").as_deref(),
        Some("http://localhost:4200")
    );
    assert_eq!(allowed("https://example.org"), None);
    let reply = server.request("GET", "/v2/p2p?limit=1", "Host: rebound.example\r\n");
    assert_eq!(reply.status, 403, "{}", reply.text());
    assert!(
        reply
            .text()
            .contains("start tezos-recorder with --allow-host")
    );
}
