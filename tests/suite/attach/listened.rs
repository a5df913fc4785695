//! Allocations of a process that was attached to, by stack.

use crate::attach::attached;
use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};

/// A right estimate is further away than so many standard errors in one of two million cases.
const ERRORS: f64 = 5.1;

/// The figure of a kind below a function, and its standard error.
fn below(m: &Memprof, function: &str, kind: &str) -> (u64, u64) {
    let reply = m.get(&format!("/v2/functions?kind={kind}&limit=10000"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let table = reply.json();
    let mut rows = table["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["function"] == function);
    row.map_or((0, 0), |row| {
        let error = row["total_error"].as_u64().unwrap_or(0);
        (row["total"].as_u64().unwrap(), error)
    })
}

#[track_caller]
fn must_be(m: &Memprof, function: &str, kind: &str, truth: u64) {
    let (figure, error) = below(m, function, kind);
    let off = figure.abs_diff(truth) as f64;
    assert!(
        off <= ERRORS * error as f64 && error < truth / 4,
        "{kind} of {function}: {figure} ± {error}, not {truth}"
    );
}

/// Listens until allocations are seen.
fn listen(workload: &mut Workload) -> Memprof {
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    wait_until(|| {
        workload.lines.tell("own 1 1000000");
        below(&m, "own_holds", "alloc_space").0 > 0
    });
    m
}

#[test]
fn stacks_have_what_they_allocate() {
    have_what_they_allocate(Workload::start(&program("allocations")));
}

/// The program `allocations`.
pub fn have_what_they_allocate(mut workload: Workload) {
    // Blocks from before are freed after.
    workload.lines.tell("hold 5000 500");
    attached(workload.pid(), &["--heap-interval", "16KiB"]);
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    wait_until(|| {
        workload.lines.tell("churn 100 100000");
        below(&m, "churn", "alloc_space").0 > 0
    });
    workload.lines.tell("release 5000");
    workload.lines.tell("hold 20000 500");
    workload.lines.tell("threads 2000 3000");
    must_be(&m, "hold", "inuse_space", 20_000 * 500);
    must_be(&m, "hold", "inuse_objects", 20_000);
    must_be(&m, "thread_holds", "inuse_space", 8_000 * 3_000);
    workload.lines.tell("release 8000");
    assert_eq!(below(&m, "thread_holds", "inuse_space"), (0, 0));
    workload.lines.tell("release 20000");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
    must_be(&m, "hold", "alloc_space", 20_000 * 500);
    assert_eq!(m.lost(), [""; 0]);
    // The library's own functions are in no stack of a sample.
    let table = m.get("/v2/functions?kind=alloc_space&limit=10000").json();
    let rows = table["rows"].as_array().unwrap().iter();
    let modules: Vec<_> = rows
        .map(|row| row["module"].as_str().unwrap_or(""))
        .collect();
    assert!(
        !modules.iter().any(|name| name.contains("memprof")),
        "{modules:?}"
    );
}

#[test]
fn libraries_that_are_loaded_later_are_seen() {
    let plugin = program("plugin");
    let mut workload = Workload::start(&program("loader"));
    attached(workload.pid(), &["--heap-interval", "16KiB"]);
    workload.lines.tell(&format!("load {}", plugin.display()));
    let m = listen(&mut workload);
    workload.lines.tell("hold 20000 500");
    must_be(&m, "plugin_holds", "alloc_space", 20_000 * 500);
}

#[test]
fn a_second_time_changes_nothing() {
    let workload = Workload::start(&program("allocations"));
    attached(workload.pid(), &[]);
    let before = crate::attach::maps(workload.pid());
    let again = crate::attach::attach(workload.pid(), &[]);
    again.must(0, &[]);
    assert!(again.stdout.contains("already"), "{again:?}");
    assert_eq!(crate::attach::maps(workload.pid()), before);
}

/// Also one that another user runs, and whose file tree is another.
#[test]
fn another_users_process_is_attached_to() {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new(program("allocations"));
    let mut workload = Workload::start_as(command.uid(65534).gid(65534));
    workload.lines.tell("hold 10 10");
    attached(workload.pid(), &[]);
    workload.lines.tell("hold 10 10");
    workload.end();
}
