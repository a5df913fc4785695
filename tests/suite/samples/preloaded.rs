//! Commands that have memprof's own sampler preloaded.

use std::fs;
use std::path::PathBuf;

use crate::common::memprof::{self, Memprof};
use crate::common::workload::{Lines, program};
use crate::samples::{below, total};

/// A right estimate is further away than so many standard errors in one of two million cases.
const ERRORS: f64 = 5.1;

fn start(args: &[&str]) -> (Memprof, Lines) {
    let program = program("allocations");
    Memprof::start_command(&[&["--heap"], args].concat(), &[program.to_str().unwrap()])
}

/// Checks an estimate by the error that is stated with it.
#[track_caller]
pub fn must_be(m: &Memprof, function: &str, kind: &str, truth: u64) {
    let (figure, error) = below(m, function, kind);
    let off = figure.abs_diff(truth) as f64;
    assert!(
        error > 0 && off <= ERRORS * error as f64,
        "{kind} of {function}: {figure} ± {error}, not {truth}"
    );
    // The error says something.
    assert!(
        error < truth / 4,
        "{kind} of {function}: {figure} ± {error}"
    );
}

#[test]
fn estimates_are_as_far_off_as_they_say() {
    let (m, mut lines) = start(&["--heap-interval", "16KiB"]);
    lines.tell("hold 20000 500");
    lines.tell("churn 200000 64");
    lines.tell("threads 2000 3000");
    must_be(&m, "hold", "inuse_space", 20_000 * 500);
    must_be(&m, "hold", "inuse_objects", 20_000);
    must_be(&m, "hold", "alloc_space", 20_000 * 500);
    assert_eq!(below(&m, "churn", "inuse_space"), (0, 0));
    must_be(&m, "churn", "alloc_space", 200_000 * 64);
    must_be(&m, "churn", "alloc_objects", 200_000);
    must_be(&m, "churn", "temporary_space", 200_000 * 64);
    must_be(&m, "thread_holds", "inuse_space", 8_000 * 3_000);
    // The newest are those of the threads.
    lines.tell("release 8000");
    assert_eq!(below(&m, "thread_holds", "inuse_space"), (0, 0));
    must_be(&m, "thread_holds", "alloc_space", 8_000 * 3_000);
    lines.tell("release 10000");
    must_be(&m, "hold", "inuse_space", 10_000 * 500);
    assert_eq!(m.lost(), [""; 0]);
    // The sampler's own functions are in no stack of a sample.
    let table = m.get("/v2/functions?kind=alloc_space&limit=10000").json();
    let rows = table["rows"].as_array().unwrap().iter();
    let modules: Vec<_> = rows
        .map(|row| row["module"].as_str().unwrap_or(""))
        .collect();
    assert!(!modules.contains(&"libmemprof_heap.so"), "{modules:?}");
}

#[test]
fn large_allocations_are_exact() {
    let (m, mut lines) = start(&["--heap-interval", "4KiB"]);
    lines.tell("hold 10 1000000");
    assert_eq!(below(&m, "hold", "inuse_space"), (10_000_000, 0));
    assert_eq!(below(&m, "hold", "inuse_objects"), (10, 0));
}

#[test]
fn children_are_sampled_if_they_are_followed() {
    let (m, mut lines) = start(&["--heap-interval", "4KiB", "--follow-forks"]);
    lines.tell("hold 10000 100");
    let before = total(&m, "inuse_space");
    lines.tell("child 20000 100");
    must_be(&m, "child_holds", "inuse_space", 2_000_000);
    // The child's copy of what its parent had.
    assert!(total(&m, "inuse_space") > 2 * before);
}

#[test]
fn what_the_command_executes_is_sampled_and_nothing_stays() {
    let program = program("allocations");
    let script = format!("exec {}", program.display());
    let shell = ["/bin/sh", "-c", &script];
    let (mut m, mut lines) = Memprof::start_command(&["--heap"], &shell);
    lines.tell("hold 100 1000000");
    must_be(&m, "hold", "inuse_space", 100_000_000);
    let library = library_of(&m);
    assert!(library.exists());
    drop(lines);
    let status = m.wait();
    assert!(status.success(), "{status}");
    assert!(!library.exists() && !library.parent().unwrap().exists());
}

/// The sampler that memprof's command has mapped.
fn library_of(m: &Memprof) -> PathBuf {
    let pid = m.get("/v2/summary").json()["target"]["pid"]
        .as_u64()
        .unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let path = paths.find(|path| path.ends_with("/libmemprof_heap.so"));
    path.expect("the sampler is mapped").into()
}

#[test]
fn without_heap_there_is_nothing_of_it() {
    let (m, mut lines) = {
        let program = program("allocations");
        Memprof::start_command(&[], &[program.to_str().unwrap()])
    };
    lines.tell("hold 100 100000");
    let reply = m.get("/v2/functions?kind=inuse_space");
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("--heap"), "{}", reply.text());
    let summary = m.get("/v2/summary").json();
    assert_eq!(summary["report"]["heap_counted"], false);
    assert!(summary["total"].get("inuse_space").is_none(), "{summary}");
}

#[test]
fn a_static_program_without_symbols_runs_and_memprof_says_that_it_is_not_sampled() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, binary) = (dir.path().join("a.c"), dir.path().join("static"));
    fs::write(&source, "int main(void) { return 7; }").unwrap();
    let cc = std::process::Command::new("cc")
        .args(["-static", "-s", "-o"])
        .args([&binary, &source])
        .status();
    assert!(cc.unwrap().success());
    let out = memprof::run(&["--heap", "--no-server", "--", binary.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(said.contains("no allocation is sampled"), "{said}");
    assert!(said.contains("linked statically"), "{said}");
}
