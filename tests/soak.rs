//! All operations at once for a long time: totals do not drift, memprof does not grow, and nothing is lost.
//!
//! `MEMPROF_TEST_SECS` seconds (default 20), half an hour in `./run-tests soak`.
//!
//! Needs root and `cc`.

mod common;
#[path = "../benches/support/counters.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod counters;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::effort;
use common::memprof::Memprof;
use common::process::wait_until;
use common::workload::{Workload, program};
use common::{Reply, connect, exchange};
use memprof_profile::Losses;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

const KIB: u64 = 1024;
/// Allowed growth of memprof from the first fifth to the end.
const RSS_KIB: u64 = 24 * 1024;
const MAPS_KIB: u64 = 8 * 1024;
const DESCRIPTORS: u64 = 16;
const THREADS: u64 = 4;
const CHUNKS: u64 = 1000;
const LATE_MIB: u64 = 16;
/// Concurrent requests.
const CLIENTS: usize = 3;
/// The paths of the requests.
const ASKED: [&str; 27] = [
    "/v1/pid",
    "/v1/tree",
    "/v1/tree?reverse=true&threshold=0",
    "/v2/summary",
    "/v2/processes",
    "/v2/tree?direction=callers",
    "/v2/tree?direction=callees&kind=cache",
    "/v2/functions",
    "/v2/functions?search=soak&sort=name",
    "/v2/files",
    "/v2/maps",
    "/v2/series",
    "/v2/marks",
    "/v2/health",
    "/v2/exports",
    "/v2/export/csv",
    "/v2/export/folded",
    "/v2/export/functions",
    "/v2/export/json",
    "/v2/export/pprof",
    "/v2/export/profile",
    "/v2/export/speedscope",
    "/v2/export/svg",
    "/v2/export/text",
    "/metrics",
    "/debug/pprof/heap",
    "/debug/memory",
];

fn seconds() -> u64 {
    effort::duration(20).as_secs()
}

/// memprof's use of resources.
#[derive(Clone, Copy, Debug)]
struct Holds {
    rss_kib: u64,
    maps_kib: u64,
    descriptors: u64,
    threads: u64,
    /// Entries of the page ledger, 2 MiB of addresses each. memprof counts them only from time to time.
    chunks: u64,
}

impl Holds {
    fn count(m: &Memprof) -> Holds {
        let entries = |dir| {
            let path = format!("/proc/{}/{dir}", m.pid());
            std::fs::read_dir(path).unwrap().count() as u64
        };
        Holds {
            rss_kib: counters::held(m.pid().0).unwrap() / KIB,
            maps_kib: counters::bpf_memory(m.pid().0).unwrap().0 / KIB,
            descriptors: entries("fd"),
            threads: entries("task"),
            chunks: m.map_entries("pages"),
        }
    }

    /// Each figure with its name and its allowed growth.
    fn figures(self) -> [(&'static str, u64, u64); 5] {
        [
            ("KiB of resident memory", self.rss_kib, RSS_KIB),
            ("KiB of BPF maps", self.maps_kib, MAPS_KIB),
            ("descriptors", self.descriptors, DESCRIPTORS),
            ("threads", self.threads, THREADS),
            ("chunks of the page ledger", self.chunks, CHUNKS),
        ]
    }
}

/// The figures that have grown: the minimum of the last samples compared with the maximum of the first fifth.
fn grown(samples: &[(Duration, Holds)], run: Duration) -> Vec<String> {
    let early = samples.iter().filter(|(at, _)| *at <= run / 5);
    let early: Vec<Holds> = early.map(|(_, holds)| *holds).collect();
    let late = &samples[samples.len().saturating_sub(3)..];
    assert!(!early.is_empty(), "no sample in the first fifth");
    let figure = |holds: &Holds, i: usize| holds.figures()[i].1;
    (0..5)
        .filter_map(|i| {
            let (what, _, slack) = early[0].figures()[i];
            let before = early.iter().map(|h| figure(h, i)).max()?;
            let now = late.iter().map(|(_, h)| figure(h, i)).min()?;
            (now > before + slack).then(|| format!("{before} {what}, then {now}"))
        })
        .collect()
}

/// Sends requests of all kinds until told to stop, and none while the gate is closed.
struct Clients {
    address: SocketAddr,
    gate: RwLock<()>,
    stop: AtomicBool,
    answered: AtomicUsize,
    busy: AtomicUsize,
}

impl Clients {
    fn start(m: &Memprof) -> Clients {
        Clients {
            address: m.address(),
            gate: RwLock::default(),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
        }
    }

