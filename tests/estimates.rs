//! Where not every stack is walked, the sums stay the same and bytes by function are within their stated errors: one and
//! the same run of CPython, with all stacks and with a share of them.
//!
//! Needs root and /usr/bin/python3. `MEMPROF_ESTIMATES_RUNS=100` compares so many runs instead of 6.

mod common;

use std::collections::HashMap;
use std::process::Command;

use common::memprof::Memprof;
use common::skip;

/// Parses some of Python's library and keeps it: several hundred functions hold some 150 MiB, the same in each run
/// (without address randomization and with a fixed seed of its hashes).
const PROGRAM: &str = "
import sys, ast, glob, json
kept = []
for f in sorted(glob.glob('/usr/lib/python3.*/*.py'))[:100]:
    s = open(f, encoding='utf8').read()
    kept.append((ast.parse(s), s.split(), json.dumps(s), {i: w for i, w in enumerate(s.split())}))
print('ready', flush=True)
sys.stdin.read()
";

/// Bytes in all, and those of each function with their standard error.
struct Report {
    all: u64,
    functions: HashMap<(String, String), (u64, u64)>,
    unwalked: u64,
}

fn report(stacks: &str) -> Report {
    let command = [
        "setarch",
        "-R",
        "/usr/bin/env",
        "PYTHONHASHSEED=0",
        "/usr/bin/python3",
        "-c",
        PROGRAM,
    ];
    let (m, mut lines) = Memprof::start_command(&["--stacks", stacks], &command);
    assert_eq!(lines.line(), "ready");
    let table = m.get("/v2/functions?kind=anon&limit=10000").json();
    let rows = table["rows"].as_array().unwrap().iter();
    let functions = rows.map(|row| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let bytes = |key: &str| row[key].as_u64().unwrap();
        (
            (text("function"), text("path")),
            (bytes("total"), bytes("total_error")),
        )
    });
    Report {
        all: table["total"].as_u64().unwrap(),
        functions: functions.collect(),
        unwalked: table["report"]["faults"]["unwalked"].as_u64().unwrap(),
    }
}

#[test]
fn functions_are_within_their_errors() {
    let there = Command::new("/usr/bin/python3").arg("-V").output();
    if there.is_err() {
        return skip::skip("/usr/bin/python3 is not installed");
    }
    let runs = std::env::var("MEMPROF_ESTIMATES_RUNS");
    let runs: u32 = runs.map_or(6, |n| n.parse().expect("a number of runs"));
    let truth = report("all");
    assert_eq!(truth.unwalked, 0);
    assert!(truth.functions.values().all(|(_, error)| *error == 0));
    let (mut within, mut near, mut compared) = (0, 0, 0);
    for _ in 0..runs {
        let estimate = report("1/8");
        assert!(estimate.unwalked > 10_000, "{}", estimate.unwalked);
        assert_eq!(estimate.all, truth.all);
        for (function, (bytes, _)) in &truth.functions {
            let Some((found, error)) = estimate.functions.get(function) else {
                // Too small for a sample.
                assert!(*bytes < truth.all / 100, "{function:?}");
                continue;
            };
            // A page more or less: what has no event has no error either.
            if *bytes < truth.all / 100 || (*error == 0 && found.abs_diff(*bytes) <= 4096) {
                continue;
            }
            let off = found.abs_diff(*bytes) as f64 / (*error).max(1) as f64;
            within += u32::from(off <= 1.96);
            near += u32::from(off <= 0.5);
            compared += 1;
        }
    }
    let share = |of: u32| f64::from(of) / f64::from(compared);
    let (within, near) = (share(within), share(near));
    println!(
        "{runs} runs, {compared} functions with 1 % of the bytes: {within:.3} are within their 95 % interval,"
    );
    println!("{near:.3} within half a standard error (0.38 of a normal distribution)");
    // The errors of one run's functions depend on each other.
    assert!(within > 0.85, "{within}");
    assert!(near < 0.75, "{near}: the errors are too large");
}
