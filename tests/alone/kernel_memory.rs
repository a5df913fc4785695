//! Kernel memory by stack (`--kernel`), for programs with known amounts of it.
//!
//! Needs root and `cc`.

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

const KIB: u64 = 1024;

const PIPES: u64 = 32;
const SOCKETS: u64 = 16;
const TABLES: u64 = 1000;

/// Memory in addition to the pages: new slabs for inodes, files and mappings.
const SLABS: u64 = 256 * KIB;

fn start(args: &[&str]) -> (Memprof, Workload) {
    let workload = Workload::start(&program("kernel"));
    let pid = workload.pid().to_string();
    let mut all = vec!["--pid", &pid];
    all.extend(args);
    (Memprof::start(&all), workload)
}

/// Kernel memory that was allocated for the function and its callees.
#[track_caller]
fn held(m: &Memprof, function: &str) -> u64 {
    let reply = m.get("/v2/functions?kind=kernel&limit=10000");
    assert_eq!(reply.status, 200, "{}", reply.text());
    let table = reply.json();
    let rows = table["rows"].as_array().unwrap().iter();
    let named = rows.filter(|row| row["function"] == function);
    named.map(|row| row["total"].as_u64().unwrap()).sum()
}

#[track_caller]
fn must_hold(m: &Memprof, function: &str, least: u64, most: u64) {
    let bytes = held(m, function);
    assert!(
        (least..=most).contains(&bytes),
        "{function}: {bytes}, not {least} to {most}"
    );
}

fn page_tables(pid: Pid) -> u64 {
    figures::status(pid).unwrap().page_tables
}

#[test]
fn each_function_holds_what_it_had_allocated() {
    let _others = crate::beside_others();
    let (m, mut workload) = start(&["--kernel"]);
    let pid = workload.pid();
    let lines = &mut workload.lines;
    lines.tell(&format!("pipes {PIPES}"));
    let bytes = PIPES * 64 * KIB;
    must_hold(&m, "cmd_pipes", bytes, bytes + SLABS);
    lines.tell(&format!("sockets {SOCKETS}"));
    // The header of a message can be in an existing slab.
    let bytes = SOCKETS * 128 * KIB;
    must_hold(&m, "cmd_sockets", bytes * 9 / 10, bytes * 3 / 2 + SLABS);
    let before = page_tables(pid);
    lines.tell(&format!("sparse {TABLES}"));
    let tables = page_tables(pid) - before;
    assert!(tables >= TABLES * 4 * KIB, "{tables}");
    must_hold(&m, "cmd_sparse", tables - 64 * KIB, tables + SLABS);
    for (command, function) in [
        ("pipes_end", "cmd_pipes"),
        ("sockets_end", "cmd_sockets"),
        ("sparse_end", "cmd_sparse"),
    ] {
        assert!(held(&m, function) > SLABS, "{function}");
        lines.tell(command);
        // Some of it is freed a moment later (RCU).
        wait_until(|| held(&m, function) <= SLABS);
    }
    workload.end();
    m.interrupt();
}

