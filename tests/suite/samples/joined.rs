//! Samples joined with heap snapshots: who holds what, on a workload whose functions hold known bytes.

use std::path::Path;

use serde_json::Value;

use crate::common::allocators::{JEMALLOC, LINK_JEMALLOC, allocator};
use crate::common::document::check;
use crate::common::memprof::Memprof;
use crate::common::workload::{Lines, program, program_with};

/// A right estimate is further away than so many standard errors in one of two million cases.
const ERRORS: f64 = 5.1;

fn start(program: &Path) -> (Memprof, Lines) {
    let args = ["--heap", "--heap-interval", "16KiB"];
    Memprof::start_command(&args, &[program.to_str().unwrap()])
}

/// Takes a snapshot; checks that its rows by stack are all of the process's anonymous memory, as the kernel counts it.
#[track_caller]
fn take(m: &Memprof) -> Value {
    let reply = m.send("POST", "/v2/heap", r#"{"max_stop": 10000, "top": 1000}"#);
    assert_eq!(reply.status, 201, "{}", reply.text());
    let id = reply.json()["id"].as_str().unwrap().to_owned();
    let whole = m.get(&format!("/v2/heap/{id}")).json();
    let document = m.get("/openapi/memprof-v2.json").json();
    check(&document, "/v2/heap/{id}", "get", 200, &whole);
    let by_stack = &whole["by_stack"];
    let sum: u64 = rows(by_stack, "rows")
        .iter()
        .map(|row| bytes(row, "resident") + bytes(row, "pinned") + bytes(row, "unreachable"))
        .chain(
            rows(by_stack, "free_pages")
                .iter()
                .map(|row| number(row, "resident")),
        )
        .chain(
            rows(by_stack, "rest")
                .iter()
                .map(|row| bytes(row, "resident") + number(row, "pinned")),
        )
        .sum();
    let kernel = &whole["heap"]["kernel"];
    assert_eq!(by_stack["left_out"], 0);
    assert_eq!(
        (sum, number(by_stack, "total"), &kernel[1]),
        (kernel[0].as_u64().unwrap(), sum, &kernel[0]),
        "{by_stack:#}"
    );
    whole
}

fn rows<'a>(of: &'a Value, list: &str) -> &'a [Value] {
    of[list].as_array().unwrap()
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap()
}

fn bytes(row: &Value, key: &str) -> u64 {
    number(&row[key], "bytes")
}

/// The estimate of all stacks with this function, and its error.
fn estimate_and_error(whole: &Value, function: &str, key: &str) -> (u64, f64) {
    let rows = rows(&whole["by_stack"], "rows").iter();
    let has = |stack: &Value| {
        stack
            .as_str()
            .unwrap()
            .split(';')
            .any(|frame| frame == function)
    };
    let rows = rows.filter(|row| has(&row["stack"]));
    let rows = rows.map(|row| &row[key]);
    let (bytes, variance) = rows.fold((0, 0.0), |(bytes, variance), row| {
        (
            bytes + number(row, "bytes"),
            variance + (number(row, "error") as f64).powi(2),
        )
    });
    (bytes, variance.sqrt())
}

#[track_caller]
fn must_be(whole: &Value, function: &str, key: &str, truth: u64) {
    let (found, error) = estimate_and_error(whole, function, key);
    eprintln!("{key} of {function}: {found} ± {error:.0}, truth {truth}");
    let off = found.abs_diff(truth) as f64;
    // (Some rows are exact, and a byte may be rounded.)
    assert!(
        off <= ERRORS * error + 2.0,
        "{key} of {function}: {found} ± {error}, not {truth}"
    );
    assert!(
        error < truth as f64 / 4.0 + 1.0,
        "{key} of {function}: {found} ± {error}"
    );
}

