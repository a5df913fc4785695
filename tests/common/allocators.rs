//! Allocators that are installed as libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::skip::skip;

pub const JEMALLOC: &str = "libjemalloc.so.2";
/// What a program is linked with to use it.
pub const LINK_JEMALLOC: &str = "-l:libjemalloc.so.2";

/// The path of an allocator; skips the test's part if it is not installed.
pub fn allocator(name: &str) -> Option<PathBuf> {
    let dirs = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    let path = dirs
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists());
    if path.is_none() {
        skip(format!("{name} is not installed"));
    }
    path
}

/// Directories with the sources of mimalloc, and their releases: 2 and 3 of the crate that `rust_allocators` uses, and those
/// in `MEMPROF_TEST_MIMALLOC` (paths, with `:` between them). Skips the test's part without the crate.
pub fn mimalloc_sources() -> Vec<(PathBuf, u32)> {
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/rust_allocators/Cargo.toml");
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--locked", "--format-version", "1"]);
    let output = metadata.arg("--manifest-path").arg(manifest).output();
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.unwrap().stdout).unwrap_or_default();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut crates = packages.filter(|package| package["name"] == "libmimalloc-sys");
    let directory = crates
        .next()
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent());
    if directory.is_none() {
        skip("there are no sources of mimalloc: cargo cannot load tests/workloads/rust_allocators");
    }
    let of_crate = directory.into_iter().flat_map(|directory| {
        ["v3", "v2"].map(|release| directory.join("c_src/mimalloc").join(release))
    });
    let others = std::env::var_os("MEMPROF_TEST_MIMALLOC").unwrap_or_default();
    let others: Vec<PathBuf> = std::env::split_paths(&others).collect();
    let all = of_crate.chain(others.into_iter().filter(|path| path.exists()));
    all.map(|path| (path.clone(), mimalloc_release(&path)))
        .collect()
}

/// The release of sources: 302 for 3.2.
fn mimalloc_release(sources: &Path) -> u32 {
    let header = std::fs::read_to_string(sources.join("include/mimalloc.h")).unwrap();
    let version = header.split("MI_MALLOC_VERSION").nth(1);
    let digits = version.and_then(|text| text.split_whitespace().next());
    let digits = digits.unwrap_or_default();
    // 3.2.8 is 328 or 30208, and some releases in between are 3208.
    let minor = match digits.len() {
        5 => &digits[1..3],
        _ => &digits[1..2],
    };
    100 * digits[..1].parse::<u32>().unwrap() + minor.parse::<u32>().unwrap()
}
