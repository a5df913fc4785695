//! Heap memory by stack, estimated from sampled allocations (`--heap`).
//!
//! Needs root and `cc`.

mod coverage;
pub mod inside;
mod joined;
mod marks;
mod own_probes;
pub mod preloaded;
mod python;
pub mod static_programs;
mod two_samplers;

use crate::common::memprof::Memprof;

/// The figure of a kind below a function, and its standard error.
#[track_caller]
pub fn below(m: &Memprof, function: &str, kind: &str) -> (u64, u64) {
    let reply = m.get(&format!("/v2/functions?kind={kind}&limit=10000"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let table = reply.json();
    let mut rows = table["rows"].as_array().unwrap().iter();
    match rows.find(|row| row["function"] == function) {
        Some(row) => (
            row["total"].as_u64().unwrap(),
            row["total_error"].as_u64().unwrap_or(0),
        ),
        None => (0, 0),
    }
}

/// The figure of a kind in all.
#[track_caller]
fn total(m: &Memprof, kind: &str) -> u64 {
    let reply = m.get("/v2/summary");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["total"][kind].as_u64().unwrap_or(0)
}
