//! Builds unwind tables from arbitrary bytes.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::table(bytes);
});
