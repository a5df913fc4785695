//! Reads arbitrary bytes as a perf map and as a jitdump file.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::names(bytes);
});
