//! Every line of the `/v1` contract, over a real connection.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::{Fixed, Reply, Server, at, kib, report};
use memprof::collect::ProviderError;
use memprof::http::api::{Provider, ROUTES};
use memprof::http::server::ServerOptions;
use memprof_profile::Frame;
use memprof_profile::symbol::Language;

const DOCUMENT: &str = "/openapi/memory-profiler-openapi.json";

fn start(provider: impl Provider) -> Server {
    Server::start(provider, ServerOptions::default())
}

/// main -> {alloc called from two places, cached}, a library without symbols, JIT code, and memory
/// from before the attach.
fn example() -> Fixed {
    let (main, alloc_a, alloc_b) = (at(0, 0x10), at(0, 0x20), at(0, 0x30));
    let (libc, deep) = (at(1, 0x1_2345_6789), at(1, 0x40));
    Fixed(Ok(report(
        &[
            (vec![libc, alloc_a, main], kib(1000, 24, 0)),
            (vec![libc, alloc_b, main], kib(1000, 24, 0)),
            (vec![alloc_b, main], kib(0, 0, 512)),
            (vec![deep, main], kib(100, 0, 20)),
            (vec![deep, Frame::unmapped(0x7f00), main], kib(300, 0, 0)),
            (vec![main], kib(256, 0, 0)),
            (vec![], kib(4, 0, 0)),
        ],
        &[kib(2000, 4, 0)],
        &[
            (main, "main", Language::Other),
            (alloc_a, "node::alloc::h0123456789abcdef", Language::Rust),
            (alloc_b, "node::alloc::h0123456789abcdef", Language::Rust),
            (deep, "mmap <\"&\u{1}>", Language::Other),
        ],
    )))
}

fn name(offset: &str, executable: &str, function: Option<&str>, category: &str) -> Value {
    json!({"offset": offset, "executable": executable,
           "functionName": function, "functionCategory": category})
}

fn pseudo(name: &str, value: u64, cache: u64) -> Value {
    json!({"name": name, "value": value, "cacheValue": cache})
}

fn node(name: Value, value: u64, cache: u64, frames: Vec<Value>) -> Value {
    json!({"name": name, "value": value, "cacheValue": cache, "frames": frames})
}

#[test]
fn routes_and_their_spellings() {
    let server = start(example());
    let mut trees = BTreeSet::new();
    for path in ["/v1/tree", "/v1/tree/", "/v1/tree?", "/v1/tree/?"] {
        let reply = server.get(path);
        assert_eq!((reply.status, path), (200, path));
        assert_eq!(reply.header("content-type"), Some("application/json"));
        trees.insert(reply.body);
    }
    assert_eq!(trees.len(), 1);
    for path in ["/v1/pid", "/v1/pid/", "/v1/pid?", "/v1/pid/?"] {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.text()), (200, "4711"), "{path}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    for path in [
        "/v1",
        "/v1/",
        "/v1/tree//",
        "//v1/tree",
        "/v1//tree",
        "/v1/treee",
        "/v1/tree/x",
        "/v1/%74ree",
        "/V1/tree",
        "/v2/",
        "/v1/pid//",
        "//v1/pid",
        "/openapi",
        "/v1/tree/../pid",
    ] {
        assert_eq!((server.get(path).status, path), (404, path));
        assert_eq!(server.request("POST", path, &[]).status, 404);
    }
    server.stop();
}

#[test]
fn methods() {
    let server = start(example());
    for path in ["/v1/tree", "/v1/pid/", DOCUMENT, "/v1/tree?threshold=x"] {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            let reply = server.request(method, path, &[]);
            assert_eq!((reply.status, method), (405, method));
            assert_eq!(reply.header("allow"), Some("GET, HEAD"));
        }
    }
    for path in ["/v1/tree", "/v1/pid", DOCUMENT] {
        let (get, head) = (server.get(path), server.request("HEAD", path, &[]));
        assert_eq!((head.status, head.body.len()), (200, 0));
        let length = get.body.len().to_string();
        assert_eq!(head.header("content-length"), Some(length.as_str()));
        assert_eq!(head.header("content-type"), get.header("content-type"));
    }
    assert_eq!(server.request("HEAD", "/nothing", &[]).status, 404);
    server.stop();
}

