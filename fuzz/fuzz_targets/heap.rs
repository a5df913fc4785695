//! Reads heaps that are made and changed as arbitrary bytes say.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::heap(bytes);
});
