//! Programs in a container like those of Alpine Linux, profiled from outside: musl has no unwind information, and nothing of
//! the container is in memprof's own file tree.
//!
//! Needs root, `musl-gcc` and a static busybox.

use std::process::Command;

use super::chains::{compile, source};
use super::results::{Found, attached_by, attached_with, wait_until_idle};
use crate::common::container::Container;
use crate::common::memprof::BINARY;
use crate::common::skip::skip;

/// What each way to use memory brings in, in bytes.
const SIZE: u64 = 1 << 20;

/// The stacks of a program in the container, which uses memory in every way.
#[track_caller]
fn in_container(name: &str, flags: &[&str]) -> Option<Found> {
    let program = compile("musl-gcc", name, &source("container.c"), flags)?;
    let container = Container::new()?;
    container.put(&program, "/app");
    let (mut workload, pid) = container.start(&["/app"]);
    let found = attached_by(&mut Command::new(BINARY), pid, |memprof| {
        wait_until_idle(memprof);
        workload.lines.tell("go");
    });
    workload.end();
    Some(found)
}

#[track_caller]
fn check(found: &Found) {
    assert_eq!(found.complete(), (100.0, 100.0), "{}", found.text());
    assert!(
        !found.summary.contains("no unwind table"),
        "{}",
        found.text()
    );
    let begins = ["* main", "* thread_start"];
    for (start, way) in begins.iter().flat_map(|start| {
        let ways = [
            "by_hand",
            "by_memset *",
            "by_memcpy *",
            "by_read *",
            "by_qsort * compare",
        ];
        ways.map(|way| (start, way))
    }) {
        let bytes = found.bytes(&format!("{start} everything {way}"));
        assert!(
            bytes >= SIZE * 9 / 10,
            "{start} {way}: {bytes}\n{}",
            found.text()
        );
    }
    for way in ["by_malloc *", "by_print *"] {
        let bytes = found.bytes(&format!("* main everything {way}"));
        assert!(bytes >= SIZE / 2, "{way}: {bytes}\n{}", found.text());
    }
}

#[test]
fn stacks_of_dynamic_programs_are_complete() {
    if let Some(found) = in_container("container_dynamic", &[]) {
        check(&found);
    }
}

#[test]
fn stacks_of_static_programs_are_complete() {
    if let Some(found) = in_container("container_static", &["-static"]) {
        check(&found);
    }
}

/// Without symbols, calls and the entry lead to the functions.
#[test]
fn stacks_of_stripped_programs_are_complete() {
    if let Some(found) = in_container("container_stripped", &["-static-pie", "-fPIE", "-s"]) {
        assert_eq!(found.complete(), (100.0, 100.0), "{}", found.text());
    }
}

/// Debug information that is in other files of the container's file tree, each form with the command that makes it. `{root}` is the
/// tree; the program is `prog`.
const FORMS: [(&str, &str); 4] = [
    (
        "gcc",
        "$cc -gsplit-dwarf -c $source -o c.o; gcc -static -o prog c.o; mv c.dwo {root}/app",
    ),
    (
        "llvm-dwp",
        "$cc -gsplit-dwarf -c $source -o c.o; gcc -static -o prog c.o; rm {root}/app/c.dwo; llvm-dwp c.dwo -o {root}/app/prog.dwp; \
         rm c.dwo",
    ),
    (
        "objcopy",
        "$cc $source -o prog; rm -f {root}/app/prog.dwp; id=$(readelf -n prog | sed -n 's/.*Build ID: //p'); rest=${id#??}; \
         to={root}/usr/lib/debug/.build-id/${id%$rest}; mkdir -p $to; objcopy --only-keep-debug prog $to/$rest.debug; strip prog",
    ),
    (
        "dwz",
        "$cc $source -o prog; cp prog other; mkdir {root}/usr/lib/debug/.dwz; \
         dwz -m {root}/usr/lib/debug/.dwz/common -M /elsewhere/common prog other",
    ),
];

#[test]
fn debug_files_are_found_in_the_file_tree_of_the_container() {
    let Some(container) = Container::new() else {
        return;
    };
    let work = tempfile::tempdir().unwrap();
    std::fs::create_dir(container.at("/app")).unwrap();
    for (tool, script) in FORMS {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(format_args!("{tool} is not installed"));
            continue;
        }
        let script = script.replace("{root}", container.at("/").to_str().unwrap());
        let made = Command::new("sh")
            .args(["-ec", &script])
            .env("cc", "gcc -O2 -g -gz=none -static")
            .env("source", source("inlined.c"))
            .current_dir(work.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{script}: {made:?}");
        container.put(&work.path().join("prog"), "/app/prog");
        let (mut workload, pid) = container.start(&["/app/prog"]);
        let saved = work.path().join("out.memprof.json");
        let options = ["-o", saved.to_str().unwrap()];
        let found = attached_with(&options, pid, || workload.lines.tell("go"));
        workload.end();
        let text = std::fs::read_to_string(&saved).unwrap();
        assert!(text.contains("\"inner\""), "{tool}: {}", found.text());
        let lost = "Not all debug information";
        assert!(!found.summary.contains(lost), "{tool}: {}", found.summary);
    }
}
