//! Go programs and libraries: their own stacks, C's, and those of their run time, across every switch between them.
//!
//! Needs root, `go` and `cc`. Another `go` than the installed one, for example a newer version:
//! `MEMPROF_TEST_GO=/path/to/go cargo test --test suite -- unwind::go::`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::chains::source;
use super::results::{Found, attached_by, profile, wait_until_idle};
use crate::common::memprof::BINARY;
use crate::common::skip::skip;
use crate::common::workload::Workload;

/// Bytes that a leaf function touches.
const LEAF: u64 = 64 << 10;

fn go() -> Command {
    Command::new(std::env::var_os("MEMPROF_TEST_GO").unwrap_or_else(|| "go".into()))
}

/// The second number of Go's version; without Go, reports the test as skipped and returns `None`.
#[track_caller]
fn version() -> Option<u32> {
    let Ok(out) = go().arg("version").output() else {
        skip("go is not installed");
        return None;
    };
    let text = String::from_utf8(out.stdout).unwrap();
    let number = text
        .split("go1.")
        .nth(1)
        .unwrap()
        .split(['.', ' ', 'r', 'b']);
    Some(number.into_iter().next().unwrap().parse().unwrap())
}

/// Builds `programs/go.go`.
#[track_caller]
fn build(name: &str, mode: &str, flags: &str) -> Option<PathBuf> {
    let version = version()?;
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let out = dir.join(name);
    // It calls a function of the run time that is not exported.
    let linkname = if version >= 23 {
        "-checklinkname=0 "
    } else {
        ""
    };
    let ended = go()
        .args(["build", "-buildmode", mode, "-ldflags"])
        .arg(format!("{linkname}{flags}"))
        .arg("-o")
        .args([&out, Path::new(&source("go.go"))])
        .env("GOCACHE", dir.join("go-cache"))
        .env("GO111MODULE", "off")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{name}: {said}");
    Some(out)
}

#[track_caller]
fn all_complete(found: &Found) {
    assert_eq!(found.complete(), (100.0, 100.0), "{}", found.text());
}

#[test]
fn every_stack_of_a_program() {
    let Some(program) = build("go-program", "exe", "") else {
        return;
    };
    let found = profile(&[], &[program.to_str().unwrap()]);
    for (chain, leaf) in [
        ("* main.main main.callFill * c_leaf touch", "c_leaf"),
        (
            "* main.main main.callBack * goBack * * main.goBack main.backLeaf",
            "main.backLeaf",
        ),
        (
            "* main.main main.callBack * goBack * * main.goBack main.callNested * nested_leaf touch",
            "nested_leaf",
        ),
        // Its thread is C's, and got a goroutine, with a stack, for the call.
        (
            "* c_thread goFromThread * * main.goFromThread main.threadLeaf",
            "main.threadLeaf",
        ),
        (
            "* main.main main.callSystem * main.systemLeaf",
            "main.systemLeaf",
        ),
        (
            "* main.main main.trap * on_fault handler_leaf touch",
            "handler_leaf",
        ),
        ("* main.main.func1 main.goLeaf", "main.goLeaf"),
    ] {
        let has = |frames: &[String]| frames.iter().any(|f| f == leaf);
        let stacks = found.stacks.iter().filter(|(frames, _)| has(frames));
        let all: u64 = stacks.map(|(_, bytes)| bytes).sum();
        let bytes = found.bytes(chain);
        // A new goroutine's stack may have been touched there, too.
        assert!(
            (LEAF..=LEAF + 16384).contains(&bytes) && all <= LEAF + 16384,
            "{chain}: {bytes} of {all}\n{}",
            found.text()
        );
    }
    // The signal handler returns to this function, which nothing calls.
    let restores = |frame: &String| frame.contains("restore_rt");
    assert!(
        found
            .stacks
            .iter()
            .any(|(frames, _)| frames.iter().any(restores)),
        "{}",
        found.text()
    );
    check_growth(&found);
    all_complete(&found);
}

