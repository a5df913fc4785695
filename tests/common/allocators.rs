//! Allocators that are installed as libraries.

use std::path::{Path, PathBuf};

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
