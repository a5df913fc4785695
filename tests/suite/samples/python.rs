//! The blocks of CPython's own allocator, which a command has from its start or a running interpreter from then on.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::preloaded::must_be;
use super::{below, total};
use crate::common::binary::memprof;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::pythons::{all_pythons, is_free_threaded, minor, pythons};
use crate::common::skip::skip;
use crate::common::workload::{Lines, Workload};

/// Bytes of a bytes object besides its contents.
const OBJECT: u64 = 33;
/// The same in a free-threaded build, whose objects have larger heads.
const FREE_THREADED: u64 = 49;
const FINE: [&str; 2] = ["--heap-interval", "16KiB"];

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/python_holds.py")
}

/// The oldest and the newest interpreter of this machine, by their versions.
fn some() -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = pythons().into_iter().collect();
    if all.is_empty() {
        skip("there is no CPython");
    }
    all.sort_by_key(|(version, _)| minor(version));
    let newest = all.len().saturating_sub(1).max(1);
    all.drain(1.min(all.len())..newest.min(all.len()));
    all
}

fn start(python: &Path, args: &[&str], environment: &[(&str, &str)]) -> (Memprof, Lines) {
    let script = script();
    let set: Vec<String> = environment
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let mut command = vec!["env"];
    command.extend(set.iter().map(String::as_str));
    command.extend([python.to_str().unwrap(), script.to_str().unwrap()]);
    let args = [&["--heap"], &FINE[..], args].concat();
    Memprof::start_command(&args, &command)
}

#[test]
fn blocks_of_python_are_estimated_as_well_as_mallocs() {
    for (version, python) in some() {
        let all = ["", "malloc", "pymalloc", "mimalloc"];
        let known = if minor(&version) < 13 {
            &all[..3]
        } else {
            &all
        };
        for allocator in known {
            println!("{version}, PYTHONMALLOC={allocator}");
            let (m, mut lines) = start(&python, &[], &[("PYTHONMALLOC", allocator)]);
            lines.tell("hold 50000 100");
            lines.tell("hold 5000 600");
            lines.tell("numbers 50000");
            let array = (50_000 + 5000) * 8;
            let bytes = 50_000 * (100 + OBJECT) + 5000 * (600 + OBJECT) + array;
            must_be(&m, "hold", "inuse_space", bytes);
            must_be(&m, "hold", "inuse_objects", 55_000);
            // Each number has 28 or 32 bytes, as the interpreter rounds them or not.
            let (live, error) = below(&m, "numbers", "inuse_space");
            let (least, most) = (50_000 * (28 + 8), 50_000 * (32 + 8));
            let far = 5 * error;
            assert!(
                (least - far..most + far).contains(&live),
                "{live} ± {error}"
            );
            lines.tell("release");
            assert!(below(&m, "hold", "inuse_space").0 < bytes / 100);
            must_be(&m, "hold", "alloc_space", bytes);
            assert_eq!(m.lost(), [""; 0]);
        }
    }
}

/// Their frames are not read, so the totals before and after are compared.
#[test]
fn blocks_of_free_threaded_builds_are_estimated_as_well() {
    let mut all = all_pythons();
    all.retain(|version, _| is_free_threaded(version));
    if all.is_empty() {
        skip("there is no free-threaded CPython; MEMPROF_TEST_PYTHONS names one");
    }
    // Each hook adds 24 bytes to a block.
    for ((version, python), (allocator, more)) in all.iter().flat_map(|one| {
        let allocators = [("", 0), ("debug", 24), ("mimalloc", 0)];
        allocators.map(|allocator| (one, allocator))
    }) {
        println!("{version}, PYTHONMALLOC={allocator}");
        let (m, mut lines) = start(python, &[], &[("PYTHONMALLOC", allocator)]);
        // It has answered once its start is over.
        lines.tell("release");
        let [live, allocated] = ["inuse_space", "alloc_space"];
        let before = [live, allocated].map(|kind| total(&m, kind));
        lines.tell("hold 50000 100");
        lines.tell("hold 5000 600");
        let after = [live, allocated].map(|kind| total(&m, kind));
        let truth = 50_000 * (100 + FREE_THREADED + more) + 5000 * (600 + FREE_THREADED + more);
        let truth = truth + 55_000 * 8;
        // Of blocks that are much smaller than the interval of 16 KiB.
        let error = ((truth * (16 << 10)) as f64).sqrt() as u64;
        for at in 0..2 {
            let made = after[at] - before[at];
            assert!(
                made.abs_diff(truth) < 5 * error,
                "{made} ± {error}, not {truth}"
            );
        }
        lines.tell("release");
        let left = total(&m, live).abs_diff(before[0]);
        assert!(left < truth / 20, "{left} of {truth}");
        assert_eq!(m.lost(), [""; 0]);
    }
}

