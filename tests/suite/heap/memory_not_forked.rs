//! Memory that a forked child does not have is in a snapshot, or is said to be missing: no chunk is called unreachable because its
//! only address is there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::binary::memprof;
use crate::common::process::figure;
use crate::common::skip::skip;
use crate::common::workload::{Lines, Running, Workload, program};
use crate::heap::fork::{children, heap};
use memprof_sys::ids::Pid;

/// A process whose blocks' addresses are only in memory of this kind.
fn workload(how: &str, mib: u64) -> Workload {
    let mut workload = Workload::start_with(&program("kept_back"), &[how, &mib.to_string()]);
    assert_eq!(workload.lines.line(), "ok", "{how}");
    workload
}

fn anonymous(pid: Pid) -> u64 {
    rollup(pid, "Anonymous:")
}

/// A figure of `smaps_rollup`, in bytes.
fn rollup(pid: Pid, name: &str) -> u64 {
    figure(&format!("/proc/{pid}/smaps_rollup"), name)
}

/// A snapshot of a process that waits has all of its memory, and calls nothing unreachable.
#[track_caller]
fn is_whole(heap: &Value, pid: Pid) {
    assert_eq!(heap["anonymous"], anonymous(pid), "{}", heap["missing"]);
    assert_eq!(heap["agreement"], "equal", "{}", heap["kernel"]);
    assert_eq!(heap["missing"], json!([]));
    assert_eq!(heap["not_called_unreachable"], Value::Null);
    assert_eq!(heap["unreachable"]["chunks"], 0, "{}", heap["unreachable"]);
}

#[test]
fn what_a_child_does_not_have_is_copied_from_its_parent() {
    for how in ["none", "dontfork", "wipeonfork", "userfault"] {
        let workload = workload(how, 8);
        let heap = heap(workload.pid(), &["--max-stop", "10000"]);
        assert_eq!(heap["taken"]["approach"], "fork", "{how} {}", heap["taken"]);
        is_whole(&heap, workload.pid());
        let read = heap["read"].as_array().unwrap();
        let of = |kind: &str| read.iter().find(|row| row["kind"] == kind);
        assert_eq!(of("ordinary").unwrap()["from"], "child", "{how}");
        for (kind, wanted) in [("not_forked", "dontfork"), ("wiped", "wipeonfork")] {
            let row = json!({"kind": kind, "from": "stopped_process", "bytes": 8 << 20});
            assert_eq!(of(kind), (how == wanted).then_some(&row), "{how}");
        }
        let bytes = read.iter().filter(|row| row["kind"] != "no_access");
        let bytes: u64 = bytes.map(|row| row["bytes"].as_u64().unwrap()).sum();
        assert_eq!(heap["copied"], bytes, "{how}");
        workload.end();
    }
}

#[test]
fn all_of_node_s_heap_is_there() {
    const NODE: &str = "/usr/bin/node";
    if !Path::new(NODE).exists() {
        return skip("there is no node");
    }
    const PROGRAM: &str = "
        const kept = [];
        for (let n = 0; n < 32; n++) kept.push(Buffer.alloc(1 << 20, 7));
        setTimeout(() => console.log('ok'), 500);
        process.stdin.on('data', () => {}).on('end', () => process.exit(kept.length - 32));";
    let mut child = Command::new(NODE)
        .args(["-e", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Lines::new(&mut child);
    let node = Running(child);
    assert_eq!(lines.line(), "ok");
    let pid = node.pid();
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let marked = smaps
        .lines()
        .filter(|line| line.starts_with("VmFlags:") && line.contains(" dc"));
    if marked.count() == 0 {
        return skip("this node's heap is inherited by a fork");
    }
    let heap = heap(pid, &["--max-stop", "10000"]);
    assert_eq!(heap["taken"]["approach"], "fork", "{}", heap["taken"]);
    is_whole(&heap, pid);
}

/// More than can be copied in the stop's time.
#[test]
fn what_is_missing_is_named_and_nothing_is_called_unreachable() {
    for (how, kind, advice) in [
        ("dontfork", "not_forked", "MADV_DONTFORK"),
        ("wipeonfork", "wiped", "MADV_WIPEONFORK"),
    ] {
        let workload = workload(how, 256);
        let fork = ["--snapshot", "fork", "--max-stop", "100"];
        let heap = heap(workload.pid(), &fork);
        assert_eq!(heap["missing"], json!([{"kind": kind, "bytes": 256 << 20}]));
        assert_eq!(heap["agreement"], "differs", "{}", heap["kernel"]);
        assert_eq!(heap["unreachable"], Value::Null);
        let why = heap["not_called_unreachable"].as_str().unwrap();
        assert!(why.contains(advice), "{why}");
        for row in heap["types"]["rows"].as_array().unwrap() {
            assert_eq!(row["unreachable"], 0, "{row}");
        }
        let roots = heap["retained"]["roots"].as_array().unwrap().iter();
        let lacks = roots.filter(|root| root["kind"] == "missing");
        let blocks: u64 = lacks.map(|root| root["count"].as_u64().unwrap()).sum();
        assert_eq!(blocks, 20_000, "{}", heap["retained"]);
        let pid = workload.pid().to_string();
        let ended = memprof(&[&["heap", "--pid", &pid][..], &fork].concat());
        let named = "not in the snapshot: 262144.0 KiB of memory that";
        ended.must(0, &[]);
        assert!(ended.stdout.contains(named), "{}", ended.stdout);
        assert!(ended.stdout.contains("No chunk is called unreachable: "));
        assert!(!ended.stdout.contains("changed meanwhile"));
        workload.end();
    }
}

/// The number of pages of hugetlbfs, as it was before.
struct Pool(String);

const POOL: &str = "/proc/sys/vm/nr_hugepages";

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, &self.0);
    }
}

