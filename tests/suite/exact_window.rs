//! Every allocation in a bounded time (`--heap=exact`), compared with programs that know their own calls, and with a
//! counting allocator.
//!
//! Needs root and `cc`.

mod allocators;
mod bounds;
mod calls;
mod linked;
mod programs;
mod table;
mod words;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::memprof::Memprof;

/// The figures of a kind below each function that has any, and that none has an error.
#[track_caller]
fn totals(m: &Memprof, kind: &str) -> BTreeMap<String, u64> {
    let reply = m.get(&format!("/v2/functions?kind={kind}&limit=10000"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let table = reply.json();
    let rows = table["rows"].as_array().unwrap().iter();
    let of = |row: &Value| {
        let function = row["function"].as_str()?.to_owned();
        assert_eq!(row["total_error"].as_u64().unwrap_or(0), 0, "{function}");
        Some((function, row["total"].as_u64()?))
    };
    rows.filter_map(of).collect()
}

/// The figures of a kind below each of these functions.
#[track_caller]
fn below<const N: usize>(m: &Memprof, kind: &str, functions: [&str; N]) -> [u64; N] {
    let all = totals(m, kind);
    functions.map(|function| all.get(function).copied().unwrap_or(0))
}
