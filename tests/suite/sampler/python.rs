//! Estimates of Python objects against their sizes, inside interpreters: unbiased, and with the right error.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::estimates::{INTERVAL, Runs, SEED, assert_covered, assert_unbiased};
use super::support::{listening_library, stdout};
use crate::common::effort;
use crate::common::pythons::{all_pythons, is_free_threaded, minor};
use crate::common::skip::skip;
use crate::common::workload::program;

/// Runs in each interpreter.
fn runs() -> usize {
    effort::rounds(100) as usize
}

/// What debug hooks add to each block, in bytes, and the size of blocks from which on they add it twice.
type Hooks = [u32; 2];

const NONE: Hooks = [0, u32::MAX];

/// The estimates of one kind of objects.
fn measure(python: &Path, allocator: &str, kind: &str, hooks: Hooks) -> Runs {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/python_blocks.py");
    let libraries = [
        listening_library(INTERVAL, SEED),
        program("python_listener"),
    ];
    let libraries: Vec<&str> = libraries
        .iter()
        .map(|path| path.to_str().unwrap())
        .collect();
    let mut command = Command::new(python);
    command
        .arg(script)
        .args([kind, &runs().to_string()])
        .args(hooks.map(|hook| hook.to_string()))
        .env("PYTHONMALLOC", allocator)
        .env("LD_PRELOAD", libraries.join(":"));
    Runs::parse(&stdout(command.output().unwrap()))
}

fn check(python: &Path, name: &str, allocator: &str, hooks: Hooks) {
    for kind in ["malloc", "calloc", "realloc"] {
        let name = format!("{name}, PYTHONMALLOC={allocator}, {kind}");
        // A resize counts with the size that pymalloc is asked for, whatever the raw domain adds to it.
        let [added, large] = hooks;
        let hooks = [added, if kind == "realloc" { u32::MAX } else { large }];
        let Runs([bytes, count, live_bytes, live_count]) = measure(python, allocator, kind, hooks);
        assert_eq!(live_bytes.len(), runs(), "{name}");
        assert_unbiased(&format!("{name}, live bytes"), &live_bytes);
        assert_covered(&format!("{name}, live bytes"), &live_bytes);
        // A list that grows has more allocations than it has blocks in the end.
        if kind != "realloc" {
            assert_unbiased(&format!("{name}, bytes"), &bytes);
            assert_covered(&format!("{name}, bytes"), &bytes);
            assert_unbiased(&format!("{name}, count"), &count);
            assert_unbiased(&format!("{name}, live count"), &live_count);
        }
    }
}

fn all() -> Vec<(String, PathBuf)> {
    let all: Vec<(String, PathBuf)> = all_pythons().into_iter().collect();
    if all.is_empty() {
        skip("there is no CPython");
    }
    all
}

#[test]
fn objects_are_estimated_truly() {
    for (version, python) in all() {
        check(&python, &version, "", NONE);
    }
}

/// `PYTHONMALLOC` resets the interpreter's tables of functions after the library's constructor has changed them.
#[test]
fn objects_of_a_chosen_allocator_are_estimated_truly() {
    for (version, python) in all() {
        // Free-threaded builds have mimalloc alone.
        if !is_free_threaded(&version) {
            check(&python, &version, "pymalloc", NONE);
            check(&python, &version, "malloc", NONE);
        }
        if minor(&version) >= 13 {
            check(&python, &version, "mimalloc", NONE);
        }
    }
}

#[test]
fn objects_behind_debug_hooks_are_estimated_truly() {
    for (version, python) in all() {
        if is_free_threaded(&version) {
            check(&python, &version, "debug", [24, u32::MAX]);
            continue;
        }
        check(&python, &version, "debug", [24, 513]);
        check(&python, &version, "malloc_debug", [24, u32::MAX]);
    }
}
