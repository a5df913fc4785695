//! Tests that cannot run on this machine: reported as skipped, never as passed.
//!
//! `./run-tests` names a file in `MEMPROF_TESTS_SKIPPED` and prints at its end what is in it. With
//! `MEMPROF_TESTS_NO_SKIP=1` a skipped test fails. Benchmarks use this too, so it needs nothing of its
//! neighbours.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// Reports that the running test, or a part of it, is skipped. The caller returns then.
#[track_caller]
pub fn skip(why: impl Display) {
    // libtest names a test's thread after the test, unless it runs all of them on its own thread.
    match std::thread::current().name() {
        Some(name) if name != "main" => skip_named(name, why),
        _ => skip_named(&Location::caller().to_string(), why),
    }
}

/// As [`skip`], where a thread's name does not tell which test it is.
#[track_caller]
pub fn skip_named(name: &str, why: impl Display) {
    let line = format!("{name}: {why}");
    let no_skip = env::var_os("MEMPROF_TESTS_NO_SKIP").is_some_and(|v| v == "1");
    assert!(!no_skip, "MEMPROF_TESTS_NO_SKIP=1 forbids skipping {line}");
    // Past the test harness, which shows only what failed tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED {line}");
    if let Some(path) = env::var_os("MEMPROF_TESTS_SKIPPED") {
        // Not created: root may not do that in another user's stead in a directory like /tmp.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
