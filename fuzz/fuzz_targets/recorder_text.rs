//! Reads log lines and configurations of the network recorder from arbitrary bytes.

#![no_main]

#[path = "../check_recorder_text.rs"]
mod check_recorder_text;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check_recorder_text::text_readers(bytes);
});
