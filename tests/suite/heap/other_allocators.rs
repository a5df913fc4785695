//! Other allocators and managed heaps: each is named by what is evidence of it, and nothing else is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::process::eventually;
use crate::common::skip::skip;
use crate::common::workload::{Running, Workload, program};
use crate::heap::glibc::COPY;
use memprof_heap::SpanHeap;
use memprof_sys::ids::Pid;

fn names(pid: Pid) -> Vec<&'static str> {
    let heap = crate::heap::measure(pid, &COPY, 1).expect("a snapshot");
    let read = heap.other_heaps.iter().map(SpanHeap::name);
    read.chain(heap.seen.iter().map(|seen| seen.name)).collect()
}

/// Waits until exactly this is seen: a program takes a moment to load its files.
fn expect(command: &mut Command, name: &str) {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let child = Running(child.unwrap());
    eventually(Duration::from_secs(60), name, || {
        names(child.pid()) == [name]
    });
}

#[test]
fn a_program_with_nothing_but_glibc_has_none() {
    let mut workload = Workload::start_with(&program("heap"), &["1", "1"]);
    workload.lines.send("m");
    workload.lines.line();
    assert!(names(workload.pid()).is_empty());
    workload.end();
}

#[test]
fn preloaded_allocators_are_named() {
    for (file, name) in [
        ("libmimalloc.so.2", "mimalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
    ] {
        let path = format!("/usr/lib/x86_64-linux-gnu/{file}");
        if !Path::new(&path).exists() {
            skip(format!("there is no {file}"));
            continue;
        }
        expect(Command::new("/bin/cat").env("LD_PRELOAD", &path), name);
    }
}

#[test]
fn musl_is_named_in_dynamic_and_static_programs() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = dir.path().join("wait.c");
    let text = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { char *p = malloc(9); return p && read(0, p, 1); }\n";
    std::fs::write(&source, text).unwrap();
    for flags in [&[][..], &["-static"]] {
        let binary = dir.path().join(format!("wait{}", flags.concat()));
        let mut cc = Command::new("musl-gcc");
        let done = cc.args(flags).arg(&source).arg("-o").arg(&binary).status();
        match done {
            Ok(status) => assert!(status.success()),
            Err(_) => return skip("there is no musl-gcc"),
        }
        expect(&mut Command::new(&binary), "musl");
    }
}

#[test]
fn a_managed_heap_is_named() {
    const NODE: &str = "/usr/bin/node";
    if !Path::new(NODE).exists() {
        return skip("there is no node");
    }
    expect(
        Command::new(NODE).args(["-e", "process.stdin.resume()"]),
        "V8",
    );
}