#[test]
fn parameters() {
    let server = start(example());
    let bad = "threshold= threshold threshold=-1 threshold=x threshold=1.5 threshold=%2B1 \
        threshold=99999999999999999999 threshold=1&threshold=1 threshold=1&threshold=2 \
        reverse= reverse=1 reverse=True reverse=TRUE reverse=yes reverse=true&reverse=true \
        short= short=0 short=False short=true&short=true short=true&threshold=x \
        depth= depth=-1 depth=all depth=1&depth=1 short=true&depth=x \
        threshold=%00 reverse=true%20";
    for query in bad.split_whitespace() {
        for path in ["/v1/tree", "/v1/tree/"] {
            let reply = server.get(&format!("{path}?{query}"));
            assert_eq!((reply.status, query), (400, query));
            let parameter = query.split(['=', '&']).next().unwrap();
            let message = reply.text();
            let known = ["threshold", "reverse", "short", "depth"];
            assert!(
                known.iter().any(|n| message.contains(n)),
                "{parameter}: {message}"
            );
            assert_eq!(
                reply.header("content-type"),
                Some("text/plain; charset=utf-8")
            );
        }
    }
    for query in ["x=1", "x", "threshold=1", "reverse=true", "="] {
        let reply = server.get(&format!("/v1/pid?{query}"));
        assert_eq!((reply.status, query), (400, query));
        assert!(reply.text().contains("/v1/pid takes no parameters"));
    }
    let same = server.get("/v1/tree").body;
    for query in [
        "x=1&x=2&y",
        "threshold=256",
        "reverse=false&short=false",
        "depth=59",
        "%74hreshold=%3256",
        "&&",
    ] {
        let reply = server.get(&format!("/v1/tree?{query}"));
        assert_eq!((reply.status, query), (200, query));
        assert_eq!(reply.body, same, "{query}");
    }
    server.stop();
}

#[test]
fn innermost_first_is_the_default() {
    let server = start(example());
    let main = || name("00000010", "node", Some("main"), "nodeCpp");
    let rust = Some("node::alloc::h0123456789abcdef");
    let alloc = |offset| name(offset, "node", rust, "nodeRust");
    let below = |offset| {
        let callers = vec![node(main(), 1024, 0, vec![])];
        node(alloc(offset), 1024, 0, callers)
    };
    let libc = name("123456789", "libc-2.31.so", None, "systemLib");
    let deep = name(
        "00000040",
        "libc-2.31.so",
        Some("mmap <\"&\u{1}>"),
        "systemLib",
    );
    let wanted = json!({"value": 5244, "cacheValue": 532, "frames": [
        node(libc, 2048, 0, vec![below("00000020"), below("00000030")]),
        node(alloc("00000030"), 512, 512, vec![node(main(), 512, 512, vec![])]),
        node(deep, 420, 20, vec![pseudo("underThreshold", 120, 20), pseudo("unknown", 300, 0)]),
        node(main(), 256, 0, vec![]),
        pseudo("unknown", 2008, 0),
    ]});
    assert_eq!(server.get("/v1/tree").json(), wanted);
    assert_eq!(server.get("/v1/tree?reverse=false").json(), wanted);
    server.stop();
}

