//! `/v2` over a real connection: replies against the OpenAPI document, refusals, marks, events.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::common::document::{check, schema};
use crate::common::{Fixed, Reply, Server, at, kib, report};
use memprof::collect::{LastScan, ProviderError, Status};
use memprof::http::api::{ApiError, BoxFuture, Method, Provider, ROUTES};
use memprof::http::server::{ServerOptions, Token};
use memprof_heap::{Heap, HeapOptions, HeapRegion, HeapSnapshot, OtherRow, RegionRow, SizeClass};
use memprof_profile::symbol::{InlinedFunction, Language, Location, Symbol};
use memprof_profile::{
    CachedFile, Frame, FreezeOutcome, KnownPath, MappedBytes, Mapping, PathFrom, Places, Profile,
    Report, Sample,
};
use memprof_sys::file_id::FileId;
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;
use memprof_sys::residency::Category;

const DOCUMENT: &str = "/openapi/memprof-v2.json";

/// One of its stacks grows by 4 KiB with every report.
#[derive(Default)]
struct Growing {
    reports: AtomicU64,
    newest: Mutex<Option<Arc<Report>>>,
}

fn grown(number: u64) -> Arc<Report> {
    let (main, alloc, leaf) = (at(0, 0x10), at(0, 0x20), at(1, 0x40));
    let made = report(
        &[
            (vec![leaf, alloc, main], kib(4 * number, 0, 8)),
            (vec![leaf, main], kib(100 - number, 4, 0)),
            (vec![leaf, Frame::unmapped(7), main], kib(12, 0, 0)),
            (vec![], kib(4, 0, 0)),
        ],
        &[kib(40, 0, 0)],
        &[
            (main, "main", Language::Other),
            (alloc, "node::alloc", Language::Rust),
        ],
    );
    let made = Report {
        sequence: number,
        profile: Arc::new(Profile {
            places: places(&made.profile.samples[0]),
            ..(*made.profile).clone()
        }),
        ..(*made).clone()
    };
    Arc::new(made)
}

/// A mapping and two files, one of them without a path.
fn places(sample: &Sample) -> Arc<Places> {
    let file = |ino, path: Option<&str>| CachedFile {
        id: FileId { dev: (8, 1), ino },
        path: path.map(|path| KnownPath {
            path: path.to_owned(),
            deleted: false,
            from: PathFrom::OpenFile,
            seen: SystemTime::now(),
        }),
        samples: vec![sample.clone()],
        lost: 4096,
    };
    let mapping = Mapping {
        pid: Pid(4711),
        start: 0x7f00_0000_0000,
        end: 0x7f00_0010_0000,
        permissions: "rw-p".to_owned(),
        name: "[anon]".to_owned(),
        category: Category::ThreadStack,
        bytes: MappedBytes::default(),
    };
    Arc::new(Places {
        mappings: vec![mapping],
        files: vec![file(77, Some("/data/x")), file(78, None)],
        other_files: 0,
    })
}

impl Provider for Growing {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        let number = 1 + self.reports.fetch_add(1, Ordering::Relaxed);
        let report = grown(number);
        *self.newest.lock().unwrap() = Some(Arc::clone(&report));
        Box::pin(async { Ok(report) })
    }

    fn pid(&self) -> Option<Pid> {
        Some(Pid(4711))
    }

    fn heap(&self, pid: Pid, _: HeapOptions) -> BoxFuture<'_, Result<Arc<HeapSnapshot>, ApiError>> {
        let number = 1 + self.reports.fetch_add(1, Ordering::Relaxed);
        let row = RegionRow {
            what: HeapRegion::Live,
            chunks: number,
            bytes: 4096 * number,
            resident: 4096 * number,
        };
        let heap = Heap {
            pid: pid.0,
            comm: "<script>".to_owned(),
            rows: vec![row],
            others: vec![OtherRow {
                category: Category::ThreadStack,
                resident: 4096,
            }],
            sizes: vec![SizeClass::default()],
            ..Heap::default()
        };
        let taken = SystemTime::now();
        Box::pin(async move {
            Ok(Arc::new(HeapSnapshot {
                heap,
                taken,
                grown_by: None,
                zero_by: None,
                by_stack: None,
            }))
        })
    }

    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        let mut symbols = (*report.symbols).clone();
        if let Some(Symbol::Known(mut function)) = symbols.get(at(0, 0x20)).cloned() {
            function.inlined = vec![InlinedFunction {
                name: "node::alloc_inner".to_owned(),
                location: Some(Location {
                    file: "/src/alloc.rs".to_owned(),
                    line: Some(7),
                }),
            }];
            symbols.insert(at(0, 0x20), Arc::new(Symbol::Known(function)));
        }
        let with_lines = Report {
            symbols: Arc::new(symbols),
            ..(*report).clone()
        };
        Box::pin(async { Ok(Arc::new(with_lines)) })
    }

    fn status(&self) -> BoxFuture<'_, Option<Status>> {
        let last = self.newest.lock().unwrap().clone().map(|report| LastScan {
            sequence: report.sequence,
            profile: Arc::clone(&report.profile),
            took: std::time::Duration::from_millis(3),
            current: true,
        });
        // This process's own status is readable.
        let pids = vec![Pid(std::process::id())];
        Box::pin(async { Some(Status { pids, last }) })
    }
}

