//! Python: the frames that memprof shows against those that the interpreter itself prints, for each CPython that is
//! installed.
//!
//! Needs root and a CPython that memprof knows: /usr/bin/python3, others of pyenv, uv and `MEMPROF_PYTHONS` besides.

#[path = "../common/mod.rs"]
mod common;
mod others;
mod stops;
mod switching;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use ::memprof::event::Pid;
use ::memprof::residency::figures;
use common::memprof::Memprof;
use common::process::{cont, stop};
use common::pythons::pythons;
use common::skip::skip;
use serde::Deserialize;

const WORKLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/frames.py");
/// The file of the function that the workloads call at each place.
const MARKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/marks.py");
/// (Some places are deeper than 128 frames, before Python 3.11.)
const OPTIONS: &[&str] = &["--stacks", "all", "--max-frames", "1024"];
/// A function of Python, as both sides name it: name, file, line.
type PythonFrame = (String, String, u32);

/// What the workload prints of one place.
#[derive(Deserialize)]
struct Mark {
    frames: Vec<PythonFrame>,
    size: u64,
}

/// A saved profile, as far as it is read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    frames: Vec<SavedFrame>,
    stacks: Vec<SavedStack>,
    not_observed: Vec<SavedRow>,
}

#[derive(Deserialize)]
struct SavedRow {
    bytes: SavedBytes,
    reason: String,
}

#[derive(Deserialize)]
struct SavedFrame {
    function: Option<String>,
    language: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Deserialize)]
struct SavedStack {
    bytes: SavedBytes,
    outcome: String,
    frames: Vec<usize>,
}

#[derive(Deserialize)]
struct SavedBytes {
    anon: u64,
}

impl Saved {
    /// Anonymous bytes whose stack was lost.
    fn lost(&self) -> u64 {
        let lost = self
            .not_observed
            .iter()
            .filter(|row| row.reason == "stack lost");
        lost.map(|row| row.bytes.anon).sum()
    }

    /// Anonymous bytes by the Python functions of their stack, innermost first.
    fn by_python(&self) -> BTreeMap<Vec<PythonFrame>, u64> {
        let mut bytes = BTreeMap::new();
        for stack in &self.stacks {
            let python = stack.frames.iter().filter_map(|at| {
                let frame = &self.frames[*at];
                let is_python = frame.language.as_deref() == Some("python");
                is_python.then(|| {
                    let name = frame.function.clone().unwrap_or_default();
                    let file = frame.file.clone().unwrap_or_default();
                    (name, file, frame.line.unwrap_or(0))
                })
            });
            *bytes.entry(python.collect()).or_default() += stack.bytes.anon;
        }
        bytes
    }
}

/// The profile of a program that waits; its sum is the kernel's.
fn saved_as_the_kernel_says(what: &str, m: &Memprof) -> Saved {
    let pid = m.followed();
    stop(pid);
    let kernel = figures::status(pid).unwrap();
    let saved = serde_json::from_slice(&m.get("/v2/export/profile").body).unwrap();
    let shown = m.get("/v1/tree?short=true").json();
    cont(pid);
    let total = (shown["total"].as_u64().unwrap() - shown["cache"].as_u64().unwrap()) << 10;
    assert_eq!(total, kernel.rss_anon + kernel.rss_shmem, "{what}");
    saved
}

/// Every function has its place among the native frames.
fn all_merged(version: &str, m: &Memprof) {
    let losses = m.lost();
    let unmerged = losses.iter().find(|row| row.contains("not merged"));
    assert_eq!(unmerged, None, "{version}");
}