/// A page of hugetlbfs that a process writes to while it has a child takes another one of the pool.
#[test]
fn a_process_with_huge_pages_of_its_own_is_copied() {
    let before = fs::read_to_string(POOL).unwrap_or_default();
    let Ok(pages) = before.trim().parse::<u64>() else {
        return skip("there are no huge pages");
    };
    let pool = Pool(before);
    let _ = fs::write(POOL, (pages + 8).to_string());
    let mut workload = Workload::start_with(&program("kept_back"), &["hugetlb", "16"]);
    let said = workload.lines.line();
    drop(pool);
    if said != "ok" {
        return skip(format!("there is no room for huge pages: {said}"));
    }
    let pid = workload.pid();
    let heap = heap(pid, &["--max-stop", "10000"]);
    let taken = &heap["taken"];
    assert_eq!(taken["approach"], "copy", "{taken}");
    let why = taken["not_forked"].as_str().unwrap();
    assert!(why.contains("16 MiB of private huge pages"), "{why}");
    is_whole(&heap, pid);
    let pid = pid.to_string();
    let refused = memprof(&["heap", "--pid", &pid, "--snapshot", "fork"]);
    refused.must(1, &["private huge pages", "--snapshot copy"]);
    workload.end();
}

/// Its heap is not read, but all of its memory is there.
#[test]
fn a_process_with_musl_is_forked() {
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kept_back_musl");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/kept_back.c");
    let compiled = Command::new("musl-gcc")
        // For the kernel's headers, which musl has not.
        .args(["-O1", "-idirafter", "/usr/include", "-idirafter"])
        .args(["/usr/include/x86_64-linux-gnu", source, "-o"])
        .arg(&binary)
        .status();
    match compiled {
        Ok(status) => assert!(status.success()),
        Err(_) => return skip("there is no musl-gcc"),
    }
    let mut workload = Workload::start_with(&binary, &["dontfork", "8"]);
    assert_eq!(workload.lines.line(), "ok");
    let heap = heap(workload.pid(), &["--max-stop", "10000"]);
    assert_eq!(heap["taken"]["approach"], "fork", "{}", heap["taken"]);
    assert_eq!(heap["anonymous"], anonymous(workload.pid()));
    assert_eq!(heap["missing"], json!([]));
    assert_eq!(children(workload.pid()), []);
    workload.lines.tell("none");
    workload.end();
}

/// Of a server with forked workers, say: memprof makes none of it private.
#[test]
fn memory_that_forked_processes_share_stays_shared() {
    let mut workload = workload("none", 8);
    workload.lines.tell("fork");
    let pid = workload.pid();
    let before = rollup(pid, "Pss_Anon:");
    assert!(before < anonymous(pid) * 2 / 3, "it is shared: {before}");
    for how in ["copy", "fork"] {
        heap(pid, &["--snapshot", how, "--max-stop", "10000"]);
        let after = rollup(pid, "Pss_Anon:");
        assert!(after < before + before / 8, "{how}: {before} {after}");
    }
    workload.end();
}
