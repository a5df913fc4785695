//! Python: the frames that memprof shows against those that the interpreter itself prints, for each CPython that is
//! installed.
//!
//! Needs root and a CPython that memprof knows: /usr/bin/python3, others of pyenv, uv and `MEMPROF_TEST_PYTHONS` besides.

mod other_programs;
mod stops;
mod switching;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::interpreted::{
    self, Mark, Saved, SourceFrame, all_merged, saved_as_the_kernel_says,
};
use crate::common::memprof::Memprof;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use memprof_sys::ids::Pid;

const WORKLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/frames.py");
/// The file of the function that the workloads call at each place.
const MARKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/marks.py");
/// (Some places are deeper than 128 frames, before Python 3.11.)
const OPTIONS: &[&str] = &["--stacks", "all", "--max-frames", "1024"];

/// Each place's frames are those of one stack, which has the place's memory.
fn compare(version: &str, m: &Memprof, marks: &[Mark]) {
    let is_mark = |(name, file, _): &SourceFrame| name == "mark" && file == MARKS;
    let version = format!("Python {version}");
    let by_python = |saved: &Saved| saved.by_source("python");
    interpreted::compare(&version, m, marks, by_python, is_mark);
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

/// Not even if it uses up the attempts to find a thread's state before the interpreter's thread has its first stack.
#[test]
fn a_thread_that_python_does_not_know_hides_no_functions() {
    const STRANGERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/strangers.py");
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("no CPython that memprof knows is installed");
    }
    for (version, path) in pythons {
        interpreted::a_stranger_hides_no_functions(&version, &path, "python", STRANGERS);
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
            .by_source("python")
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
                let is_seen = |(name, file, line): &SourceFrame| {
                    (name.as_str(), file.as_str(), *line) == ("name", "name", 0)
                };
                assert!(is_seen(&python[0]), "{:?}", python[0]);
            }
        }
    }
}
