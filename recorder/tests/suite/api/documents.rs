//! The OpenAPI documents against replies, and against what the server reads.

use std::collections::BTreeSet;

use serde_json::Value;
use tezos_recorder::api::{OPENAPI, OPENAPI_OLD};

use super::document::{check, schema};
use super::fixture::{ACCEPTED, OPENED, Recording};
use crate::common::text;

fn documents() -> [Value; 2] {
    [OPENAPI_OLD, OPENAPI].map(|document| serde_json::from_str(document).unwrap())
}

#[test]
fn they_are_served() {
    let Recording { server, .. } = &Recording::new();
    let [old, new] = documents();
    assert_eq!(server.json("/openapi/network-recorder-openapi.json"), old);
    assert_eq!(server.json("/v4/openapi.json"), new);
    for document in [old, new] {
        for path in document["paths"].as_object().unwrap().keys() {
            let target = path.replace("{id}", "0");
            let reply = server.request("HEAD", &target, "");
            assert!([200, 400, 404].contains(&reply.status), "{path}");
            assert!(!reply.text().contains("no such path"));
        }
    }
}

#[test]
fn replies_are_as_described() {
    let Recording { server, .. } = &Recording::new();
    let [old, new] = &documents();
    let mut asked = BTreeSet::new();
    let chunk = "/v3/chunk/1699999994.5-local-3";
    for (document, path, targets) in [
        (
            old,
            "/v2/p2p",
            &["/v2/p2p?limit=1000", "/v2/p2p?limit=0"][..],
        ),
        (
            old,
            "/v2/p2p/{id}",
            &["/v2/p2p/0", "/v2/p2p/31", "/v2/p2p/6", "/v2/p2p/999"],
        ),
        (old, "/v2/log", &["/v2/log"]),
        (old, "/v2/rpc", &["/v2/rpc"]),
        (old, "/v2/version", &["/v2/version"]),
        (old, "/v3/messages", &["/v3/messages"]),
        (old, "/v3/message/{id}", &["/v3/message/3"]),
        (old, "/v3/logs", &["/v3/logs"]),
        (old, "/v3/connections", &["/v3/connections"]),
        (old, "/v3/chunks", &["/v3/chunks"]),
        (old, "/v3/chunk/{id}", &[chunk, "/v3/chunk/1.1-local-3"]),
        (new, "/v4/nodes", &["/v4/nodes"]),
        (
            new,
            "/v4/messages",
            &["/v4/messages", "/v4/messages?limit=2"],
        ),
        (
            new,
            "/v4/messages/{id}",
            &["/v4/messages/0", "/v4/messages/31"],
        ),
        (
            new,
            "/v4/connections",
            &["/v4/connections", "/v4/connections?limit=1"],
        ),
        (
            new,
            "/v4/connections/{id}",
            &[
                &format!("/v4/connections/{OPENED}"),
                &format!("/v4/connections/{ACCEPTED}"),
            ],
        ),
        (new, "/v4/logs", &["/v4/logs"]),
        (new, "/v4/health", &["/v4/health"]),
    ] {
        for target in targets {
            check(document, path, "get", 200, &server.json(target));
        }
        asked.insert(path);
    }
    // All paths but those with other forms.
    let others = ["/v4/stream", "/v4/export.pcapng", "/metrics"];
    for document in [old, new] {
        for path in document["paths"].as_object().unwrap().keys() {
            assert!(
                asked.contains(path.as_str()) || others.contains(&path.as_str()),
                "{path}"
            );
        }
    }
    let lost = schema(new, &new["components"]["schemas"]["Lost"]);
    assert!(lost.is_valid(&serde_json::json!({"messages": 1, "logs": 0})));
}

#[test]
fn errors_are_described() {
    let Recording { server, .. } = &Recording::new();
    for document in &documents() {
        for (path, item) in document["paths"].as_object().unwrap() {
            let responses = item["get"]["responses"].as_object().unwrap();
            let described = |status: &str| {
                let name = text(&responses[status]["$ref"]).rsplit('/').next().unwrap();
                let content = document["components"]["responses"][name]["content"].as_object();
                content.unwrap().keys().next().unwrap().clone()
            };
            if path == "/v4/stream" {
                continue;
            }
            let target = path.replace("{id}", "x");
            for (status, query) in [
                ("404", "node=x"),
                ("404", "node_name=x"),
                ("400", "limit=x"),
                ("400", ""),
            ] {
                let reply = server.get(&format!(
                    "{}?{query}",
                    if query.is_empty() { &target } else { path }.replace("{id}", "0")
                ));
                if reply.status.to_string() == status {
                    assert_eq!(
                        reply.header("content-type"),
                        Some(described(status).as_str()),
                        "{path}"
                    );
                }
            }
        }
    }
}

/// Each described parameter is read, and each one that is read is described or another name of one that is.
#[test]
fn parameters_are_those_that_are_read() {
    let Recording { server, .. } = &Recording::new();
    let [_, new] = documents();
    let other_names = [
        "node_name",
        "kind",
        "types",
        "source_type",
        "remote_addr",
        "level",
        "log_level",
    ];
    for (path, item) in new["paths"].as_object().unwrap() {
        let parameters = item["get"]["parameters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let in_query = parameters.iter().filter(|p| p["in"] == "query");
        let described: BTreeSet<String> = in_query.map(|p| text(&p["name"]).to_owned()).collect();
        if described.is_empty() {
            continue;
        }
        let target = path.replace("{id}", "1");
        let refusal = server.refused(&format!("{target}?nonsense=1"), 400);
        let (_, known) = refusal.split_once("use one of ").unwrap();
        let known = known.split(", ").map(str::to_owned);
        let read: BTreeSet<String> = known
            .filter(|name| !other_names.contains(&name.as_str()))
            .collect();
        assert_eq!(read, described, "{path}");
    }
}
