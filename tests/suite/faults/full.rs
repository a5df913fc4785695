//! The ring buffer and the tables are full: what does not fit is counted and shown, and totals still equal the kernel's.
//!
//! Here are those that no other test fills; `tests/suite/life/spawning.rs` and `tests/suite/unwind/full.rs` fill the tables of processes, of pages,
//! of the unwinder, and of stacks, and the ring buffer with stacks.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, cont, eventually, stop, wait_until};
use crate::common::workload::{Lines, Workload, program};
use crate::faults::equals_the_kernel;
use memprof_sys::ids::Pid;

/// A memprof whose tables have these sizes.
fn with_sizes(sizes: &str, args: &[&str]) -> Memprof {
    let mut command = Command::new(BINARY);
    command.env("MEMPROF_TABLE_SIZES", sizes);
    command
        .args(["--listen", "127.0.0.1:0", "--stacks", "all"])
        .args(args);
    let m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    m.said("following ");
    m
}

/// What memprof says of this loss.
fn lost(m: &Memprof, what: &str) -> u64 {
    let health = m.get("/v2/health").json();
    let rows = ["losses", "not_counted"].map(|rows| health[rows].as_array().unwrap().clone());
    let mut rows = rows.iter().flatten();
    let row = rows.find(|row| row["what"].as_str().unwrap().contains(what));
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

/// Waits until it says that something was lost in this way, in reports and in the summary at its end.
#[track_caller]
fn says_lost(m: &Memprof, what: &str) {
    eventually(
        LIMIT,
        &format!("{what}: {}", m.get("/v2/health").text()),
        || {
            m.get("/v2/summary");
            lost(m, what) > 0
        },
    );
}

#[track_caller]
fn ends_well(m: Memprof) {
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
}

fn disk_file(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, vec![1; 8 << 20]).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Chunks of cached files.
#[test]
fn the_page_cache_ledger() {
    // Not on tmpfs, whose pages are no page cache.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let files: Vec<String> = (0..6)
        .map(|n| disk_file(dir.path(), &n.to_string()))
        .collect();
    let mut workload = Workload::start(&program("scenarios"));
    for file in &files {
        workload.lines.tell(&format!("fadvise_dontneed {file}"));
    }
    let m = with_sizes("cache=3", &["--pid", &workload.pid().to_string()]);
    for file in &files {
        workload.lines.tell(&format!("read {file}"));
    }
    says_lost(&m, "cached pages not recorded: cache ledger full");
    equals_the_kernel(&m, workload.pid());
    let cache = m.get("/v2/summary").json()["total"]["cache"]
        .as_u64()
        .unwrap();
    // Of what it has room for, and no more.
    assert!(cache > 0 && cache <= 3 * (2 << 20), "{cache}");
    ends_well(m);
    workload.end();
}

/// Pages of the kernel (`--kernel`).
#[test]
fn the_table_of_kernel_pages() {
    let mut workload = Workload::start(&program("scenarios"));
    let m = with_sizes(
        "kernel_pages=16",
        &["--kernel", "--pid", &workload.pid().to_string()],
    );
    // Each thread has a stack in the kernel.
    workload.lines.tell("threads 300");
    says_lost(&m, "kernel pages not recorded: table full");
    equals_the_kernel(&m, workload.pid());
    ends_well(m);
    workload.lines.tell("threads_end");
    workload.end();
}

/// Every event: processes come and go, memory moves, libraries are loaded, while nobody reads the ring buffer.
#[test]
fn the_ring_buffer_with_everything() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut workload = Workload::start_with(&program("soak"), &[dir.path().to_str().unwrap()]);
    assert_eq!(workload.lines.line(), "ready");
    let m = with_sizes(
        "events=16384",
        &["--follow-forks", "--pid", &workload.pid().to_string()],
    );
    for _ in 0..crate::faults::times(2, 20) {
        stop(m.pid());
        std::thread::sleep(std::time::Duration::from_secs(2));
        cont(m.pid());
        workload.lines.send("hold");
        let held = workload.lines.line();
        let pids = held.strip_prefix("held ").unwrap().split(' ');
        let mut pids: Vec<Pid> = pids.map(|pid| Pid(pid.parse().unwrap())).collect();
        pids.sort_unstable();
        // Those of which it heard nothing are found, or their lack is said: a figure that is `equal` is.
        let mut summary = Value::Null;
        eventually(LIMIT, "the processes are known", || {
            summary = m.get("/v2/summary").json();
            let known = summary["target"]["pids"].as_array().unwrap().iter();
            let mut known: Vec<Pid> = known.map(|pid| Pid(pid.as_u64().unwrap() as u32)).collect();
            known.sort_unstable();
            known == pids && summary["agreement"]["verdict"] == "equal"
        });
        let figures = pids
            .iter()
            .map(|pid| memprof_sys::residency::figures::read(*pid).unwrap());
        let kernel: u64 = figures.map(|f| f.anonymous.unwrap() + f.rss_shmem).sum();
        assert_eq!(summary["total"]["resident"], kernel, "{summary}");
        workload.lines.tell("go");
    }
    for what in [
        "process events not sent: ring buffer full",
        "address-space events not sent: ring buffer full",
        "stack records not sent: ring buffer full",
    ] {
        says_lost(&m, what);
    }
    // What comes later is recorded, and has its stack: those that were not sent are sent again.
    workload.lines.tell("late 16");
    wait_until(|| m.tree().through("late_allocation").value >= 16 << 10);
    ends_well(m);
    workload.end();
}

