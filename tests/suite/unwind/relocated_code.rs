//! Code that a program has moved from its file's mapping to other memory, at the same addresses.
//!
//! Needs root and `cc`.

use std::path::PathBuf;

use super::chains::{compile, source};
use super::results::{Found, attached};
use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::workload::Workload;

/// Bytes that a line of input makes the program touch.
const BYTES: u64 = 256 << 10;
const CHAIN: &str = "_start * main grow fill_by fill";

#[track_caller]
fn program(name: &str) -> Option<PathBuf> {
    compile("gcc", name, &source("moved.c"), &["-O1"])
}

/// What is found of a process that memprof attaches to after the move.
#[track_caller]
fn late(name: &str, how: &str) -> Option<Found> {
    let mut moved = Workload::start_with(&program(name)?, &[how]);
    assert_eq!(moved.lines.line(), "ready");
    let found = attached(moved.pid(), || moved.lines.tell("grow"));
    moved.end();
    Some(found)
}

#[test]
fn code_that_was_moved_before_is_that_of_its_file() {
    for how in ["mremap", "shared", "whole"] {
        let Some(found) = late("moved-late", how) else {
            return;
        };
        found.chain(CHAIN, "fill", BYTES);
        assert!(!found.names("[JIT]"), "{how}: {}", found.text());
    }
}

#[test]
fn code_that_is_moved_meanwhile_is_that_of_its_file() {
    let Some(path) = program("moved-command") else {
        return;
    };
    let (m, mut moved) = Memprof::start_command(&[], &[path.to_str().unwrap(), "mmap"]);
    assert_eq!(moved.line(), "ready");
    // The bytes are compared once the program has taken away the right to write. First stacks may come before that.
    wait_until(|| {
        moved.tell("grow");
        let chain = ["fill", "fill_by", "grow", "main"];
        m.tree().at(&chain).value << 10 >= BYTES
    });
    moved.close();
}

#[test]
fn other_code_in_its_place_is_not() {
    let Some(found) = late("moved-other", "other") else {
        return;
    };
    let jit: u64 = found
        .stacks
        .iter()
        .filter(|(frames, _)| frames.last().is_some_and(|f| f == "[JIT]"))
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(jit >= BYTES, "{}", found.text());
    assert!(
        !found.names("part_begins") && !found.names("fill"),
        "{}",
        found.text()
    );
}