fn start(provider: impl Provider) -> Server {
    Server::start(provider, ServerOptions::default())
}

fn post(server: &Server, path: &str, headers: &str, body: &str) -> Reply {
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    Reply::parse(&server.raw(text.as_bytes()))
}

#[test]
fn replies_are_as_the_document_says() {
    let server = start(Growing::default());
    let document = server.get(DOCUMENT).json();
    let made = post(&server, "/v2/marks", "", r#"{"name": "start"}"#);
    assert_eq!(made.status, 201);
    check(&document, "/v2/marks", "post", 201, &made.json());
    for _ in 0..2 {
        let made = post(&server, "/v2/heap", "", r#"{"name": "start"}"#);
        assert_eq!(made.status, 201);
        check(&document, "/v2/heap", "post", 201, &made.json());
    }
    let whole = server.get("/v2/heap/1").json();
    check(&document, "/v2/heap/{id}", "get", 200, &whole);
    for (path, query) in [
        ("/v2/summary", ""),
        ("/v2/tree", ""),
        (
            "/v2/tree",
            "direction=callees&merge=site&inlined=true&kind=anon&search=alloc",
        ),
        ("/v2/tree", "threshold=50000&max_nodes=1"),
        ("/v2/tree", "function=node::alloc&path=/opt/node"),
        (
            "/v2/tree",
            "function=node::alloc&path=/opt/node&focus=true&direction=callees",
        ),
        (
            "/v2/functions",
            "sort=self&order=asc&search=*a*&limit=1&offset=1",
        ),
        ("/v2/functions", ""),
        (
            "/v2/source",
            "function=node::alloc_inner&path=/opt/node&kind=anon",
        ),
        ("/v2/files", ""),
        ("/v2/files", "sort=path&search=x"),
        ("/v2/files/stacks", "file=8:1:77"),
        ("/v2/maps", ""),
        ("/v2/maps", "sort=size&search=anon"),
        ("/v2/series", ""),
        ("/v2/series", "resolution=1m&since=5"),
        ("/v2/marks", ""),
        ("/v2/heap", ""),
        ("/v2/heap/diff", "from=1&to=2"),
        ("/v2/diff", "from=1"),
        ("/v2/diff", "from=1&to=now&search=alloc&merge=site"),
        ("/v2/diff", "from=1&to=1&by=function&sort=name"),
        ("/v2/processes", ""),
        ("/v2/processes", "mark=1"),
        ("/v2/cgroup", ""),
        ("/v2/cgroup", "mark=1"),
        ("/v2/summary", "mark=1"),
        ("/v2/summary", "pid=4711"),
        ("/v2/tree", "mark=1&pid=4711&kind=anon"),
        ("/v2/functions", "mark=1&pid=4711"),
        ("/v2/files", "mark=1&pid=4711"),
        ("/v2/files/stacks", "mark=1&pid=4711&file=8:1:77"),
        ("/v2/maps", "mark=1&pid=4711"),
        ("/v2/diff", "from=1&pid=4711"),
        ("/v2/health", ""),
        ("/v2/exports", ""),
    ] {
        let reply = server.get(&format!("{path}?{query}"));
        assert_eq!(reply.status, 200, "{path}?{query}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/json"));
        check(&document, path, "get", 200, &reply.json());
    }
    server.stop();
}

#[test]
fn the_documents_examples_are_of_its_schemas() {
    let document: Value = serde_json::from_str(&memprof::http::api::OPENAPI_V2).unwrap();
    let mut checked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let example = &operations["get"]["responses"]["200"]["content"]["application/json"];
        if let Some(example) = example.get("example") {
            check(&document, path, "get", 200, example);
            checked += 1;
        }
    }
    assert!(checked >= 4);
}

