//! 64 clients ask a memprof for everything at once, with a target that has tens of thousands of stacks and goes on changing:
//! each gets its reply or is told to come again, memprof's memory is bounded, and it records all the while.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::workload::{Workload, program};
use crate::common::{Reply, connect, exchange};
use crate::faults::{equals_the_kernel, times};

const CLIENTS: usize = 64;
/// The documented limit of memprof's own memory, in bytes.
const BOUND: u64 = 256 << 20;
/// As in `docs/http-api.md`.
const LISTENERS: usize = 32;

/// Everything that can be read, by the documents of the API; `mark` and `heap` are there.
fn routes(mark: &str, heap: &str) -> Vec<String> {
    let documents = [
        include_str!("../../../src/http/web/openapi-v2.json"),
        include_str!("../../../src/http/web/openapi-v1.json"),
    ];
    let mut routes = Vec::new();
    for document in documents {
        let document: Value = serde_json::from_str(document).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let all = match path.as_str() {
                _ if methods["get"].is_null() => vec![],
                // Their own numbers of clients and of files.
                "/v2/events" | "/v2/files/stacks" | "/v2/cgroup" | "/v2/allocations" => vec![],
                // Needs a function that has a line.
                "/v2/source" => vec![],
                "/v2/diff" => vec![format!("/v2/diff?from={mark}&to=now")],
                "/v2/heap/{id}" => vec![format!("/v2/heap/{heap}")],
                "/v2/heap/diff" => vec![format!("/v2/heap/diff?from={heap}&to={heap}")],
                "/v2/export/{format}" => [
                    "pprof",
                    "folded",
                    "svg",
                    "csv",
                    "json",
                    "profile",
                    "speedscope",
                    "text",
                    "html",
                ]
                .map(|format| format!("/v2/export/{format}"))
                .into(),
                "/v2/tree" => vec![
                    path.clone(),
                    format!("{path}?direction=callers&max_nodes=20000"),
                ],
                "/v1/tree" => vec![path.clone(), format!("{path}?threshold=0&reverse=true")],
                path => vec![path.to_owned()],
            };
            routes.extend(all);
        }
    }
    routes
}

fn peak(m: &Memprof) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn descriptors(m: &Memprof) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", m.pid()))
        .unwrap()
        .count()
}

/// Reads the stream for a moment; whether there was room for one more listener.
fn listen(m: &Memprof) -> bool {
    let mut stream = connect(m.address());
    write!(
        stream,
        "GET /v2/events HTTP/1.1\r\nHost: {}\r\n\r\n",
        m.address()
    )
    .unwrap();
    let mut piece = [0; 4096];
    let n = stream.read(&mut piece).unwrap();
    let head = String::from_utf8_lossy(&piece[..n]).into_owned();
    let is = |status: &str| head.starts_with(&format!("HTTP/1.1 {status} "));
    assert!(is("200") || is("503"), "{head}");
    sleep(Duration::from_millis(300));
    is("200")
}

#[test]
fn all_at_once_on_a_large_target() {
    let depth = times(12, 16);
    let mut workload = Workload::start_with(&program("stacks"), &[&depth.to_string()]);
    let m = Memprof::attach(workload.pid(), &["--max-freeze", "60000"]);
    m.said("following ");
    workload.lines.tell("touch 500");
    let number = |reply: Reply| {
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["id"].as_str().unwrap().to_owned()
    };
    let mark = number(m.send("POST", "/v2/marks", ""));
    let heap = number(m.send("POST", "/v2/heap", ""));
    let routes = routes(&mark, &heap);
    // Each of them works, when nobody else asks.
    for route in &routes {
        let reply = m.get(route);
        assert_eq!(reply.status, 200, "{route}: {}", reply.text());
    }
    let before = descriptors(&m);
    // The heap snapshot took more.
    std::fs::write(format!("/proc/{}/clear_refs", m.pid()), "5").unwrap();
    let (stop, answered) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    scope(|scope| {
        for client in 0..CLIENTS {
            let (m, stop, answered, routes) = (&m, &stop, &answered, &routes);
            scope.spawn(move || {
                let mut round = client;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    if round % 16 == 0 {
                        listen(m);
                        continue;
                    }
                    let route = &routes[round * 7 % routes.len()];
                    let request = format!(
                        "GET {route} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                        m.address()
                    );
                    let reply = Reply::parse(&exchange(m.address(), request.as_bytes()));
                    let told = reply.header("retry-after").is_some();
                    assert!(
                        reply.status == 200 || (reply.status == 503 && told),
                        "{route}: {} {}",
                        reply.status,
                        String::from_utf8_lossy(&reply.body)
                    );
                    if reply.status == 503 {
                        // As it was told to; a client that does not wait is answered no sooner.
                        sleep(Duration::from_millis(100));
                    }
                    let mut answered = answered.lock().unwrap();
                    *answered.entry((route.clone(), reply.status)).or_insert(0) += 1;
                }
            });
        }
        // The target changes meanwhile, and all of it is recorded. The clients end if this fails.
        let stop = Stop(&stop);
        for _ in 0..times(2, 8) {
            workload.lines.tell("drop");
            workload.lines.tell("touch 500");
            sleep(Duration::from_secs(times(1, 5).into()));
        }
        drop(stop);
    });
    let answered = answered.into_inner().unwrap();
    let of = |status| answered.iter().filter(move |(key, _)| key.1 == status);
    let sum = |status| of(status).map(|(_, n)| n).sum::<u32>();
    println!(
        "{} replies, {} told to come again; memprof's peak: {} MiB",
        sum(200),
        sum(503),
        peak(&m) >> 20
    );
    // All routes were among them.
    assert!(of(200).count() > routes.len() / 2, "{answered:?}");
    assert!(peak(&m) <= BOUND, "{} MiB", peak(&m) >> 20);
    eventually(LIMIT, "connections are closed", || {
        descriptors(&m) <= before + 2
    });
    // Each page under its own stack, in which it was touched last.
    equals_the_kernel(&m, workload.pid());
    let summary = m.get("/v2/summary").json();
    let complete = summary["outcomes"].as_array().unwrap().iter();
    let complete = complete
        .clone()
        .find(|row| row["outcome"] == "complete")
        .unwrap();
    let bytes = &complete["bytes"];
    let bytes = bytes["all"].as_u64().or(bytes.as_u64()).unwrap();
    assert!(bytes >= 4096 << depth, "{summary}");
    assert_eq!(m.lost(), [""; 0]);
    m.interrupt();
    workload.end();
}

/// There is room for as many listeners as documented, and again once they have gone.
#[test]
fn listeners_beyond_the_limit_are_told() {
    let workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &[]);
    for _ in 0..2 {
        let got = scope(|scope| {
            let clients = (0..CLIENTS).map(|_| scope.spawn(|| listen(&m)));
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .map(|c| c.join().unwrap())
                .filter(|got| *got)
                .count()
        });
        assert!(got >= LISTENERS, "{got}");
        eventually(LIMIT, "there is room again", || {
            m.get("/v2/health").json()["event_clients"]["now"] == 0
        });
    }
    m.interrupt();
    workload.end();
}

/// Tells the clients to end when dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
