//! The C libraries of other releases: before 2.34, `dlopen` and threads are in libraries of their own.
//!
//! `MEMPROF_TEST_ROOTS` names directories with such systems, with `:` between them; `tests/suite/heap/chroots.sh` makes them, with the
//! workloads, and runs this. In other runs this is skipped.

use std::path::Path;
use std::process::Command;

use crate::attach::listened::have_what_they_allocate;
use crate::attach::rounds::{keep_their_blocks, notices_nothing};
use crate::common::process::{LIMIT, comm, eventually};
use crate::common::skip::skip;
use crate::common::workload::Workload;

#[test]
fn other_releases() {
    let Some(roots) = std::env::var_os("MEMPROF_TEST_ROOTS") else {
        return skip(
            "other releases: MEMPROF_TEST_ROOTS names none; tests/suite/heap/chroots.sh does",
        );
    };
    for root in std::env::split_paths(&roots) {
        println!("{}", root.display());
        for _ in 0..crate::attach::rounds() {
            notices_nothing(start(&root, &["/sentinel", "2"]));
            keep_their_blocks(start(&root, &["/allocating_threads", "4"]));
        }
        have_what_they_allocate(start(&root, &["/allocations"]));
    }
}

/// The loader needs `/proc` there.
fn start(root: &Path, args: &[&str]) -> Workload {
    const SCRIPT: &str = r#"mount -t proc proc "$0/proc" && exec chroot "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT]);
    let workload = Workload::start_as(command.arg(root).args(args));
    eventually(LIMIT, "the program runs", || {
        args[0][1..].starts_with(&comm(workload.pid()))
    });
    workload
}