#[test]
fn routes_and_parameters_are_those_of_the_document() {
    let document: Value = serde_json::from_str(&memprof::http::api::OPENAPI_V2).unwrap();
    let mut described = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().unwrap().iter();
            let names = parameters
                .map(|p| match p["$ref"].as_str() {
                    Some(to) => document.pointer(to.trim_start_matches('#')).expect(to),
                    None => p,
                })
                .filter(|p| p["in"] == "query");
            let names: BTreeSet<String> = names
                .map(|p| p["name"].as_str().unwrap().to_owned())
                .collect();
            let any = path.split('{').next().unwrap().to_owned();
            described.insert((any, method.clone(), names));
        }
    }
    let own = ROUTES
        .iter()
        .filter(|r| !r.is_v1() && !r.path.starts_with("/openapi"));
    let answered: BTreeSet<_> = own
        .map(|route| {
            let method = match route.method {
                Method::Get => "get",
                Method::Post => "post",
                Method::Delete => "delete",
            };
            let names = route.parameters.iter().map(|name| (*name).to_owned());
            let path = route.path.trim_end_matches("{}").to_owned();
            (path, method.to_owned(), names.collect())
        })
        .collect();
    assert_eq!(described, answered);
}

/// Fails the test unless the query is refused with this status and a message of one line.
#[track_caller]
fn must_be_refused(server: &Server, query: &str, status: u16) {
    let reply = server.get(&format!("/v2/{query}"));
    assert_eq!(reply.status, status, "{query}: {}", reply.text());
    assert_eq!(reply.text().lines().count(), 1, "{query}");
}

#[test]
fn bad_requests_are_refused() {
    let server = start(Growing::default());
    for query in [
        "tree?unknown=1",
        "tree?kind=Anon",
        "tree?kind=",
        "tree?direction=up",
        "tree?merge=line",
        "tree?inlined=1",
        "tree?threshold=-1",
        "tree?max_nodes=200001",
        "tree?function=main",
        "tree?focus=true&search=main",
        "tree?path=/opt/node&search=main",
        "diff?path=/opt/node",
        "tree?kind=anon&kind=anon",
        "functions?sort=size",
        "functions?limit=10001",
        "functions?order=up",
        "summary?x",
        "series?resolution=1h",
        "series?since=x",
        "diff",
        "diff?from=1&by=function&direction=callers",
        "diff?from=1&sort=name",
        "export/folded?kind=x",
        "export/json?unknown=1",
        "marks?x=1",
        "heap?x=1",
        "heap/diff",
        "heap/diff?from=1",
        "files?sort=size",
        "files/stacks",
        "files/stacks?file=1",
        "maps?sort=name",
    ] {
        must_be_refused(&server, query, 400);
    }
    let long = format!("/v2/tree?search={}", "x".repeat(257));
    assert_eq!(server.get(&long).status, 400);
    for path in [
        "diff?from=7",
        "heap/7",
        "heap/diff?from=7&to=8",
        "export/none",
        "export/",
        "export/json/x",
        "marks/1",
        "tree/",
    ] {
        let status = server.get(&format!("/v2/{path}")).status;
        assert!(matches!(status, 404 | 405), "{path}: {status}");
    }
    let method = server.request("DELETE", "/v2/marks", &[]);
    assert_eq!(
        (method.status, method.header("allow")),
        (405, Some("GET, HEAD, POST"))
    );
    server.stop();
}

#[test]
fn before_a_target_there_is_no_report_but_an_answer() {
    let server = start(Fixed(Err(ProviderError::NoTarget)));
    for path in [
        "summary",
        "tree",
        "functions",
        "files",
        "maps",
        "export/json",
    ] {
        let reply = server.get(&format!("/v2/{path}"));
        assert_eq!(reply.status, 503, "{path}");
        assert!(reply.text().contains("not started"), "{}", reply.text());
    }
    let document = server.get(DOCUMENT).json();
    for path in ["/v2/health", "/v2/series", "/v2/marks", "/v2/exports"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        check(&document, path, "get", 200, &reply.json());
    }
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("process_resident_memory_bytes "));
    assert_eq!(post(&server, "/v2/marks", "", "").status, 503);
    server.stop();
}

