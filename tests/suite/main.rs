//! All tests that need no machine of their own: memprof on processes that they start, and its libraries on what they are given.
//!
//! One program, which links once: a module for each subject. `cargo test --test suite -- heap::` runs those of one.
//! Most need root; each module's first lines say what else it needs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../benches/support/counters.rs"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod counters;

mod advise;
mod answers;
mod api;
#[cfg(target_arch = "x86_64")]
mod attach;
mod bad_input;
mod debuginfod;
mod exact;
mod exact_window;
mod exports;
mod faults;
mod freeze;
mod heap;
mod http_contract;
mod http_v2;
mod jit;
mod ledger;
mod life;
mod old_clients;
mod page_cache;
mod peak;
mod privileges;
mod prometheus;
mod push;
mod python;
mod recording;
mod ruby;
mod rust_names;
mod sampler;
mod samples;
mod saved;
mod smoke;
mod source;
mod symbols;
mod top;
mod unix_socket;
mod unwind;