/// Goroutines' stacks grow on the thread's own stack: for the function that needs the room.
#[track_caller]
fn check_growth(found: &Found) {
    let mut grown = 0;
    for (frames, bytes) in &found.stacks {
        let Some(at) = frames.iter().position(|f| f == "runtime.copystack") else {
            continue;
        };
        let before = &frames[..at];
        assert!(before.iter().any(|f| f.starts_with("main.")), "{frames:?}");
        grown += bytes;
    }
    assert!(grown >= 1 << 20, "{grown}\n{}", found.text());
}

#[test]
fn stripped_and_at_any_address() {
    for (name, mode, flags) in [("go-stripped", "exe", "-s -w"), ("go-pie", "pie", "-s -w")] {
        let Some(program) = build(name, mode, flags) else {
            return;
        };
        let stripped = Command::new("strip").arg(&program).status().unwrap();
        assert!(stripped.success());
        let found = profile(&[], &[program.to_str().unwrap()]);
        // C's functions have no names, Go's have.
        for chain in [
            "main.callFill * *",
            "main.callBack * * * main.goBack main.callNested * *",
        ] {
            let pattern = format!("* main.main {chain}");
            assert_eq!(
                found.bytes(&pattern),
                LEAF,
                "{name}: {pattern}\n{}",
                found.text()
            );
        }
        for chain in ["* * * main.threadLeaf", "* main.main.func1 main.goLeaf"] {
            assert!(
                found.bytes(chain) >= LEAF,
                "{name}: {chain}\n{}",
                found.text()
            );
        }
        all_complete(&found);
    }
}

/// By frame pointers alone, too: one that was left on a goroutine's stack leads there.
#[test]
fn by_frame_pointers() {
    let Some(program) = build("go-fp", "exe", "") else {
        return;
    };
    let found = profile(&["--unwind", "fp"], &[program.to_str().unwrap()]);
    // Functions of C without a frame pointer are left out.
    let calls = |name: &str| {
        let stacks = found.stacks.iter().filter(|(frames, _)| {
            let at = |wanted| frames.iter().position(|f| f == wanted);
            at("main.main").is_some_and(|main| at(name).is_some_and(|call| call > main))
        });
        stacks.map(|(_, bytes)| bytes).sum::<u64>()
    };
    assert!(calls("main.callFill") >= LEAF, "{}", found.text());
}

/// A library of Go in another program: its functions run on a goroutine's stack, their callers on the thread's.
#[test]
fn a_library_in_python() {
    const PYTHON: &str = "/usr/bin/python3";
    if !super::packaged_programs::installed(PYTHON) {
        return;
    }
    let Some(library) = build("go-library.so", "c-shared", "-s -w") else {
        return;
    };
    let script = format!(
        "import ctypes\ngo = ctypes.CDLL('{}')\nprint('ready', flush=True)\ninput()\ngo.goShared()\nprint('ok', flush=True)\ninput()\n",
        library.display()
    );
    // A goroutine that is preempted by a signal, after 10 ms on a busy machine, touches further pages.
    let command = ["GODEBUG=asyncpreemptoff=1", PYTHON, "-S", "-c", &script];
    let mut python = Workload::start_with(Path::new("/usr/bin/env"), &command);
    assert_eq!(python.lines.line(), "ready");
    // The stacks are whole once the library's table is published.
    let mut memprof = Command::new(BINARY);
    memprof.args(["--frames", "all"]);
    let found = attached_by(&mut memprof, python.pid(), |memprof| {
        wait_until_idle(memprof);
        python.lines.tell("go");
    });
    let mut seen = 0;
    for (frames, bytes) in &found.stacks {
        let at = |wanted: &str| frames.iter().position(|f| f == wanted);
        let shared = at("main.sharedLeaf").or(at("main.callFill"));
        let Some(shared) = shared.filter(|_| *bytes == LEAF) else {
            continue;
        };
        let order = [
            at("_start"),
            at("<module>"),
            at("goShared"),
            at("crosscall2"),
            at("main.goShared"),
        ];
        assert!(
            order.iter().all(Option::is_some) && order.is_sorted(),
            "{frames:?}"
        );
        assert!(order[4] < Some(shared), "{frames:?}");
        seen += 1;
    }
    assert_eq!(seen, 2, "{}", found.text());
}
