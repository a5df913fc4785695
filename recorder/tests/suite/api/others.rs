//! The page, health, metrics and the export.

use std::sync::Arc;

use memprof_server::{ServerOptions, Token};
use serde_json::json;
use tezos_recorder::api::{ASSETS, Api, ApiOptions, CaptureHealth};
use tezos_recorder::store::{Settings, Store};

use super::client::Server;
use super::fixture::{MESSAGES, Recording, node, record, store};
use crate::pcapng::reader;

#[test]
fn the_page_is_served() {
    let Recording { server, .. } = &Recording::new();
    let page = server.get("/");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    // What the page and its scripts name is there.
    let mut named = 0;
    for asset in ASSETS {
        let reply = server.get(asset.path);
        assert_eq!(
            (reply.status, reply.body.as_slice()),
            (200, asset.bytes),
            "{}",
            asset.path
        );
        let text = String::from_utf8_lossy(asset.bytes);
        let (dir, _) = asset.path.rsplit_once('/').unwrap();
        for quoted in text
            .split('"')
            .filter(|t| t.ends_with(".js") || t.ends_with(".css") || t.ends_with(".svg"))
        {
            let path = match quoted.strip_prefix("./") {
                Some(beside) => format!("{dir}/{beside}"),
                None => format!("/{quoted}"),
            };
            assert!(
                ASSETS.iter().any(|asset| asset.path == path),
                "{} names {quoted}",
                asset.path
            );
            named += 1;
        }
    }
    assert!(named > 10);
}

#[test]
fn health() {
    let Recording { server, .. } = &Recording::new();
    let health = server.json("/v4/health");
    assert_eq!(
        (&health["status"], &health["version"]),
        (&json!("ok"), &json!("1.2.3"))
    );
    assert_eq!(health["capture"]["lost_events"], 0);
    assert_eq!(health["nodes"][0]["name"], "tezedge");
    assert!(
        health["nodes"][0]["bytes"].as_u64() > Some(10_000),
        "{health}"
    );
    let (_dir, store) = store(Settings::default());
    let capture = CaptureHealth {
        source: "sockets".into(),
        lost_events: 3,
        lost_bytes: 300,
        ..CaptureHealth::default()
    };
    let options = ApiOptions {
        version: "a\"b".into(),
        commit: String::new(),
        capture: Some(Arc::new(move || capture.clone())),
    };
    let server = Server::new(Api::new(vec![node("x", 1, &store)], options));
    let health = server.json("/v4/health");
    assert_eq!(
        (&health["status"], &health["capture"]["lost_bytes"]),
        (&json!("degraded"), &json!(300))
    );
    let metrics = server.get("/metrics");
    assert!(
        metrics
            .text()
            .contains("\ntezos_recorder_capture_lost_bytes_total 300\n")
    );
    assert!(metrics.text().contains("{version=\"a\\\"b\"} 1\n"));
}

#[test]
fn metrics() {
    let Recording { server, .. } = &Recording::new();
    let reply = server.get("/metrics");
    assert_eq!(
        reply.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let text = reply.text();
    for line in [
        &format!("tezos_recorder_records_total{{node=\"tezedge\",kind=\"message\"}} {MESSAGES}"),
        "tezos_recorder_records_total{node=\"tezedge\",kind=\"log\"} 20",
        "tezos_recorder_records{node=\"initiator\",kind=\"log\"} 0",
        "tezos_recorder_store_dropped_total{node=\"tezedge\"} 0",
        "# TYPE tezos_recorder_store_bytes gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    // Each sample is of the family before it, which has one help and one type.
    let mut family = "";
    for line in text.lines() {
        match line.strip_prefix("# HELP ") {
            Some(rest) => family = rest.split(' ').next().unwrap(),
            None => assert!(line.contains(family), "{line}"),
        }
        if !line.starts_with('#') {
            let (_, value) = line.rsplit_once(' ').unwrap();
            value.parse::<u64>().unwrap();
        }
    }
}

#[test]
fn the_export_has_all_chunks_and_messages() {
    let Recording { server, .. } = &Recording::new();
    let reply = server.get("/v4/export.pcapng");
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/x-pcapng"))
    );
    let name = reply.header("content-disposition").unwrap();
    assert!(name.contains("tezedge.pcapng"), "{name}");
    let packets = |file: &[u8]| {
        let blocks = reader::blocks(file);
        let packets = || blocks.iter().filter(|block| block.kind == reader::PACKET);
        let of = |interface| {
            packets()
                .filter(|block| block.interface == interface)
                .count() as u64
        };
        (of(0), of(1))
    };
    let whole = packets(&reply.body);
    assert_eq!(whole.1, MESSAGES);
    // A handshake of three packets before the first chunk of the connection; that of the other one begins later.
    assert!(whole.0 >= MESSAGES + 3, "{whole:?}");
    let one = packets(
        &server
            .get("/v4/export.pcapng?kinds=operation&incoming=false")
            .body,
    );
    assert_eq!(one, (1, 1));
    assert_eq!(packets(&server.get("/v4/export.pcapng?limit=3").body).1, 3);
    assert_eq!(
        packets(&server.get("/v4/export.pcapng?node=initiator").body),
        (0, 0)
    );
}

#[test]
fn records_need_the_token_and_the_page_does_not() {
    let (_dir, store) = store(Settings::default());
    record(&store);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let options = ServerOptions {
        token: Some(Arc::new(Token::read(&file).unwrap())),
        ..ServerOptions::default()
    };
    let server = Server::with(
        Api::new(vec![node("x", 1, &store)], ApiOptions::default()),
        options,
    );
    assert_eq!(server.get("/").status, 200);
    for path in [
        "/v2/p2p",
        "/v4/messages",
        "/v4/stream",
        "/v4/export.pcapng",
        "/metrics",
        "/v4/health",
        "/none",
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
        let shown = "Authorization: Bearer 0123456789abcdef\r\n";
        if path != "/v4/stream" {
            assert_ne!(server.request("GET", path, shown).status, 401, "{path}");
        }
    }
}

/// The server gives the store back when it ends.
#[test]
fn the_store_can_be_closed_behind_the_server() {
    let recording = Recording::new();
    let mut events = recording.server.events("/v4/stream", "");
    events.next().unwrap();
    let Recording {
        server, api, store, ..
    } = recording;
    drop((server, api));
    assert!(events.next().is_none());
    let store: Store = Arc::into_inner(store).unwrap();
    store.close();
}
