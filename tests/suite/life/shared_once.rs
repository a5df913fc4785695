//! Memory with shared pages counted once (`--pss`).

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
use crate::common::workload::{Workload, program};
use crate::life::MIB;

/// A figure of the parent's mapping: of what it has mapped and what it has written since.
fn mapped(m: &Memprof, path: &str) -> u64 {
    let functions = m.get(path).json();
    let rows = functions["rows"].as_array().unwrap().iter();
    let named =
        rows.filter(|row| row["function"] == "cmd_mmap" || row["function"] == "cow_parent_writes");
    named.map(|row| row["total"].as_u64().unwrap()).sum()
}

/// After a fork both processes map all pages; the child then writes half of them, and the parent a quarter.
#[test]
fn a_parent_and_its_child_have_halves() {
    let scenarios = program("scenarios");
    let args = [scenarios.to_str().unwrap()];
    let (mut m, mut lines) = Memprof::start_command(&["--follow-forks", "--pss"], &args);
    lines.tell(&format!("mmap {}", 8 * MIB));
    lines.tell("fork_cow");
    let processes = m.get("/v2/processes").json();
    let pids: Vec<&Value> = processes["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["pid"])
        .collect();
    let of = |kind: &str, pid: &Value| {
        mapped(
            &m,
            &format!("/v2/functions?kind={kind}&pid={pid}&limit=10000"),
        )
    };
    let [parent, child] = pids[..] else {
        panic!("{processes}")
    };
    // The first 4 MiB are the parent's alone since the child has copies of its own.
    assert_eq!((of("anon", parent), of("anon", child)), (8 * MIB, 4 * MIB));
    assert_eq!((of("pss", parent), of("pss", child)), (6 * MIB, 2 * MIB));
    assert_eq!(mapped(&m, "/v2/functions?kind=pss&limit=10000"), 8 * MIB);
    let total = &processes["total"]["pss"];
    let sum: u64 = processes["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["total"]["pss"].as_u64().unwrap())
        .sum();
    assert_eq!(*total, sum);
    assert_eq!(processes["report"]["pss_counted"], true);
    // Other processes start and end meanwhile that map the same libraries.
    let metrics = m.get("/metrics");
    let mut lines_of = metrics.text().lines();
    let metric = lines_of.find_map(|line| line.strip_prefix("memprof_pss_bytes "));
    assert!(metric.unwrap().parse::<f64>().unwrap() >= 12.0 * MIB as f64);
    lines.tell("fork_end");
    lines.close();
    m.wait();
}

#[test]
fn a_control_group_has_it_by_default() {
    let group = Group::new();
    let workload = Workload::start(&program("scenarios"));
    group.put(workload.pid());
    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    assert_eq!(m.followed(), workload.pid());
    let summary = m.get("/v2/summary").json();
    assert_eq!(summary["report"]["pss_counted"], true);
    let figure = |kind: &str| summary["total"][kind].as_u64().unwrap();
    let rss = figure("resident") + figure("file");
    assert!(figure("pss") > 0 && figure("pss") < rss, "{summary}");
    m.interrupt();
    workload.end();
}

#[test]
fn without_the_option_there_is_none() {
    let workload = Workload::start(&program("scenarios"));
    let m = Memprof::start(&["--pid", &workload.pid().to_string()]);
    let reply = m.get("/v2/tree?kind=pss");
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("--pss"), "{}", reply.text());
    m.interrupt();
    workload.end();
}
