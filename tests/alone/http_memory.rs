//! memprof's own memory, with a target that has 65,536 stacks and clients that request as much as they can.
//!
//! Needs root and `cc`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::memprof::Memprof;
use crate::common::workload::{Workload, program};
use crate::common::{Reply, connect};

/// The documented limit, in bytes.
const BOUND: u64 = 256 << 20;

/// A figure of a process's status, in bytes.
fn status(m: &Memprof, figure: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(figure));
    let kib = line.unwrap().trim_start_matches(':').trim();
    kib.trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn target() -> (Workload, Memprof) {
    let mut workload = Workload::start_with(&program("stacks"), &["16"]);
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    workload.lines.tell("touch 500");
    (workload, m)
}

fn ask(m: &Memprof, target: &str) -> TcpStream {
    let mut stream = connect(m.address());
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> Reply {
    let mut out = Vec::new();
    stream.read_to_end(&mut out).unwrap();
    Reply::parse(&out)
}

#[track_caller]
fn is_bounded(m: &Memprof) {
    let peak = status(m, "VmHWM");
    println!(
        "peak {} MiB, now {} MiB",
        peak >> 20,
        status(m, "VmRSS") >> 20
    );
    assert!(peak <= BOUND, "{} MiB", peak >> 20);
}

#[test]
fn a_thousand_different_trees() {
    let _others = crate::beside_others();
    let (_workload, m) = target();
    let rows = m.get("/v2/tree?max_nodes=200000").json();
    let nodes = rows["nodes"]["parent"].as_array().unwrap().len();
    assert!(nodes > 65_536, "{nodes}");
    let mut made = 0;
    let streams: Vec<_> = (0..1_000)
        .map(|n| ask(&m, &format!("/v2/tree?max_nodes=200000&search=x{n}")))
        .collect();
    for reply in streams.into_iter().map(read) {
        match reply.status {
            200 => made += 1,
            status => assert_eq!((status, reply.header("retry-after")), (503, Some("5"))),
        }
    }
    println!("{made} trees of {nodes} nodes");
    assert!(made >= 3, "{made}");
    is_bounded(&m);
}

/// Clients that request the largest replies and do not read them, while others send requests.
#[test]
fn replies_that_nobody_reads() {
    let _others = crate::beside_others();
    let (mut workload, m) = target();
    let paths = [
        "/v1/tree?threshold=0",
        "/v1/tree?threshold=0&reverse=true",
        "/v2/export/json",
        "/v2/export/text?threshold=0",
        "/v2/export/profile",
    ];
    let mut unread = Vec::new();
    for path in paths {
        unread.push(ask(&m, path));
        // Each reply belongs to another report.
        workload.lines.tell("drop");
        workload.lines.tell("touch 5000");
    }
    let start = Instant::now();
    let mut tree = read(ask(&m, "/v2/tree?max_nodes=200000"));
    while tree.status == 503 && start.elapsed() < Duration::from_secs(100) {
        std::thread::sleep(Duration::from_secs(1));
        tree = read(ask(&m, "/v2/tree?max_nodes=200000"));
    }
    assert_eq!(tree.status, 200, "{}", String::from_utf8_lossy(&tree.body));
    assert_eq!(m.get("/v2/health").status, 200);
    is_bounded(&m);
    drop(unread);
}

/// Marks of reports without common stacks look like a growing target: their total size is limited.
#[test]
fn marks_and_what_compares_with_them() {
    let _others = crate::beside_others();
    let (mut workload, m) = target();
    let mut kept = 0;
    for _ in 0..20 {
        let status = m.send("POST", "/v2/marks", "").status;
        assert!(matches!(status, 201 | 409), "{status}");
        kept += u32::from(status == 201);
        workload.lines.tell("drop");
        workload.lines.tell("touch 5000");
    }
    assert!(kept >= 2, "{kept}");
    for from in 1..=kept {
        let diff = m.get(&format!("/v2/diff?from={from}&max_nodes=200000"));
        assert_eq!(diff.status, 200, "{}", String::from_utf8_lossy(&diff.body));
    }
    println!("{kept} marks");
    is_bounded(&m);
}
