//! Every allocation in a bounded time (`--heap=exact`), compared with programs that know their own calls, and with a
//! counting allocator.
//!
//! Needs root and `cc`.

#[path = "../common/mod.rs"]
mod common;

mod allocators;
mod bounds;
mod calls;
mod programs;

use common::memprof::Memprof;

/// The figures of a kind below each of these functions, and that none has an error.
#[track_caller]
fn below<const N: usize>(m: &Memprof, kind: &str, functions: [&str; N]) -> [u64; N] {
    let reply = m.get(&format!("/v2/functions?kind={kind}&limit=10000"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let table = reply.json();
    let rows = table["rows"].as_array().unwrap();
    functions.map(|function| {
        let row = rows.iter().find(|row| row["function"] == function);
        let error = row.and_then(|row| row["total_error"].as_u64());
        assert_eq!(error.unwrap_or(0), 0, "{function}");
        row.map_or(0, |row| row["total"].as_u64().unwrap())
    })
}
