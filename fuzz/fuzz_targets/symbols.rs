//! Feeds arbitrary bytes to the symbolizer, and to the reader of types.

#![no_main]

#[path = "../check.rs"]
#[allow(dead_code)]
mod check;

use std::sync::LazyLock;

use memprof_code::symbolize::Symbolizer;

static SYMBOLIZER: LazyLock<Symbolizer> = LazyLock::new(check::symbolizer);

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check::symbols(&SYMBOLIZER, bytes, 97);
    check::types(bytes);
});