/// A command with sampled allocations, each being a sample, more than the ring buffer holds: memprof is stopped.
fn with_too_many_samples() -> (Memprof, Lines, Pid) {
    let program = program("allocations");
    let args = [
        "--heap",
        "--heap-interval",
        "0",
        "--",
        program.to_str().unwrap(),
    ];
    let mut m = with_sizes("events=16384", &args);
    let mut lines = Lines::new(&mut m.child);
    lines.tell("hold 10 1000");
    let pid = m.followed();
    // memprof holds the command for a moment after its start.
    std::thread::sleep(std::time::Duration::from_secs(2));
    crate::common::process::signal(m.pid(), libc::SIGSTOP);
    lines.tell("hold 20000 1000");
    (m, lines, pid)
}

/// Sampled allocations and their frees.
#[test]
fn the_ring_buffer_with_samples() {
    let (m, mut lines, pid) = with_too_many_samples();
    lines.tell("release 10000");
    cont(m.pid());
    says_lost(&m, "sampled allocations not sent: ring buffer full");
    equals_the_kernel(&m, pid);
    // The losses are beside figures that are too small, never too large.
    let heap = m.get("/v2/summary").json()["total"]["inuse_objects"]
        .as_u64()
        .unwrap();
    assert!(heap <= 20_000 + 100, "{heap}");
    lines.close();
    let said = m.all_said();
    assert!(
        said.contains("sampled allocations not sent: ring buffer full"),
        "{said}"
    );
    assert!(!said.contains("panicked"), "{said}");
}

/// Among what does not fit is the end of the command: it is found, and its last state is scanned, once.
#[test]
fn the_ring_buffer_at_the_end_of_a_command() {
    let (m, mut lines, pid) = with_too_many_samples();
    lines.close();
    eventually(LIMIT, "the command has ended", || {
        matches!(crate::common::process::state(pid), 'Z' | 'X')
    });
    cont(m.pid());
    let said = m.all_said();
    assert!(
        said.contains("process events not sent: ring buffer full"),
        "{said}"
    );
    let resident = said.lines().find(|line| line.starts_with("resident "));
    assert!(
        resident.is_some_and(|line| line.ends_with("equal")),
        "{said}"
    );
}

/// The sums and the live blocks of `--heap=exact`.
#[test]
fn the_tables_of_exact_calls() {
    let program = program("allocations");
    let args = [
        "--heap=exact",
        "--duration",
        "600",
        "--",
        program.to_str().unwrap(),
    ];
    let mut m = with_sizes("exact_sums=2,exact_blocks=64", &args);
    let mut lines = Lines::new(&mut m.child);
    lines.tell("hold 5000 100");
    lines.tell("churn 100 100");
    let pid = m.followed();
    says_lost(
        &m,
        "allocations that are not in the live heap: too many live ones",
    );
    says_lost(&m, "allocations without their own stack: too many stacks");
    equals_the_kernel(&m, pid);
    let total = m.get("/v2/summary").json()["total"].clone();
    // All calls are counted, whatever is known of their blocks.
    let of = |name: &str| {
        total[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {total}"))
    };
    assert!(of("alloc_objects") >= 5100, "{total}");
    assert!(of("inuse_objects") <= 64, "{total}");
    lines.close();
    m.all_said();
}
