//! Ruby: the frames that memprof shows against those that the interpreter itself prints, for each CRuby that is
//! installed.
//!
//! Needs root and a CRuby that memprof knows: /usr/bin/ruby, others of rbenv besides.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::interpreted::{self, Mark, Saved, SourceFrame, saved_as_the_kernel_says};
use crate::common::memprof::Memprof;
use crate::common::rubies::rubies;
use crate::common::skip::skip;
use memprof_sys::ids::Pid;

const WORKLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/frames.rb");
const OPTIONS: &[&str] = &["--stacks", "all", "--max-frames", "1024"];

/// Bytes by the frames that the interpreter prints: not those of its own methods that are written in Ruby, which it shows
/// like methods that are written in C.
fn by_printed(saved: &Saved) -> BTreeMap<Vec<SourceFrame>, u64> {
    let mut printed = BTreeMap::new();
    for (mut frames, bytes) in saved.by_source("ruby") {
        frames.retain(|(_, file, _)| !file.starts_with("<internal:"));
        *printed.entry(frames).or_default() += bytes;
    }
    printed
}

fn compare(version: &str, m: &Memprof, marks: &[Mark]) {
    let is_mark = |(name, file, _): &SourceFrame| {
        ["mark", "Object#mark"].contains(&name.as_str()) && file == WORKLOAD
    };
    assert!(marks.len() >= 70, "{version}: {}", marks.len());
    interpreted::compare(&format!("Ruby {version}"), m, marks, by_printed, is_mark);
    interpreted::all_merged(version, m);
}

#[test]
fn frames_of_a_started_program_are_the_interpreters_own() {
    let rubies = rubies();
    if rubies.is_empty() {
        return skip("no Ruby that memprof knows is installed");
    }
    for (version, path) in rubies {
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
        compare(&version, &m, &marks);
    }
}

#[test]
fn frames_of_a_running_program_are_the_interpreters_own() {
    let rubies = rubies();
    if rubies.is_empty() {
        return skip("no Ruby that memprof knows is installed");
    }
    for (version, path) in rubies {
        let mut program = Command::new(&path)
            .args([WORKLOAD, "wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "waits");
        let m = Memprof::attach(Pid(program.id()), OPTIONS);
        let mut stdin = program.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        let lines = lines.map(Result::unwrap).take_while(|line| line != "ready");
        let marks: Vec<Mark> = lines
            .map(|line| serde_json::from_str(&line).unwrap())
            .collect();
        compare(&version, &m, &marks);
        drop(stdin);
        program.wait().unwrap();
    }
}

/// Not even if it uses up the attempts to find the execution context before the interpreter's thread has its first stack.
#[test]
fn a_thread_that_ruby_does_not_know_hides_no_functions() {
    const STRANGERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/strangers.rb");
    let rubies = rubies();
    if rubies.is_empty() {
        return skip("no Ruby that memprof knows is installed");
    }
    for (version, path) in rubies {
        interpreted::a_stranger_hides_no_functions(&version, &path, "ruby", STRANGERS);
    }
}

#[test]
fn off_reads_no_frames() {
    let Some((_, path)) = rubies().into_iter().next() else {
        return skip("no Ruby that memprof knows is installed");
    };
    let command = [path.to_str().unwrap(), WORKLOAD];
    let options = [OPTIONS, &["--ruby", "off"]].concat();
    let (m, mut lines) = Memprof::start_command(&options, &command);
    while lines.line() != "ready" {}
    let saved = saved_as_the_kernel_says("off", &m);
    let stacks: Vec<_> = saved.by_source("ruby").into_keys().collect();
    assert_eq!(stacks, [Vec::new()]);
}

/// The stacks of a target that only claims to be Ruby.
#[test]
fn a_lying_target_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("lying_ruby");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/lying_ruby.c");
    let compiled = Command::new("cc")
        .args(["-O1", "-rdynamic", source, "-o"])
        .arg(&program)
        .status()
        .expect("cc is needed for this test");
    assert!(compiled.success());
    for mode in ["true", "cycle", "wild", "huge", "deep", "endless"] {
        let command = [program.to_str().unwrap(), mode];
        let (m, mut lines) = Memprof::start_command(&["--stacks", "all"], &command);
        assert_eq!(lines.line(), "ready", "{mode}");
        let saved = saved_as_the_kernel_says(mode, &m);
        let by_ruby = saved.by_source("ruby");
        let most = by_ruby.into_iter().max_by_key(|(_, bytes)| *bytes);
        let (ruby, bytes) = most.unwrap();
        assert!(bytes >= 16 << 20, "{mode}: {bytes}");
        let names: Vec<&str> = ruby.iter().map(|(name, ..)| name.as_str()).collect();
        match mode {
            // The tags have no end, or more than there are calls.
            "true" | "cycle" => {
                let frame = ("name".to_owned(), "name".to_owned(), 7);
                assert_eq!(ruby, [frame.clone(), frame], "{mode}");
            }
            // No call of the evaluator ends the list, so none of it has a place.
            "wild" | "endless" => {
                assert_eq!(names, [""; 0], "{mode}");
                let lost = m.lost();
                assert!(
                    lost.iter().any(|row| row.contains("not merged")),
                    "{mode}: {lost:?}"
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
                assert_eq!(names.len(), 257, "{names:?}");
                assert_eq!(names[..256], ["name"; 256]);
                assert_eq!(names[256..], ["[more Ruby frames]"]);
            }
        }
    }
}
