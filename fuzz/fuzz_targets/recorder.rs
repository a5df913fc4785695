//! Decodes messages and plays connections, both from arbitrary bytes.

#![no_main]

#[path = "../check_recorder.rs"]
#[allow(dead_code)]
mod check_recorder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check_recorder::recorder(bytes);
});
