//! Tests that cannot run on this machine: reported as skipped, never as passed.
//!
//! `./run-tests` passes a file name in `MEMPROF_TEST_SKIPPED` and prints the file at its end. With
//! `MEMPROF_TEST_NO_SKIP=1` a skipped test fails. Benchmarks also use this file, so it does not depend
//! on its sibling modules.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::env;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// Reports that the running test, or a part of it, is skipped. The caller must return then.
#[track_caller]
pub fn skip(why: impl Display) {
    // libtest names a test's thread after the test, unless it runs all tests on its main thread.
    match std::thread::current().name() {
        Some(name) if name != "main" => skip_named(name, why),
        _ => skip_named(&Location::caller().to_string(), why),
    }
}

/// Like [`skip`], for threads that are not named after a test.
#[track_caller]
pub fn skip_named(name: &str, why: impl Display) {
    let line = format!("{name}: {why}");
    let no_skip = env::var_os("MEMPROF_TEST_NO_SKIP").is_some_and(|v| v == "1");
    assert!(!no_skip, "MEMPROF_TEST_NO_SKIP=1 forbids skipping {line}");
    // Bypasses the test harness, which shows only the output of failed tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED {line}");
    if let Some(path) = env::var_os("MEMPROF_TEST_SKIPPED") {
        // The file is not created here: root may not open another user's file with O_CREAT in a directory like /tmp.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
