//! Programs as they are packaged, compared with the counters of a preloaded allocator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::memprof::BINARY;
use crate::common::skip::skip;

/// The library of `count_calls.c`.
fn counter(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/count_calls.c");
    let library = dir.join("count_calls.so");
    let flags = ["-O2", "-shared", "-fPIC", "-fno-builtin", "-o"];
    let cc = Command::new("cc")
        .args(flags)
        .args([&library, &source])
        .status();
    assert!(cc.unwrap().success());
    library
}

/// Allocations, bytes and live blocks of a command, as memprof counts them and as its allocator does.
fn count(command: &[&str]) -> Option<([u64; 3], [u64; 3])> {
    let name = command[0];
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .output()
        .unwrap();
    if !found.status.success() {
        skip(format!("{name} is not installed"));
        return None;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (result, output) = (
        dir.path().join("counts"),
        dir.path().join("out.memprof.json"),
    );
    let args = [
        "--heap=exact",
        "--duration",
        "600",
        "--no-server",
        "--output",
        output.to_str().unwrap(),
    ];
    // memprof itself preloads the library, too, which does not count there.
    let out = Command::new(BINARY)
        .args(args)
        .arg("--")
        .args(command)
        .env("LD_PRELOAD", counter(dir.path()))
        .env("COUNT_CALLS", &result)
        .env("PYTHONMALLOC", "malloc")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let profile: Value = serde_json::from_slice(&fs::read(output).unwrap()).unwrap();
    eprintln!("{said}");
    let total = &profile["total"];
    let seen =
        ["alloc_objects", "alloc_space", "inuse_objects"].map(|kind| total[kind].as_u64().unwrap());
    let truth = fs::read_to_string(result).unwrap();
    let truth: Vec<u64> = truth
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    Some((seen, [truth[0], truth[1], truth[2]]))
}

/// What programs allocate after the counter has written its result.
const AFTER: u64 = 2;

#[track_caller]
fn check(command: &[&str]) {
    let Some((seen, truth)) = count(command) else {
        return;
    };
    let name = command[0];
    eprintln!("{name}: {seen:?}, truth {truth:?}");
    assert!(truth[0] > 5_000, "{name} allocates little: {truth:?}");
    assert!(
        seen[0].abs_diff(truth[0]) <= AFTER && seen[1].abs_diff(truth[1]) <= AFTER * 8192,
        "{name}: {seen:?}, not {truth:?}"
    );
}

#[test]
fn sqlite_is_counted_as_by_its_allocator() {
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000) \
               SELECT count(*), group_concat(hex(randomblob(20))) FROM n;";
    check(&["sqlite3", ":memory:", sql]);
}

#[test]
fn python_is_counted_as_by_its_allocator() {
    let code = "x = [str(i) * 3 for i in range(20000)]; del x[::2]";
    check(&["/usr/bin/python3", "-S", "-c", code]);
}
