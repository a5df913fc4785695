//! Reads arbitrary bytes as a saved profile.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::saved(bytes);
});
