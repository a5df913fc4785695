//! The C libraries and jemalloc of other releases: each figure of `mallinfo2` and of `stats.*`, and the blocks that a program
//! forgot.
//!
//! `MEMPROF_TEST_ROOTS` names directories with such systems, with `:` between them, in which `/heap`, `/heap-jemalloc` and
//! `/leaks` are the workloads; `tests/suite/heap/chroots.sh` makes them. In other runs this is skipped.

use std::path::Path;
use std::process::Command;

use crate::common::skip::skip;
use crate::common::workload::Workload;
use crate::heap::glibc::compare;
use crate::heap::{jemalloc, unreachable};

#[test]
fn other_releases() {
    let Some(roots) = std::env::var_os("MEMPROF_TEST_ROOTS") else {
        return skip(
            "other releases: MEMPROF_TEST_ROOTS names none; tests/suite/heap/chroots.sh does",
        );
    };
    for root in std::env::split_paths(&roots) {
        println!("{}", root.display());
        for (threads, seed) in [("1", "1"), ("3", "2"), ("8", "3")] {
            let mut workload = start(&root, &["/heap", threads, seed]);
            // malloc_trim, fork and the ends of threads are among them.
            for line in ["", "m", "f", "mm", "t", "x", "mfm", "p", "a", "t", "m"] {
                workload.lines.send(line);
                compare(&workload.lines.line());
            }
            workload.end();
        }
        for (threads, seed) in [("1", "4"), ("4", "5")] {
            let mut workload = start(&root, &["/heap-jemalloc", threads, seed]);
            for line in ["", "m", "f", "mm", "t", "x", "mfm", "p", "a", "t", "m"] {
                workload.lines.send(line);
                jemalloc::agrees(&workload.lines.line());
            }
            workload.end();
        }
        let mut workload = start(&root, &["/leaks"]);
        let (forgotten, found) = unreachable::forgotten_and_found(&mut workload);
        // The search is conservative: in one run of several, some word was the address of one of them.
        let wrong = forgotten.blocks.checked_sub(found.chunks);
        println!("{found:?}");
        assert!(
            wrong.is_some_and(|wrong| wrong <= 4),
            "{forgotten:?} {found:#?}"
        );
        workload.end();
    }
}

fn start(root: &Path, args: &[&str]) -> Workload {
    Workload::start_as(Command::new("chroot").arg(root).args(args))
}