#[test]
fn reverse_is_outermost_first() {
    let server = start(example());
    let rust = Some("node::alloc::h0123456789abcdef");
    let libc = || {
        let libc = name("123456789", "libc-2.31.so", None, "systemLib");
        node(libc, 1024, 0, vec![])
    };
    let wanted = json!({"value": 5244, "cacheValue": 532, "frames": [
        node(name("00000010", "node", Some("main"), "nodeCpp"), 3236, 532, vec![
            node(name("00000030", "node", rust, "nodeRust"), 1536, 512,
                 vec![libc(), pseudo("unknown", 512, 512)]),
            node(name("00000020", "node", rust, "nodeRust"), 1024, 0, vec![libc()]),
            pseudo("underThreshold", 120, 20),
            pseudo("unknown", 556, 0),
        ]),
        pseudo("unknown", 2008, 0),
    ]});
    let found = server.get("/v1/tree?reverse=true&threshold=512").json();
    assert_eq!(found, wanted);
    server.stop();
}

/// Walks a shallow tree and checks the invariants of every node.
fn check(node: &Value, threshold: u64) {
    let value = node["value"].as_u64().expect("an integer");
    let cache = node["cacheValue"].as_u64().expect("an integer");
    assert!(value >= cache, "{node}");
    let Some(frames) = node.get("frames") else {
        assert!(value > 0);
        assert!(node["name"] == "underThreshold" || node["name"] == "unknown");
        return;
    };
    let frames = frames.as_array().unwrap();
    if frames.is_empty() {
        return; // a leaf
    }
    let sum: u64 = frames.iter().map(|f| f["value"].as_u64().unwrap()).sum();
    let caches: u64 = frames
        .iter()
        .map(|f| f["cacheValue"].as_u64().unwrap())
        .sum();
    assert_eq!((sum, caches), (value, cache), "{node}");
    let (real, ends): (Vec<_>, Vec<_>) = frames.iter().partition(|f| f["name"].is_object());
    assert!(
        frames
            .iter()
            .take(real.len())
            .all(|f| f["name"].is_object())
    );
    assert!(ends.len() <= 2);
    let repeats = real.is_empty() && frames[0]["name"] == "unknown";
    assert!(!repeats || node.get("name").is_none(), "{node}");
    if let [first, second] = ends.as_slice() {
        assert!(first["name"] == "underThreshold" && second["name"] == "unknown");
    }
    assert!(
        real.iter()
            .all(|f| f["value"].as_u64().unwrap() >= threshold)
    );
    let values = real
        .iter()
        .map(|f| std::cmp::Reverse(f["value"].as_u64().unwrap()));
    assert!(values.is_sorted());
    frames.iter().for_each(|frame| check(frame, threshold));
}

#[test]
fn every_node_adds_up_and_the_root_is_what_the_kernel_says() {
    let server = start(example());
    for reverse in [false, true] {
        for threshold in [0, 1, 256, 257, 1024, 4000, u64::MAX] {
            let target = format!("/v1/tree?threshold={threshold}&reverse={reverse}");
            let tree = server.get(&target).json();
            check(&tree, threshold);
            assert!(tree.get("name").is_none());
            let resident = tree["value"].as_u64().unwrap() - tree["cacheValue"].as_u64().unwrap();
            assert_eq!(resident, 4712);
        }
    }
    let short = server.get("/v1/tree?short=true&threshold=0&reverse=true");
    let wanted = json!({"total": 5244, "cache": 532, "anon": 4712, "systemReportAnon": 4660});
    assert_eq!(short.json(), wanted);
    assert_eq!(short.header("content-type"), Some("application/json"));
    server.stop();
}

#[test]
fn equal_children_stand_by_offset_then_executable_then_name() {
    let samples: Vec<_> = [at(1, 2), at(0, 2), at(1, 1), at(0, 0x1_0000_0000), at(0, 9)]
        .map(|frame| (vec![frame], kib(4, 0, 0)))
        .into();
    let server = start(Fixed(Ok(report(&samples, &[], &[]))));
    let tree = server.get("/v1/tree?threshold=0").json();
    let key = |frame: &Value| {
        let part = |part: &str| frame["name"][part].as_str().unwrap().to_owned();
        part("offset") + "@" + &part("executable")
    };
    let order: Vec<_> = tree["frames"].as_array().unwrap().iter().map(key).collect();
    let wanted = [
        "00000001@libc-2.31.so",
        "00000002@libc-2.31.so",
        "00000002@node",
        "00000009@node",
        "100000000@node",
    ];
    assert_eq!(order, wanted);
    server.stop();
}

