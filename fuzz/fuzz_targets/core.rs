//! Reads the bytes as a core, and the cores of synthetic heaps that are damaged as the bytes say.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::core(bytes);
});