/// Each place's frames are those of one stack, which has the place's memory.
fn compare(version: &str, m: &Memprof, marks: &[Mark]) {
    let saved = saved_as_the_kernel_says(version, m);
    let by_python = saved.by_python();
    let (mut wrong, mut missing) = (Vec::new(), 0);
    for mark in marks {
        let wanted = |frames: &[PythonFrame]| {
            frames
                .split_first()
                .is_some_and(|((name, file, _), callers)| {
                    name == "mark" && file == MARKS && callers == mark.frames
                })
        };
        let bytes = by_python
            .iter()
            .filter(|(frames, _)| wanted(frames))
            .map(|(_, bytes)| *bytes);
        // The whole pages of the memory that was allocated there. (malloc's first and last page may be another's.)
        let bytes: u64 = bytes.sum();
        let rest = mark.size.saturating_sub(bytes + 8192);
        if rest > 0 {
            missing += rest;
            // What has the rest, perhaps: stacks with as many bytes.
            let others = by_python
                .iter()
                .filter(|(_, other)| other.abs_diff(rest) <= 65536);
            let others: Vec<_> = others.map(|(frames, _)| frames).collect();
            wrong.push(format!(
                "{bytes} of {}: {:?}; the rest may be of {others:?}",
                mark.size, mark.frames
            ));
        }
    }
    // Stacks that did not fit the ring buffer, on a busy machine, are said to be lost. Nothing else may be missing.
    let (said, losses) = (saved.lost(), m.lost());
    assert!(
        missing <= said,
        "{version}: {} of {} places differ, by {missing} bytes, of which {said} are said to be lost ({losses:?}):\n{}",
        wrong.len(),
        marks.len(),
        wrong.join("\n"),
    );
    println!(
        "Python {version}: the frames of {} places are equal",
        marks.len()
    );
}

#[test]
fn frames_of_a_started_program_are_the_interpreters_own() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("no CPython that memprof knows is installed");
    }
    for (version, path) in pythons {
        let command = [path.to_str().unwrap(), WORKLOAD];
        let (m, mut lines) = Memprof::start_command(OPTIONS, &command);
        let mut marks = Vec::new();
        loop {
            let line = lines.line();
            if line == "ready" {
                break;
            }
            marks.push(serde_json::from_str(&line).unwrap());
        }
        assert!(marks.len() >= 40, "{version}: {}", marks.len());
        compare(&version, &m, &marks);
        all_merged(&version, &m);
    }
}

#[test]
fn frames_of_a_running_program_are_the_interpreters_own() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("no CPython that memprof knows is installed");
    }
    for (version, path) in pythons {
        let mut program = Command::new(&path)
            .args([WORKLOAD, "wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "waits");
        let pid = Pid(program.id());
        let m = Memprof::attach(pid, OPTIONS);
        let mut stdin = program.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        let lines = lines.map(Result::unwrap).take_while(|line| line != "ready");
        let marks: Vec<Mark> = lines
            .map(|line| serde_json::from_str(&line).unwrap())
            .collect();
        assert!(marks.len() >= 40, "{version}: {}", marks.len());
        compare(&version, &m, &marks);
        all_merged(&version, &m);
        drop(stdin);
        program.wait().unwrap();
    }
}

/// The stacks of a target that only claims to be Python.
#[test]
fn a_lying_target_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("lying_python");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/workloads/lying_python.c"
    );
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-rdynamic", source, "-o"])
        .arg(&program)
        .status()
        .expect("cc is needed for this test");
    assert!(compiled.success());
    for mode in ["cycle", "wild", "huge", "deep"] {
        let command = [program.to_str().unwrap(), mode];
        let (m, mut lines) = Memprof::start_command(&["--stacks", "all"], &command);
        assert_eq!(lines.line(), "ready", "{mode}");
        let saved = saved_as_the_kernel_says(mode, &m);
        let most = saved
            .by_python()
            .into_iter()
            .max_by_key(|(_, bytes)| *bytes);
        let (python, bytes) = most.unwrap();
        assert!(bytes >= 16 << 20, "{mode}: {bytes}");
        let names: Vec<&str> = python.iter().map(|(name, ..)| name.as_str()).collect();
        match mode {
            // No evaluator ends the list, so none of it has a place.
            "cycle" | "wild" => {
                assert_eq!(names, [""; 0], "{mode}");
                let lost = m.lost();
                assert!(
                    lost.iter().any(|row| row.contains("not merged")),
                    "{lost:?}"
                );
            }
            "huge" => {
                assert_eq!(names.len(), 2);
                assert!(
                    names[0].starts_with("name") && names[0].ends_with('…'),
                    "{names:?}"
                );
            }
            _ => {
                assert_eq!(names[..256], ["name"; 256]);
                assert_eq!(names[256..], ["[more Python frames]"]);
                let is_seen = |(name, file, line): &PythonFrame| {
                    (name.as_str(), file.as_str(), *line) == ("name", "name", 0)
                };
                assert!(is_seen(&python[0]), "{:?}", python[0]);
            }
        }
    }
}