#[test]
fn before_a_target_and_in_trouble() {
    let server = start(Fixed(Err(ProviderError::NoTarget)));
    let empty = json!({"value": 0, "cacheValue": 0, "frames": []});
    assert_eq!(server.get("/v1/tree").json(), empty);
    assert_eq!(server.get("/v1/pid").text(), "0");
    let zeros = json!({"total": 0, "cache": 0, "anon": 0, "systemReportAnon": 0});
    assert_eq!(server.get("/v1/tree?short=true").json(), zeros);
    server.stop();
    let server = start(Fixed(Err(ProviderError::Failed(
        "smaps is gone".to_owned(),
    ))));
    let reply = server.get("/v1/tree");
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("smaps is gone"));
    server.stop();
}

#[test]
fn deep_trees_are_cut_where_parsers_stop_unless_asked_for() {
    let deep: Vec<Frame> = (0..512).map(|offset| at(0, offset)).collect();
    let server = start(Fixed(Ok(report(&[(deep, kib(4, 0, 0))], &[], &[]))));
    for reverse in [false, true] {
        let target = format!("/v1/tree?threshold=0&reverse={reverse}");
        let mut node = &server.get(&target).json();
        for _ in 0..59 {
            node = &node["frames"][0];
            assert_eq!(node["value"], 4);
        }
        assert_eq!(node["frames"], json!([]));
        let whole = server.get(&format!("{target}&depth=1000"));
        assert_eq!(whole.text().matches("functionName").count(), 512);
        assert!(whole.text().ends_with(&"]}".repeat(513)));
    }
    server.stop();
}

#[test]
fn the_openapi_document_is_of_these_routes() {
    let server = start(example());
    let reply = server.get(DOCUMENT);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let document = reply.json();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<&str> = paths.keys().map(String::as_str).collect();
    let of_it = |path: &str| path.starts_with("/v1/") || path == DOCUMENT;
    let routes: Vec<_> = ROUTES.iter().filter(|route| of_it(route.path)).collect();
    assert_eq!(described, routes.iter().map(|route| route.path).collect());
    for route in routes {
        let operations = paths[route.path].as_object().unwrap();
        assert_eq!(operations.keys().collect::<Vec<_>>(), ["get"]);
        let parameters = operations["get"].get("parameters");
        let names: Vec<&str> = parameters
            .map(|list| list.as_array().unwrap().iter())
            .into_iter()
            .flatten()
            .map(|parameter| {
                assert_eq!(
                    (&parameter["in"], &parameter["required"]),
                    (&json!("query"), &json!(false))
                );
                parameter["name"].as_str().unwrap()
            })
            .collect();
        assert_eq!(names, route.parameters, "{}", route.path);
        assert_eq!(server.get(route.path).status, 200);
    }
    let defaults = paths["/v1/tree"]["get"]["parameters"].as_array().unwrap();
    let query: Vec<String> = defaults
        .iter()
        .map(|p| format!("{}={}", p["name"].as_str().unwrap(), p["schema"]["default"]))
        .collect();
    let with_defaults = server.get(&format!("/v1/tree?{}", query.join("&")));
    assert_eq!(with_defaults.body, server.get("/v1/tree").body);
    for reference in references(&document) {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    server.stop();
}

/// Every `$ref` of a document.
fn references(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(map) => {
            let own = map.get("$ref").and_then(Value::as_str);
            own.into_iter()
                .chain(map.values().flat_map(references))
                .collect()
        }
        Value::Array(list) => list.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

fn from(server: &Server, origin: &str) -> Reply {
    server.request("GET", "/v1/tree", &[("Origin", origin)])
}

#[test]
fn origins() {
    let server = start(example());
    for origin in [
        "http://localhost:4200",
        "https://127.0.0.2",
        "http://[::1]:80",
    ] {
        let reply = from(&server, origin);
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
        assert_eq!(reply.header("vary"), Some("Origin"));
    }
    for origin in [
        "http://evil.example",
        "null",
        "http://localhost.evil.example",
        "http://10.0.0.1",
    ] {
        let reply = from(&server, origin);
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.header("access-control-allow-origin"),
            None,
            "{origin}"
        );
        assert_eq!(reply.header("vary"), Some("Origin"));
    }
    assert_eq!(
        server.get("/v1/tree").header("access-control-allow-origin"),
        None
    );
    server.stop();
    let cors_origins = vec!["https://explorer.example".to_owned()];
    let options = ServerOptions {
        cors_origins,
        ..ServerOptions::default()
    };
    let server = Server::start(example(), options);
    for (origin, allowed) in [
        ("https://explorer.example", true),
        ("http://localhost", true),
        ("http://explorer.example", false),
    ] {
        let reply = from(&server, origin);
        assert_eq!(
            reply.header("access-control-allow-origin").is_some(),
            allowed
        );
    }
    server.stop();
}

#[test]
fn preflights() {
    let server = start(example());
    let ask = |origin: &str, path: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "GET"),
            ("Access-Control-Request-Headers", "x-wanted"),
        ];
        server.request("OPTIONS", path, &headers)
    };
    let reply = ask("http://localhost:4200", "/v1/tree");
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    let allowed = |name| reply.header(&format!("access-control-allow-{name}"));
    assert_eq!(allowed("origin"), Some("http://localhost:4200"));
    assert_eq!(allowed("methods"), Some("GET, HEAD"));
    assert_eq!(allowed("headers"), Some("x-wanted"));
    assert_eq!(ask("http://evil.example", "/v1/tree").status, 405);
    assert_eq!(ask("http://localhost:4200", "/v1/other").status, 404);
    server.stop();
}