#[test]
fn marks_are_made_counted_and_removed() {
    let server = start(Growing::default());
    for bad in ["{", r#"{"nam": "x"}"#, r#"{"name": 1}"#, "[]x"] {
        assert_eq!(post(&server, "/v2/marks", "", bad).status, 400, "{bad}");
    }
    let long = format!(r#"{{"name": "{}"}}"#, "ü".repeat(101));
    assert_eq!(post(&server, "/v2/marks", "", &long).status, 400);
    let huge = format!(r#"{{"name": "{}"}}"#, "x".repeat(8000));
    assert_eq!(post(&server, "/v2/marks", "", &huge).status, 413);
    let named = format!(r#"{{"name": "{}"}}"#, "ü".repeat(100));
    let mut ids = Vec::new();
    for body in ["", "{}", &named] {
        let reply = post(&server, "/v2/marks", "", body);
        assert_eq!(reply.status, 201);
        ids.push(reply.json()["id"].as_str().unwrap().to_owned());
    }
    let listed = server.get("/v2/marks").json();
    let found: Vec<_> = listed["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["id"])
        .collect();
    assert_eq!(found, ids.iter().collect::<Vec<_>>());
    while ids.len() < listed["limit"].as_u64().unwrap() as usize {
        let reply = post(&server, "/v2/marks", "", "");
        assert_eq!(reply.status, 201);
        ids.push(reply.json()["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(post(&server, "/v2/marks", "", "").status, 409);
    let path = format!("/v2/marks/{}", ids[0]);
    assert_eq!(server.request("DELETE", &path, &[]).status, 204);
    assert_eq!(server.request("DELETE", &path, &[]).status, 404);
    let id = post(&server, "/v2/marks", "", "").json()["id"].clone();
    assert!(
        !ids.contains(&id.as_str().unwrap().to_owned()),
        "an id was reused"
    );
    server.stop();
}

/// A saved profile becomes a mark, from this machine only; others get no addresses in theirs.
#[test]
fn a_saved_profile_is_kept_as_a_mark() {
    let server = start(Growing::default());
    let document: Value = serde_json::from_str(&memprof::http::api::OPENAPI_V2).unwrap();
    let saved = server.get("/v2/export/profile");
    let open = |headers: &str, body: &str| post(&server, "/v2/marks/open?name=a", headers, body);
    let reply = open("", saved.text());
    assert_eq!(reply.status, 201, "{}", reply.text());
    check(&document, "/v2/marks/open", "post", 201, &reply.json());
    // It is shown as it was saved, whatever the server's own report of that number is.
    let number = saved.json()["report"].as_u64().unwrap();
    for kind in ["anon", "cache"] {
        let shown = server.get("/v2/summary?mark=1").json();
        assert_eq!(shown["total"][kind], saved.json()["total"][kind]);
        assert!(shown["report"]["number"].as_u64().unwrap() > number);
    }
    let change = server.get("/v2/diff?from=1&kind=anon").json();
    assert!(change["to"]["total"].as_u64() > change["from"]["total"].as_u64());
    assert_eq!(open("", saved.text()).status, 201);

    let refused = open("", &saved.text()[..100]);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("incomplete"), "{}", refused.text());
    let huge = "Content-Length: 33554433\r\n\r\n";
    let head = format!(
        "POST /v2/marks/open HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{huge}",
        server.address
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + (32 << 20) + 1, b' ');
    assert_eq!(Reply::parse(&server.raw(&request)).status, 413);
    let name = format!("/v2/marks/open?name={}", "x".repeat(101));
    assert_eq!(post(&server, &name, "", saved.text()).status, 400);

    let proxy = ("X-Forwarded-For", "10.0.0.1");
    let elsewhere = open("X-Forwarded-For: 10.0.0.1\r\n", saved.text());
    assert_eq!(elsewhere.status, 403, "{}", elsewhere.text());
    assert!(!saved.json()["mappings"].as_array().unwrap().is_empty());
    let theirs = server.request("GET", "/v2/export/profile", &[proxy]).json();
    assert_eq!(theirs["mappings"], json!([]));
    assert_eq!(
        theirs["stacks"].as_array().unwrap().len(),
        saved.json()["stacks"].as_array().unwrap().len()
    );
    server.stop();
}

#[test]
fn a_mark_is_shown_as_it_was() {
    let server = start(Growing::default());
    assert_eq!(post(&server, "/v2/marks", "", "").status, 201);
    let number = |query: &str| {
        let reply = server.get(&format!("/v2/{query}"));
        assert_eq!(reply.status, 200, "{query}: {}", reply.text());
        reply.json()["report"]["number"].as_u64().unwrap()
    };
    for _ in 0..2 {
        assert_eq!(number("summary?mark=1"), 1);
        assert_eq!(number("tree?mark=1"), 1);
        assert!(number("tree") > 1);
    }
    let export = server.get("/v2/export/folded?to=1").body;
    assert_eq!(export, server.get("/v2/export/folded?to=1").body);
    assert_ne!(export, server.get("/v2/export/folded").body);
    for missing in [
        "summary?mark=2",
        "tree?mark=now",
        "export/folded?to=",
        "summary?pid=1",
        "tree?mark=1&pid=1",
        "export/folded?pid=1",
        "diff?from=1&pid=1",
    ] {
        must_be_refused(&server, missing, 404);
    }
    assert_eq!(server.get("/v2/tree?pid=x").status, 400);
    server.stop();
}

/// Its target cannot be frozen.
struct Unstoppable(Arc<AtomicU64>);

impl Provider for Unstoppable {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async { Ok(grown(1)) })
    }

    fn frozen(&self, _: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        let number = 2 + self.0.fetch_add(1, Ordering::Relaxed);
        let mut report = (*grown(number)).clone();
        report.profile = Arc::new(Profile {
            freeze: FreezeOutcome::Failed {
                why: "a thread is blocked in the kernel".to_owned(),
                stood: Duration::ZERO,
            },
            ..(*report.profile).clone()
        });
        Box::pin(async { Ok(Arc::new(report)) })
    }

    fn pid(&self) -> Option<Pid> {
        None
    }
}

#[test]
fn who_may_hold_the_target_still() {
    let asked = Arc::new(AtomicU64::new(0));
    let options = ServerOptions {
        cors_origins: vec!["*".to_owned()],
        ..ServerOptions::default()
    };
    let server = Server::start(Unstoppable(Arc::clone(&asked)), options);
    let freeze = r#"{"freeze": true}"#;
    for headers in [
        "Origin: https://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        assert_eq!(post(&server, "/v2/marks", headers, freeze).status, 403);
    }
    // Only POST may do this: any web page can make a browser send a GET.
    for path in [
        "/v2/summary?freeze=true",
        "/v2/tree?freeze=true",
        "/v2/marks?freeze=true",
    ] {
        assert_eq!(server.get(path).status, 400, "{path}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let refused = post(&server, "/v2/marks", "", freeze);
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("is blocked in the kernel"));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let marks = server.get("/v2/marks").json();
    assert_eq!(marks["marks"].as_array().unwrap().len(), 0);
    // Without room for a mark, the target is not frozen.
    for _ in 0..marks["limit"].as_u64().unwrap() {
        assert_eq!(post(&server, "/v2/marks", "", "").status, 201);
    }
    assert_eq!(post(&server, "/v2/marks", "", freeze).status, 409);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    server.stop();
}

#[test]
fn other_sites_change_nothing() {
    for origins in [vec![], vec!["*".to_owned()]] {
        let options = ServerOptions {
            cors_origins: origins,
            ..ServerOptions::default()
        };
        let server = Server::start(Growing::default(), options);
        let own = format!("Origin: http://{}\r\n", server.address);
        for (headers, status) in [
            ("Origin: https://evil.example\r\n", 403),
            ("Origin: null\r\n", 403),
            ("Origin: http://127.0.0.1.evil.example\r\n", 403),
            ("Sec-Fetch-Site: cross-site\r\n", 403),
            ("Sec-Fetch-Site: same-site\r\n", 403),
            ("Origin: http://localhost:4200\r\n", 201),
            (own.as_str(), 201),
            ("Sec-Fetch-Site: same-origin\r\n", 201),
            ("Referer: https://evil.example/page\r\n", 403),
            ("Referer: http://localhost@evil.example/\r\n", 403),
            ("Referer: about:blank\r\n", 403),
            (
                "Sec-Fetch-Site: same-origin\r\nReferer: https://evil.example/\r\n",
                403,
            ),
            ("Referer: http://localhost:4200/page?x\r\n", 201),
            ("", 201),
        ] {
            for path in ["/v2/marks", "/v2/heap"] {
                let reply = post(&server, path, headers, "");
                assert_eq!(reply.status, status, "{path} {headers}");
                // Refused before any lookup.
                let evil = [("Origin", "https://evil.example")];
                let removed = server.request("DELETE", &format!("{path}/1"), &evil);
                assert_eq!(removed.status, 403);
            }
        }
        // Only this machine may stop the target for a heap snapshot, and read addresses; not what a proxy passes on.
        let proxy = "X-Forwarded-For: 192.0.2.1\r\n";
        assert_eq!(post(&server, "/v2/heap", proxy, "").status, 403);
        let proxy = [("X-Forwarded-For", "192.0.2.1")];
        for (path, status) in [("/v2/heap", 200), ("/v2/heap/1", 403)] {
            assert_eq!(server.request("GET", path, &proxy).status, status, "{path}");
        }
        server.stop();
    }
}

#[test]
fn differences_add_up() {
    let server = start(Growing::default());
    assert_eq!(post(&server, "/v2/marks", "", "").status, 201);
    let tree = server.get("/v2/diff?from=1&kind=anon").json();
    let node = |key: &str, at: usize| tree["nodes"][key][at].as_i64().unwrap();
    assert_eq!(tree["from"]["total"].as_i64(), Some(node("from", 0)));
    assert_eq!(tree["to"]["total"].as_i64(), Some(node("to", 0)));
    let count = tree["nodes"]["parent"].as_array().unwrap().len();
    let sum: i64 = (0..count)
        .map(|n| node("self_to", n) - node("self_from", n))
        .sum();
    assert_eq!(sum, node("to", 0) - node("from", 0));
    let deltas: Vec<i64> = (0..count)
        .map(|n| node("to", n) - node("from", n))
        .collect();
    assert!(deltas.iter().any(|d| *d > 0) && deltas.iter().any(|d| *d < 0));
    let table = server.get("/v2/diff?from=1&to=1&by=function").json();
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(
            (row["self"].as_i64(), row["total"].as_i64()),
            (Some(0), Some(0))
        );
    }
    server.stop();
}

#[test]
fn inlined_functions_are_looked_up_where_they_are_asked_for() {
    let server = start(Growing::default());
    assert_eq!(post(&server, "/v2/marks", "", "").status, 201);
    for path in [
        "/v2/tree?inlined=",
        "/v2/functions?inlined=",
        "/v2/files/stacks?file=8:1:77&inlined=",
        "/v2/diff?from=1&inlined=",
        "/v2/diff?from=1&to=1&by=function&inlined=",
    ] {
        for inlined in [true, false] {
            let reply = server.get(&format!("{path}{inlined}"));
            assert_eq!(reply.status, 200, "{path}");
            let found = reply.text().contains("node::alloc_inner");
            assert_eq!(found, inlined, "{path}{inlined}");
        }
    }
    server.stop();
}

#[test]
fn exports_are_files_with_names() {
    let server = start(Growing::default());
    for format in server.get("/v2/exports").json().as_array().unwrap() {
        let reply = server.get(format["href"].as_str().unwrap());
        assert_eq!(reply.status, 200, "{format}");
        assert_eq!(
            reply.header("content-type"),
            format["content_type"].as_str()
        );
        let name = reply.header("content-disposition").unwrap();
        let ending = format!(".{}\"", format["extension"].as_str().unwrap());
        assert!(
            name.starts_with("attachment; filename=\"memprof-node-4711-"),
            "{name}"
        );
        assert!(name.ends_with(&ending), "{name}");
        assert!(!reply.body.is_empty());
        must_be_inert(&reply);
    }
    server.stop();
}

/// No browser interprets a reply as another type, or runs anything in it.
fn must_be_inert(reply: &Reply) {
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    let policy = reply.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert!(!policy.contains("script"), "{policy}");
}

#[test]
fn nothing_runs_in_any_answer() {
    let server = start(Growing::default());
    for path in ["/v2/marks", "/v2/heap"] {
        assert_eq!(post(&server, path, "", "").status, 201);
    }
    for route in ROUTES.iter().filter(|route| route.method == Method::Get) {
        let path = match route.path {
            "/v2/export/{}" => "/v2/export/svg",
            "/v2/diff" => "/v2/diff?from=1",
            "/v2/heap/{}" => "/v2/heap/1",
            "/v2/heap/diff" => "/v2/heap/diff?from=1&to=1",
            "/v2/source" => "/v2/source?function=node::alloc_inner&path=/opt/node",
            "/v2/files/stacks" => "/v2/files/stacks?file=8:1:77",
            // The event stream never ends; the process of these reports does not exist.
            // Nor are its allocations sampled, or moments recorded.
            "/v2/events" | "/debug/memory" | "/v2/allocations" | "/v2/growth" => continue,
            path => path,
        };
        let reply = server.get(path);
        assert_eq!((path, reply.status), (path, 200), "{}", reply.text());
        must_be_inert(&reply);
    }
    // Refusals repeat a part of the request.
    must_be_inert(&server.get("/v2/export/%3Cscript%3E"));
    must_be_inert(&server.get("/v2/tree?kind=%3Cscript%3E"));
    server.stop();
}

#[test]
fn a_difference_is_exported_where_the_format_holds_one() {
    let server = start(Growing::default());
    for _ in 0..2 {
        assert_eq!(post(&server, "/v2/marks", "", "").status, 201);
    }
    let exports = server.get("/v2/exports").json();
    for format in exports.as_array().unwrap() {
        let (name, href) = (&format["name"], format["href"].as_str().unwrap());
        let holds = |option: &str| {
            format["options"]
                .as_array()
                .unwrap()
                .contains(&json!(option))
        };
        // The report of a mark is like any other, and does not change.
        assert!(holds("to"), "{name}");
        let then = || server.get(&format!("{href}?to=1"));
        assert_eq!(then().status, 200, "{name}");
        assert_eq!(then().body, then().body, "{name}");
        let between = server.get(&format!("{href}?from=1&to=2"));
        let wanted = if holds("from") { 200 } else { 400 };
        assert_eq!(between.status, wanted, "{name}: {}", between.text());
        for gone in ["from=9", "to=9", "from=1&to=9"] {
            let status = server.get(&format!("{href}?{gone}")).status;
            let refused = status == 404 || (status == 400 && !holds("from"));
            assert!(refused, "{name} {gone}: {status}");
        }
    }
    // Between two marks, one stack has grown by 4 KiB.
    let folded = server.get("/v2/export/folded?from=1&to=2&kind=anon");
    let text = folded.text();
    let changes: Vec<i64> = text
        .lines()
        .map(|line| {
            let mut words = line.rsplit(' ').map(|word| word.parse::<i64>());
            let mut next = || words.next().unwrap().unwrap();
            next() - next()
        })
        .collect();
    assert!(changes.contains(&4096), "{text}");
    let diff = server.get("/v2/diff?from=1&to=2&kind=anon").json();
    let total = |side: &str| diff[side]["total"].as_i64().unwrap();
    assert_eq!(changes.iter().sum::<i64>(), total("to") - total("from"));
    server.stop();
}

#[test]
fn metrics_say_what_the_summary_says() {
    let server = start(Fixed(Ok(grown(3))));
    let summary = server.get("/v2/summary").json();
    let accept = [("Accept", "application/openmetrics-text")];
    let metrics = server.request("GET", "/metrics", &accept);
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = metrics.text();
    assert_eq!(text.matches("# EOF").count(), 1);
    assert!(text.ends_with("# EOF\n"));
    for (row, wanted) in [
        (
            "memprof_resident_bytes{kind=\"anon\"}",
            &summary["total"]["anon"],
        ),
        (
            "memprof_resident_bytes{kind=\"shmem\"}",
            &summary["total"]["shmem"],
        ),
        ("memprof_page_cache_bytes", &summary["total"]["cache"]),
        (
            "memprof_attributed_bytes{kind=\"cache\"}",
            &summary["attributed"]["cache"],
        ),
        (
            "memprof_not_observed_bytes{kind=\"anon\",reason=\"before_attach\"}",
            &summary["not_observed"][0]["bytes"]["anon"],
        ),
    ] {
        let line = format!("{row} {wanted}");
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("memprof_function"));
    server.stop();
}

#[test]
fn events_come_while_somebody_listens_and_end_with_the_server() {
    let mut server = start(Growing::default());
    let mut stream = server.connect();
    let request = format!(
        "GET /v2/events HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    );
    stream.write_all(request.as_bytes()).unwrap();
    let document = server.get(DOCUMENT).json();
    let summary = schema(&document, &json!({"$ref": "#/components/schemas/Summary"}));
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.next().unwrap().contains("200"));
    let mut seen = BTreeSet::new();
    let mut name = String::new();
    while seen.len() < 2 {
        let line = lines.next().expect("the stream ended early");
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).unwrap();
            match name.as_str() {
                "summary" => assert!(summary.is_valid(&data), "{data}"),
                _ => assert!(data["time"].is_u64() && data["rss_anon"].is_u64(), "{data}"),
            }
            seen.insert(name.clone());
        }
    }
    assert_eq!(
        seen,
        BTreeSet::from(["sample".to_owned(), "summary".to_owned()])
    );
    let clients = &server.get("/v2/health").json()["event_clients"];
    assert_eq!(clients["now"], 1);
    let series = server.get("/v2/series").json();
    assert!(!series["times"].as_array().unwrap().is_empty());
    server.begin_stop();
    // The end of the stream, not the limit of the read.
    while lines.next().is_some() {}
    server.stop();
}

#[test]
fn too_many_listeners_are_sent_away() {
    let server = start(Growing::default());
    let request = format!(
        "GET /v2/events HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    );
    let limit = server.get("/v2/health").json()["event_clients"]["limit"]
        .as_u64()
        .unwrap();
    let mut listening = Vec::new();
    for _ in 0..limit {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains("200"), "{line}");
        listening.push(reader);
    }
    let refused = server.get("/v2/events");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("/v2/summary"));
    drop(listening);
    server.stop();
}

const TOKEN: &str = "0123456789abcdef-._~+/=";

/// A server that needs [`TOKEN`].
fn with_token() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = Token::read(&path).unwrap();
    Server::start_with(Growing::default(), |options| {
        options.token = Some(Arc::new(token));
        options.cors_origins = vec!["https://example.org".to_owned()];
    })
}