#[test]
fn hooks_before_and_after_the_start_hide_no_block() {
    for (version, python) in some() {
        // Each hook adds 24 bytes to a block.
        let all = [
            ("debug", 24),
            ("pymalloc_debug", 24),
            ("malloc_debug", 24),
            ("", 0),
            ("mimalloc_debug", 24),
        ];
        let known = if minor(&version) < 13 {
            &all[..4]
        } else {
            &all
        };
        for (hooks, more) in known.iter().copied() {
            println!("{version}, PYTHONMALLOC={hooks}");
            let (m, mut lines) = start(&python, &[], &[("PYTHONMALLOC", hooks)]);
            let block = 100 + OBJECT + more;
            lines.tell("hold 30000 100");
            must_be(&m, "hold", "inuse_space", 30_000 * (block + 8));
            lines.tell("trace");
            lines.tell("release");
            lines.tell("hold 30000 100");
            // The traces lie below hold(), too, in blocks of malloc.
            assert!(below(&m, "hold", "inuse_space").0 > 30_000 * block);
            lines.tell("untrace");
            lines.tell("release");
            assert!(below(&m, "hold", "inuse_space").0 < 30_000);
            lines.tell("hold 30000 100");
            let (live, error) = below(&m, "hold", "inuse_space");
            let truth = 30_000 * (block + 8);
            assert!(
                live.abs_diff(truth) < 6 * error,
                "{live} ± {error}, not {truth}"
            );
        }
    }
}

#[test]
fn forked_children_have_their_own_blocks() {
    for (version, python) in some() {
        println!("{version}");
        let (m, mut lines) = start(&python, &["--follow-forks"], &[]);
        lines.tell("hold 20000 100");
        let before = total(&m, "inuse_space");
        lines.tell("child 30000 100");
        must_be(
            &m,
            "child_holds",
            "inuse_space",
            30_000 * (100 + OBJECT + 8),
        );
        assert!(total(&m, "inuse_space") > 2 * before);
    }
}

/// A heap by stack has what was allocated since the attach under its functions, and the rest before sampling.
#[test]
fn a_running_interpreter_is_sampled_from_then_on() {
    for (version, python) in some() {
        println!("{version}");
        let script = script();
        let mut command = Command::new(&python);
        let mut target = Workload::start_as(command.arg(&script));
        target.lines.tell("hold 40000 100");
        let pid = target.pid().to_string();
        let attached = memprof(&["attach-heap", "--yes", "--pid", &pid, FINE[0], FINE[1]]);
        attached.must(0, &[]);
        assert!(
            attached.stdout.contains("its own allocator are sampled"),
            "{attached:?}"
        );
        let m = Memprof::start(&["--heap", "--pid", &pid]);
        target.lines.tell("hold 30000 100");
        must_be(&m, "hold", "inuse_space", 30_000 * (100 + OBJECT + 8));
        assert_eq!(m.lost(), [""; 0]);
    }
}

/// An interpreter whose functions are not exported is named, with the reason, beside the totals.
#[test]
fn a_python_that_exports_nothing_is_said_to_be_unsampled() {
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("a.c"), dir.path().join("python3-static"));
    let text = "#include <stdio.h>\nint main(void) { puts(\"ready\"); fflush(stdout); return getchar() == 0; }\n";
    File::create(&source)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let compiled = Command::new("cc")
        .args([&source, Path::new("-o"), &binary])
        .status();
    assert!(compiled.unwrap().success());
    let (m, mut lines) = Memprof::start_command(&["--heap"], &[binary.to_str().unwrap()]);
    assert_eq!(lines.line(), "ready");
    // A report says so.
    eventually(LIMIT, "the interpreter is counted", || {
        let lost = m.lost();
        lost.iter()
            .any(|row| row.contains("Python interpreters whose own blocks"))
    });
    m.said("has a Python whose own blocks, of up to 512 bytes each, are not sampled");
}

/// The heap by stack has all of Python's blocks, and adds up to the process's anonymous memory.
#[test]
fn a_heap_by_stack_has_pythons_blocks_under_their_functions() {
    let code = "def hold():\n    return [bytes(100) for _ in range(60000)]\nheld = hold()\nimport os\nos._exit(0)\n";
    for (version, python) in some() {
        println!("{version}");
        let python = python.to_str().unwrap();
        let options = ["heap", "--by-stack", "--format", "json", "--top", "10000"];
        let command = ["--", python, "-c", code];
        let ended = memprof(&[&options, &FINE[..], &command].concat());
        ended.must(0, &[]);
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let by_stack = &report["by_stack"];
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let rows = by_stack["rows"].as_array().unwrap();
        let of_hold = rows
            .iter()
            .filter(|row| row["stack"].as_str().unwrap().contains("hold"));
        let live: Vec<(u64, u64)> = of_hold
            .map(|row| (number(&row["live"]["bytes"]), number(&row["live"]["error"])))
            .collect();
        let (sum, error) = live.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        // At most an eighth of the list's items is room for more.
        let truth = 60_000 * (100 + OBJECT + 8);
        let off = sum.abs_diff(truth);
        assert!(off <= 5 * error + 60_000, "{sum} ± {error}, not {truth}");
        assert!(error < truth / 20, "{sum} ± {error}");
        let rest = by_stack["rest"].as_array().unwrap();
        // None of them is left to a row without a stack.
        assert!(rest.iter().all(|row| row["kind"] != "python"), "{rest:#?}");
        let of_rows = rows.iter().map(|row| {
            number(&row["resident"]["bytes"])
                + number(&row["pinned"]["bytes"])
                + number(&row["unreachable"]["bytes"])
        });
        let free = by_stack["free_pages"].as_array().unwrap().iter();
        let free = free.map(|row| number(&row["resident"]));
        let rest = rest
            .iter()
            .map(|row| number(&row["resident"]["bytes"]) + number(&row["pinned"]));
        let all: u64 = of_rows.chain(free).chain(rest).sum();
        assert_eq!(all, number(&by_stack["total"]), "{by_stack:#}");
        assert_eq!(all, number(&report["anonymous"]), "{by_stack:#}");
    }
}
