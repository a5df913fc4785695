//! Instances of one Rust function have one name and one row, and `/v1` still has their hashes.
//!
//! Needs root and `rustc`.

use std::process::Command;

use crate::common::memprof::Memprof;

const MIB: u64 = 1 << 20;

/// Two instances of one function write 1 and 3 MiB.
const PROGRAM: &str = r#"
use std::hint::black_box;
#[inline(never)]
fn fill<T: Copy>(n: usize, value: T) -> Vec<T> {
    let mut all = Vec::with_capacity(n);
    for _ in 0..n { all.push(black_box(value)); }
    black_box(all)
}
fn main() {
    let kept = (fill(1 << 20, 7u8), fill(3 << 18, 7u32));
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    black_box(kept);
}
"#;

fn rows(m: &Memprof) -> Vec<(String, u64)> {
    let table = m.get("/v2/functions?kind=anon&limit=10000").json();
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.map(|row| {
        let name = row["function"].as_str().unwrap_or_default();
        (name.to_owned(), row["total"].as_u64().unwrap())
    });
    rows.filter(|(name, _)| name.starts_with("prog::fill"))
        .collect()
}

fn is_hashed(name: &str) -> bool {
    let hash = name.strip_prefix("prog::fill::h");
    hash.is_some_and(|h| h.len() == 16 && h.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[test]
fn instances_are_one_row_unless_their_hashes_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("prog.rs"), dir.path().join("prog"));
    std::fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("rustc")
        .args(["--edition=2021", "-Copt-level=1", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("rustc is needed for this test").success());
    let command = [program.to_str().unwrap()];
    let (m, mut lines) = Memprof::start_command(&[], &command);
    assert_eq!(lines.line(), "ready");
    let merged = rows(&m);
    let (hashed, mut hashed_lines) = Memprof::start_command(&["--rust-hashes"], &command);
    assert_eq!(hashed_lines.line(), "ready");
    let apart = rows(&hashed);
    let [(name, bytes)] = merged.as_slice() else {
        panic!("{merged:?}");
    };
    assert_eq!(name, "prog::fill");
    assert!((4 * MIB..5 * MIB).contains(bytes), "{bytes}");
    assert_eq!(apart.len(), 2, "{apart:?}");
    assert!(apart.iter().all(|(name, _)| is_hashed(name)), "{apart:?}");
    assert!(apart.iter().any(|(_, n)| (MIB..2 * MIB).contains(n)));
    // Two runs: a few pages of the allocator may differ.
    let sum: u64 = apart.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum.abs_diff(*bytes) <= 16 << 10, "{apart:?} {merged:?}");
    // The contract.
    for m in [&m, &hashed] {
        let tree = m.tree().text();
        let mut names = tree
            .split_whitespace()
            .filter(|word| word.starts_with("prog::fill"));
        assert!(names.clone().count() >= 2 && names.all(is_hashed), "{tree}");
    }
}
