//! Threads with more than one list of frames: coroutines, greenlets, subinterpreters.

use std::collections::BTreeSet;

use crate::common::interpreted::Mark;
use crate::common::memprof::Memprof;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::python::{OPTIONS, compare};

const WORKLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/switching.py");
/// The kinds of programs, and the minor version since which their frames are read. (Before 3.10 nothing says which evaluators
/// are a subinterpreter's; before 3.13 its state names the thread that created it.)
const KINDS: [(&str, u32); 6] = [
    ("asyncio", 8),
    ("uvloop", 8),
    ("subinterpreter", 10),
    ("subinterpreter in a thread", 13),
    ("greenlet", 8),
    ("gevent", 8),
];

/// (While a greenlet is replaced by another one, both lists may differ. That is counted as "not merged".)
#[test]
fn frames_of_switched_stacks_are_the_interpreters_own() {
    let mut missing: BTreeSet<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    for (version, path) in pythons() {
        let minor: u32 = version.split('.').nth(1).unwrap().parse().unwrap();
        let kinds = KINDS.iter().filter(|(_, since)| minor >= *since);
        let mut kinds: Vec<&str> = kinds.map(|(kind, _)| *kind).collect();
        let command = [&[path.to_str().unwrap(), WORKLOAD], &kinds[..]].concat();
        let (m, mut lines) = Memprof::start_command(OPTIONS, &command);
        let mut marks: Vec<Mark> = Vec::new();
        loop {
            let line = lines.line();
            if line == "ready" {
                break;
            } else if let Some(without) = line.strip_prefix("without ") {
                kinds.retain(|kind| !without.starts_with(&format!("{kind}: ")));
            } else {
                marks.push(serde_json::from_str(&line).unwrap());
            }
        }
        assert!(marks.len() >= 4 * kinds.len(), "{version}: {}", marks.len());
        compare(&format!("{version}, {kinds:?}"), &m, &marks);
        missing.retain(|kind| !kinds.contains(kind));
    }
    for kind in missing {
        skip(format_args!(
            "no CPython has {kind}; MEMPROF_TEST_PYTHONS can name others"
        ));
    }
}