#[test]
fn hosts() {
    let server = Server::start_with(example(), |o| {
        o.allow_hosts = vec!["prof.example".to_owned()]
    });
    let ask = |host: &str| server.request("GET", "/v1/tree", &[("Host", host)]);
    for host in [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:17832",
        "[::1]",
        "10.2.3.4",
        "prof.example:80",
    ] {
        assert_eq!((ask(host).status, host), (200, host));
    }
    for host in [
        "evil.example",
        "localhost.evil.example:17832",
        "",
        "localhost:x",
    ] {
        let reply = ask(host);
        assert_eq!((reply.status, host), (403, host));
        assert!(reply.text().contains("--allow-host"));
    }
    let evil = server.request("GET", "http://evil.example/v1/tree", &[]);
    assert_eq!(evil.status, 403);
    let absolute = format!("http://{}/v1/tree", server.address);
    assert_eq!(server.request("GET", &absolute, &[]).status, 200);
    let status = |request: &[u8]| Reply::parse(&server.raw(request)).status;
    assert_eq!(
        status(b"GET /v1/pid HTTP/1.1\r\nConnection: close\r\n\r\n"),
        400
    );
    let two =
        b"GET /v1/pid HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(status(two), 400);
    assert_eq!(status(b"GET /v1/pid HTTP/1.0\r\n\r\n"), 200);
    server.stop();
}

#[test]
fn a_star_behaves_like_the_old_profiler() {
    let server = Server::start_with(example(), |o| o.cors_origins = vec!["*".to_owned()]);
    for headers in [
        &[("Host", "any.example"), ("Origin", "http://evil.example")][..],
        &[("Host", "any.example")][..],
    ] {
        let reply = server.request("GET", "/v1/tree", headers);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    }
    server.stop();
}

#[test]
fn headers_of_every_answer() {
    let server = start(example());
    for target in ["/v1/tree", "/v1/pid", DOCUMENT, "/nothing", "/v1/pid?x"] {
        let reply = server.get(target);
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let length = reply.body.len().to_string();
        assert_eq!(reply.header("content-length"), Some(length.as_str()));
    }
    server.stop();
}