#[test]
fn with_a_token_all_routes_need_it() {
    let server = with_token();
    let bearer = format!("Bearer {TOKEN}");
    for path in ROUTES.iter().map(|route| route.path) {
        let path = path.replace(['{', '}'], "");
        for method in ["GET", "POST", "DELETE"] {
            let wrong = [("Authorization", "Bearer 0123456789abcdef")];
            for headers in [&[][..], &wrong] {
                let reply = server.request(method, &path, headers);
                assert_eq!(reply.status, 401, "{method} {path}: {}", reply.text());
                let scheme = reply.header("www-authenticate").unwrap();
                assert!(scheme.starts_with("Bearer"), "{scheme}");
                assert!(!reply.text().contains(TOKEN));
            }
        }
    }
    assert_eq!(server.get("/no/such/path").status, 401);
    for path in [
        "/v1/pid",
        "/v1/tree",
        "/v2/summary",
        "/v2/health",
        "/metrics",
    ] {
        let reply = server.request("GET", path, &[("Authorization", &bearer)]);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        assert_eq!(reply.header("www-authenticate"), None);
    }
    let made = server.request("POST", "/v2/marks", &[("Authorization", &bearer)]);
    assert_eq!(made.status, 201, "{}", made.text());
    // The page itself says nothing of the target, and asks for the token.
    for path in ["/", "/assets/js/token.js"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    // Not even with the token under a foreign name.
    let rebound = [("Authorization", &*bearer), ("Host", "evil.example")];
    assert_eq!(server.request("GET", "/v2/summary", &rebound).status, 403);
    // Browsers ask without the token whether they may send it.
    let preflight = [
        ("Origin", "https://example.org"),
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    let reply = server.request("OPTIONS", "/v2/summary", &preflight);
    assert_eq!(reply.status, 204);
    assert_eq!(
        reply.header("access-control-allow-headers"),
        Some("authorization")
    );
    server.stop();
}