#[test]
fn it_is_in_no_total_and_said_to_be_approximate() {
    let _others = crate::beside_others();
    let (m, mut workload) = start(&["--kernel"]);
    workload.lines.tell(&format!("pipes {PIPES}"));
    let mark = m.send("POST", "/v2/marks", r#"{"freeze": true}"#).json();
    let id = mark["id"].as_str().unwrap();
    let summary = m.get(&format!("/v2/summary?mark={id}")).json();
    assert_eq!(summary["report"]["kernel_counted"], true);
    assert_eq!(summary["report"]["exact"], true);
    let total = &summary["total"];
    let of = |kind: &str| total[kind].as_u64().unwrap();
    let bytes = PIPES * 64 * KIB;
    assert!(of("kernel") >= bytes, "{total}");
    assert_eq!(of("resident"), of("anon") + of("shmem"));
    assert_eq!(of("all"), of("resident") + of("cache"));
    assert_eq!(total["anon"], summary["kernel"]["after"]["rss_anon"]);
    let tree = m.get(&format!("/v2/tree?mark={id}&kind=kernel")).json();
    assert_eq!(tree["total"], total["kernel"]);
    let functions = m.get(&format!("/v2/functions?mark={id}&limit=10000"));
    let all = functions.json()["total"].clone();
    assert_eq!(all, total["all"]);
    let folded = m.get(&format!("/v2/export/folded?to={id}&kind=kernel"));
    let rows = folded.text().lines().map(|l| l.rsplit_once(' ').unwrap().1);
    let sum: u64 = rows.map(|n| n.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, of("kernel"));
    let metrics = m.get("/metrics");
    assert!(metrics.text().contains("memprof_approximate_kernel_bytes "));
    let speedscope = m.get("/v2/export/speedscope").text().to_owned();
    assert!(speedscope.contains("kernel (approximate)"));
    let csv = m.get(&format!("/v2/export/csv?to={id}")).text().to_owned();
    assert!(csv.lines().next().unwrap().contains(",kernel_bytes,"));
    // The series has a figure of it as soon as a report has been sampled.
    let sampled = || {
        m.get("/v2/summary");
        last_of_series(&m, "kernel").is_some_and(|bytes| bytes >= PIPES * 64 * KIB)
    };
    wait_until(sampled);
    // /v1 does not contain kernel memory.
    let short = m.get("/v1/tree?short=true").json();
    assert_eq!(short["anon"].as_u64().unwrap() * KIB, of("resident"));
    assert_eq!(m.tree().through("cmd_pipes").value, 0);
    workload.end();
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
}

/// The newest value of a figure of the time series; `None` if the series has no such figure, or no value.
fn last_of_series(m: &Memprof, figure: &str) -> Option<u64> {
    let reply = m.get("/v2/series").json();
    let figures = reply["series"].as_array().unwrap();
    let found = figures.iter().find(|one| one["name"] == figure)?;
    found["values"].as_array().unwrap().last()?.as_u64()
}

/// Descriptors of a kind that a process holds.
fn held_open(pid: Pid, kind: &str) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let link =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let named = |path: &std::path::PathBuf| path.to_string_lossy() == format!("anon_inode:{kind}");
    files.filter_map(link).filter(named).count()
}

#[test]
fn nothing_of_it_is_loaded_without_being_asked_for() {
    let _others = crate::beside_others();
    let (with, first) = start(&["--kernel"]);
    let (without, second) = start(&[]);
    for (kind, more) in [("bpf-prog", 3), ("bpf-map", 2)] {
        let [a, b] = [&with, &without].map(|m| held_open(m.pid(), kind));
        assert!(b > 0, "{kind}");
        assert_eq!(a - b, more, "{kind}");
    }
    let summary = without.get("/v2/summary").json();
    assert_eq!(summary["report"]["kernel_counted"], false);
    assert_eq!(summary["total"]["kernel"], 0);
    assert_eq!(without.send("POST", "/v2/marks", "").status, 201);
    for path in [
        "/v2/tree?kind=kernel",
        "/v2/functions?kind=kernel",
        "/v2/diff?from=1&kind=kernel",
        "/v2/diff?from=1&by=function&kind=kernel",
        "/v2/export/folded?kind=kernel",
    ] {
        let reply = without.get(path);
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.text().contains("--kernel"), "{}", reply.text());
    }
    let series = without.get("/v2/series").json();
    let figures = series["series"].as_array().unwrap();
    assert!(figures.iter().all(|figure| figure["name"] != "kernel"));
    let tables = |m: &Memprof| m.get("/v2/health").json()["maps"].clone();
    let has = |maps: Value| {
        let maps = maps.as_array().unwrap().clone();
        maps.iter().any(|map| map["name"] == "kernel_pages")
    };
    assert!(has(tables(&with)) && !has(tables(&without)));
    first.end();
    second.end();
    with.interrupt();
    without.interrupt();
}
