//! Cores: those of gdb's `gcore`, of `--save` and of the kernel have the heap of the snapshot of the same moment.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::binary::memprof;
use crate::common::process::{cont, stop};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};

fn report(args: &[&str]) -> Value {
    let ended = memprof(&[&["heap", "--format", "json"], args].concat());
    ended.must(0, &[]);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
}

fn of_core(path: &Path) -> Value {
    report(&["--core", path.to_str().unwrap()])
}

/// What must be equal whatever wrote the core: chunks and bytes of each row, types, roots, and what is unreachable.
fn heap_of(heap: &Value) -> Value {
    let rows = heap["rows"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| [&row["what"], &row["chunks"], &row["bytes"]])
        .collect();
    serde_json::json!({
        "rows": rows,
        "allocator": heap["allocator"],
        "types": heap["types"],
        "retained": heap["retained"]["roots"],
        "unreachable": heap["unreachable"],
        "comm": heap["comm"],
        "pid": heap["pid"],
    })
}

fn gdb(args: &[&str]) -> Option<String> {
    let output = Command::new("gdb")
        .args(["-nx", "-batch"])
        .args(args)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(e) => {
            skip(format!("gdb: {e}"));
            None
        }
    }
}

#[test]
fn cores_have_the_heap_of_the_snapshot() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = program("heap");
    let mut workload = Workload::start_with(&program, &["3", "7"]);
    for line in ["", "m", "f", "mm"] {
        workload.lines.send(line);
        workload.lines.line();
    }
    let pid = workload.pid();
    stop(pid);
    let saved = dir.path().join("saved");
    let text = pid.to_string();
    let live = report(&["--pid", &text, "--save", saved.to_str().unwrap()]);
    assert_eq!(live["saved"]["path"].as_str(), saved.to_str());

    // With memprof's own notes, resident bytes are the same, too.
    let own = of_core(&saved);
    assert_eq!(heap_of(&own), heap_of(&live));
    for same in ["rows", "arenas", "others", "anonymous", "map", "sizes"] {
        assert_eq!(own[same], live[same], "{same}");
    }
    assert_eq!(own["core"]["residency"], true);

    // The program is not in the directory of another machine.
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let root = empty.to_str().unwrap();
    let elsewhere = report(&["--core", saved.to_str().unwrap(), "--sysroot", root]);
    assert_eq!(elsewhere["rows"], live["rows"]);
    let files = elsewhere["core"]["files"].as_array().unwrap();
    assert!(files.iter().all(|file| file["state"] == "not_found"));
    let other = memprof(&[
        "heap",
        "--core",
        saved.to_str().unwrap(),
        "--exe",
        "/bin/sh",
    ]);
    other.must(1, &["build ids differ"]);

    let prefix = dir.path().join("gdb");
    let gcore = Command::new("gcore")
        .args(["-o", prefix.to_str().unwrap(), &text])
        .stdin(Stdio::null())
        .output();
    match gcore {
        Ok(_) => {
            let other = of_core(&dir.path().join(format!("gdb.{pid}")));
            assert_eq!(heap_of(&other), heap_of(&live));
            assert_eq!(other["core"]["residency"], false);
        }
        Err(e) => skip(format!("gcore: {e}")),
    }
    let exe = program.to_str().unwrap();
    let (core, bt) = (saved.to_str().unwrap(), "thread apply all bt");
    if let Some(said) = gdb(&["-ex", bt, "-ex", "info sharedlibrary", exe, core]) {
        assert!(
            said.contains("main (") && said.contains("libc.so.6"),
            "{said}"
        );
    }
    cont(pid);
    workload.end();
}