#[test]
fn who_holds_what_pins_what_and_leaks_what() {
    let (m, mut lines) = start(&program("owners"));
    lines.tell("fill");
    lines.tell("leak");
    lines.tell("thin");
    lines.tell("empty");
    let whole = take(&m);
    let by_stack = &whole["by_stack"];
    assert_eq!(by_stack["from_start"], true);
    let counts = &by_stack["samples"];
    assert_eq!(
        (number(counts, "gone"), number(counts, "lost")),
        (0, 0),
        "{counts}"
    );
    must_be(&whole, "holds_small", "live", 100_000 * 48);
    must_be(&whole, "holds_middle", "live", 10_000 * (600 + 850));
    must_be(&whole, "holds_large", "live", 200 * 40_000);
    must_be(&whole, "holds_huge", "live", 3 * (20 << 20));
    must_be(&whole, "thins", "live", 10_000 * 500);
    must_be(&whole, "leaks", "live", 40_000 * 300);
    // All of them were written to, and are resident with their headers and what rounding adds.
    must_be(&whole, "holds_small", "resident", 100_000 * 64);
    must_be(&whole, "thins", "resident", 10_000 * 512);
    must_be(&whole, "leaks", "unreachable", 40_000 * 320);
    let (pinned, _) = estimate_and_error(&whole, "thins", "pinned");
    // Seven of eight chunks are one free chunk beside each that is kept: nearly all of it, as a few are in a thread's cache
    // or on the page of another function's chunk.
    let truth = 10_000.0 * (7.0 * 512.0 - 8.0);
    let off = pinned as f64 / truth - 1.0;
    assert!(off.abs() < 0.01, "{pinned}, not {truth}: {by_stack:#}");
    assert!(
        pinned > 50 * estimate_and_error(&whole, "holds_small", "pinned").0,
        "{by_stack:#}"
    );
    let leaks = rows(by_stack, "leaks").iter();
    let kinds: Vec<_> = leaks
        .map(|row| row["head"]["kind"].as_str().unwrap())
        .collect();
    assert!(
        kinds.contains(&"itself") && kinds.contains(&"stack") | kinds.contains(&"not_sampled"),
        "{kinds:?}"
    );
    let free = rows(by_stack, "free_pages").iter();
    let free = free.filter(|row| {
        row["grown_by"]
            .as_str()
            .is_some_and(|s| s.contains(";empties"))
    });
    let free: u64 = free.map(|row| number(row, "resident")).sum();
    assert!(
        (15_000_000..16_100_000).contains(&free),
        "{free} {by_stack:#}"
    );
    // Nothing that was allocated is from before.
    let rest = rows(by_stack, "rest").iter();
    let old = rest.filter(|row| row["kind"] == "before_sampling" || row["kind"] == "not_sampled");
    assert_eq!(
        old.map(|row| bytes(row, "resident")).sum::<u64>(),
        0,
        "{by_stack:#}"
    );
    lines.tell("release");
    let whole = take(&m);
    assert_eq!(estimate_and_error(&whole, "holds_small", "live").0, 0);
    must_be(&whole, "holds_middle", "live", 10_000 * (600 + 850));
    assert_eq!(number(&whole["by_stack"]["samples"], "gone"), 0);
}

/// The same program on jemalloc: each region has the size of its class, and no header.
#[test]
fn who_holds_what_of_jemallocs_heap() {
    if allocator(JEMALLOC).is_none() {
        return;
    }
    let (m, mut lines) = start(&program_with("owners", &[LINK_JEMALLOC]));
    for line in ["fill", "leak", "thin", "empty"] {
        lines.tell(line);
    }
    let whole = take(&m);
    let by_stack = &whole["by_stack"];
    assert_eq!(by_stack["from_start"], true);
    assert_eq!(number(&by_stack["samples"], "lost"), 0, "{by_stack:#}");
    must_be(&whole, "holds_small", "live", 100_000 * 48);
    must_be(&whole, "holds_middle", "live", 10_000 * (600 + 850));
    must_be(&whole, "holds_large", "live", 200 * 40_000);
    must_be(&whole, "holds_huge", "live", 3 * (20 << 20));
    must_be(&whole, "thins", "live", 10_000 * 500);
    must_be(&whole, "leaks", "live", 40_000 * 300);
    must_be(&whole, "holds_small", "resident", 100_000 * 48);
    must_be(&whole, "thins", "resident", 10_000 * 512);
    must_be(&whole, "leaks", "unreachable", 40_000 * 320);
    lines.tell("release");
    let whole = take(&m);
    assert_eq!(estimate_and_error(&whole, "holds_small", "live").0, 0);
    must_be(&whole, "holds_middle", "live", 10_000 * (600 + 850));
}

#[test]
fn without_samples_there_are_no_rows_by_stack() {
    let program = program("owners");
    let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    lines.tell("fill");
    let reply = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#).json();
    let whole = m
        .get(&format!("/v2/heap/{}", reply["id"].as_str().unwrap()))
        .json();
    assert_eq!(whole["by_stack"], Value::Null);
}
