//! Another speaker of the contract: the published crates, in a program of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::file::probes;
use crate::common::skip::skip;
use crate::common::workload::Workload;

/// The compiled program; `None` where its crates are not to be had. The first build takes a minute or two.
pub fn built() -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/ddheap/Cargo.toml");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ddheap");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()
        .unwrap();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        skip(format!("ddheap cannot be built: {stderr}"));
        return None;
    }
    Some(target.join("debug/ddheap"))
}

/// Unlike memprof's library, it has one semaphore for both probes, and no section that says where its notes belong.
#[test]
fn its_probes_have_the_same_arguments() {
    let Some(program) = built() else {
        return;
    };
    let mut found = probes(&program);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let [alloc, free] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((&*alloc.provider, &*alloc.name), ("ddheap", "alloc"));
    assert_eq!((&*free.provider, &*free.name), ("ddheap", "free"));
    assert_eq!(alloc.arguments.split(' ').count(), 3);
    assert_eq!(free.arguments.split(' ').count(), 1);
    assert_eq!(alloc.semaphore, free.semaphore);

    let mut workload = Workload::start(&program);
    workload.lines.tell("1000 4096");
    workload.lines.tell("0 0");
    workload.end();
}