    fn ask(&self, first: usize) {
        let mut round = first;
        while !self.stop.load(Ordering::Relaxed) {
            // The gate stays closed if the comparison with the kernel has failed.
            let Ok(open) = self.gate.read() else { return };
            match round % 10 {
                3 => self.mark(round % 20 == 3),
                7 => self.events(),
                _ => {
                    let target = ASKED[round * 7 % ASKED.len()];
                    self.request("GET", target, "", 200);
                }
            }
            drop(open);
            round += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A reply with this status; `None` if memprof says that it is too busy, or that the target cannot be
    /// frozen now.
    fn request(&self, method: &str, target: &str, body: &str, status: u16) -> Option<Reply> {
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.address
        );
        let reply = Reply::parse(&exchange(self.address, request.as_bytes()));
        self.answered.fetch_add(1, Ordering::Relaxed);
        if reply.status == 503 {
            self.busy.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        assert_eq!(reply.status, status, "{method} {target}: {}", reply.text());
        Some(reply)
    }

    /// Creates a mark, compares with it, and deletes it.
    fn mark(&self, freeze: bool) {
        let body = format!(r#"{{"name": "soak", "freeze": {freeze}}}"#);
        let Some(reply) = self.request("POST", "/v2/marks", &body, 201) else {
            return;
        };
        let mark = reply.json();
        let id = mark["id"].as_str().unwrap().to_owned();
        self.request("GET", &format!("/v2/diff?from={id}&to=now"), "", 200);
        self.request("GET", &format!("/v2/tree?mark={id}"), "", 200);
        self.request("DELETE", &format!("/v2/marks/{id}"), "", 204);
    }

    /// Reads the event stream for a moment.
    fn events(&self) {
        let mut stream = connect(self.address);
        let address = self.address;
        write!(stream, "GET /v2/events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).unwrap();
        let head = String::from_utf8_lossy(&piece[..n]).into_owned();
        assert!(
            head.starts_with("HTTP/1.1 200 ") || head.starts_with("HTTP/1.1 503 "),
            "{head}"
        );
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// With the target stopped, memprof's sum over its processes equals the kernel's.
#[track_caller]
fn compare(m: &Memprof, pids: &[Pid]) -> u64 {
    let mut expected: Vec<u64> = pids.iter().map(|pid| u64::from(pid.0)).collect();
    expected.sort_unstable();
    // A process that has just ended may still be in the last report.
    let mut summary = Value::Null;
    wait_until(|| {
        summary = m.get("/v2/summary").json();
        let pids = summary["target"]["pids"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let mut pids: Vec<u64> = pids.iter().filter_map(Value::as_u64).collect();
        pids.sort_unstable();
        pids == expected && summary["agreement"]["verdict"] == "equal"
    });
    let kernel: u64 = pids
        .iter()
        .map(|pid| figures::read(*pid).unwrap())
        .map(|f| f.anonymous.unwrap() + f.rss_shmem)
        .sum();
    let ours = summary["total"]["resident"].as_u64().unwrap();
    assert_eq!(
        ours.abs_diff(kernel),
        0,
        "memprof: {ours} bytes, kernel: {kernel}; {summary}"
    );
    ours / KIB
}

/// What memprof has lost. One report may lack a process that holds its mmap lock for long, as it may on a busy machine, and that no
/// report had before; the next has it.
fn lost(m: &Memprof) -> Vec<String> {
    let mut lost = m.lost();
    for _ in 0..5 {
        if !lost.iter().any(|row| row.contains(Losses::NOT_SCANNED)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        lost = m.lost();
    }
    lost
}

/// Stops the target, compares, and lets it continue.
fn checkpoint(workload: &mut Workload, m: &Memprof, clients: &Clients) -> (Holds, u64) {
    let shut = clients.gate.write().unwrap();
    workload.lines.send("hold");
    let line = workload.lines.line();
    let pids = line
        .strip_prefix("held ")
        .unwrap_or_else(|| panic!("{line:?}"));
    let pids: Vec<Pid> = pids
        .split(' ')
        .map(|pid| Pid(pid.parse().unwrap()))
        .collect();
    let resident = compare(m, &pids);
    let holds = Holds::count(m);
    workload.lines.tell("go");
    drop(shut);
    (holds, resident)
}

#[test]
fn nothing_drifts_nothing_grows_nothing_is_lost() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let args = [dir.path().to_str().unwrap()];
    let mut workload = Workload::start_with(&program("soak"), &args);
    assert_eq!(workload.lines.line(), "ready");
    let pid = workload.pid();
    let m = Memprof::attach(pid, &["--follow-forks"]);
    m.said("following ");
    let clients = Clients::start(&m);
    let (began, run) = (Instant::now(), Duration::from_secs(seconds()));
    let (mut samples, mut wrong) = (Vec::new(), Vec::new());
    let pause = (run / 60).clamp(Duration::from_secs(1), Duration::from_secs(10));
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS)
            .map(|n| {
                scope.spawn({
                    let clients = &clients;
                    move || clients.ask(n * 9)
                })
            })
            .collect();
        // The clients must end even if something fails here: the scope waits for them.
        let stop = StopAtDrop(&clients.stop);
        let mut noted_loss = false;
        while began.elapsed() < run {
            std::thread::sleep(pause);
            let (holds, resident) = checkpoint(&mut workload, &m, &clients);
            let (at, lost) = (began.elapsed(), lost(&m));
            let (answered, busy) = (&clients.answered, &clients.busy);
            println!(
                "{at:.0?}: {resident} KiB, difference 0; {holds:?}; {answered:?} requests, {busy:?} \
                 answered 503; lost: {lost:?}"
            );
            if !lost.is_empty() && !noted_loss {
                wrong.push(format!("lost first after {at:.0?}: {}", lost.join(", ")));
                noted_loss = true;
            }
            samples.push((at, holds));
            assert!(asking.iter().all(|a| !a.is_finished()), "a client failed");
        }
        drop(stop);
    });
    wrong.extend(grown(&samples, run));
    // memprof still records.
    workload.lines.tell(&format!("late {LATE_MIB}"));
    workload.lines.send("hold");
    assert!(workload.lines.line().starts_with("held "));
    let found = m.tree().through("late_allocation").value;
    // This may include a page of the caller's stack, which a fork has shared between two processes.
    if !(LATE_MIB * 1024..LATE_MIB * 1024 + 64).contains(&found) {
        wrong.push(format!(
            "{found} KiB of {} stand below late_allocation",
            LATE_MIB * 1024
        ));
    }
    workload.lines.tell("go");
    let answered = clients.answered.into_inner();
    println!("{} checkpoints, {answered} requests", samples.len());
    assert!(answered as u64 > seconds(), "only {answered} requests");
    let mut m = m;
    let mut out = m.child.stdout.take().unwrap();
    m.interrupt();
    let mut summary = String::new();
    out.read_to_string(&mut summary).unwrap();
    let rows = summary
        .split_once("\nLosses:")
        .expect("a summary")
        .1
        .lines();
    let is_loss = |l: &&str| !l.trim().is_empty() && !l.starts_with("Not counted");
    let rows = rows.skip(1).take_while(is_loss);
    wrong.extend(rows.map(|l| format!("summary: {}", l.trim())));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    workload.end();
}

/// Tells the clients to stop when dropped.
struct StopAtDrop<'a>(&'a AtomicBool);

impl Drop for StopAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
