//! Every frame of known programs, compared with gdb's unwinder at the same place in the same run.
//!
//! Needs root, `cc` and gdb. The test compares the files and offsets of all calls, from a leaf function's caller to the
//! outermost frame. `chains` checks that they are the right functions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::chains::{self, DEPTH_LIMIT};
use super::packaged_programs::installed;
use crate::common::memprof::BINARY;

/// The callers of a leaf function, innermost first: file and offset.
type Callers = Vec<(String, u64)>;
/// The distinct caller chains of each leaf function.
type Leaves = BTreeMap<String, BTreeSet<Callers>>;

/// The function's name, without its scope, parameters and hash.
fn short(function: &str) -> String {
    let name = function.split('(').next().unwrap_or_default();
    let mut parts = name
        .rsplit("::")
        .filter(|p| p.len() != 17 || !p.starts_with('h'));
    parts.next().unwrap_or_default().to_owned()
}

/// gdb's stacks.
fn by_gdb(command: &[&str], follow: Option<&str>) -> Leaves {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-q", "-batch", "-x"]);
    gdb.arg(chains::source("frames.py"))
        .arg("--args")
        .args(command);
    gdb.envs(follow.map(|f| ("FOLLOW", f)));
    let out = gdb.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let mut leaves = Leaves::new();
    let mut open: Option<(String, Callers)> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), &mut open) {
            (["LEAF", name @ ..], _) => open = Some((short(&name.concat()), Vec::new())),
            (["CALLER", file, offset], Some((_, callers))) => {
                callers.push(((*file).to_owned(), u64::from_str_radix(offset, 16).unwrap()));
            }
            (["END", _], _) => {
                let (leaf, callers) = open.take().unwrap();
                leaves.entry(leaf).or_default().insert(callers);
            }
            _ => {}
        }
    }
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!leaves.is_empty(), "gdb saw nothing:\n{text}\n{said}");
    leaves
}

/// memprof's stacks.
fn by_memprof(command: &[&str]) -> Leaves {
    let out = tempfile::NamedTempFile::with_suffix(".memprof.json").unwrap();
    let ended = Command::new(BINARY)
        .args(["--no-server", "--follow-forks", "--at", "end", "-o"])
        .arg(out.path())
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{command:?}: {said}");
    leaves_of(&std::fs::read_to_string(out.path()).unwrap())
}

fn leaves_of(profile: &str) -> Leaves {
    let profile: Value = serde_json::from_str(profile).unwrap();
    let modules = &profile["modules"];
    let mut leaves = Leaves::new();
    for stack in profile["stacks"].as_array().unwrap() {
        let frames = stack["frames"].as_array().unwrap().iter();
        let path = frames.map(|at| &profile["frames"][at.as_u64().unwrap() as usize]);
        // Up to the first frame whose file is not known.
        let path: Vec<&Value> = path.take_while(|frame| frame["module"].is_u64()).collect();
        let is_leaf = |frame: &&Value| function(frame).ends_with("_leaf");
        let Some(leaf) = path.iter().position(is_leaf) else {
            continue;
        };
        let callers = path[leaf + 1..].iter().map(|frame| {
            let module = &modules[frame["module"].as_u64().unwrap() as usize];
            let offset = frame["offset"].as_u64().unwrap();
            (module["name"].as_str().unwrap().to_owned(), offset)
        });
        let seen = leaves.entry(function(path[leaf])).or_default();
        seen.insert(callers.collect());
    }
    leaves
}

fn function(name: &Value) -> String {
    short(name["function"].as_str().unwrap_or_default())
}

/// The part of a stack that memprof keeps: the innermost frames.
fn cut(callers: &Callers) -> Callers {
    callers.iter().take(DEPTH_LIMIT - 1).cloned().collect()
}

/// Compares both views of a program. gdb must see at least `least` leaves.
#[track_caller]
fn agree(command: &[&str], follow: Option<&str>, least: usize) {
    if !installed("gdb") {
        return;
    }
    let (theirs, ours) = (by_gdb(command, follow), by_memprof(command));
    let mut frames = 0;
    for (leaf, callers) in &theirs {
        let callers: BTreeSet<Callers> = callers.iter().map(cut).collect();
        frames += callers.iter().map(Vec::len).sum::<usize>();
        if command.contains(&chains::PATIENT) {
            // A library's first stacks are truncated until its table is published.
            let ours = ours.get(leaf).cloned().unwrap_or_default();
            assert!(ours.is_superset(&callers), "{command:?}: {leaf}: {ours:?}");
        } else {
            assert_eq!(ours.get(leaf), Some(&callers), "{command:?}: {leaf}");
        }
    }
    println!(
        "{command:?}: {} leaves, {frames} callers: no difference",
        theirs.len()
    );
    assert!(theirs.len() >= least, "{:?}", theirs.keys());
}

/// Two libraries that are loaded and unloaded alternately at one address.
#[test]
fn libraries_that_come_and_go() {
    let files = chains::compile_plugins();
    let [program, first, second] = files.each_ref().map(|f| f.to_str().unwrap());
    agree(&[program, first, second, chains::PATIENT], None, 1);
}

/// This C library has no unwind information: both analyse its machine code, and gdb ends where it finds no function. The
/// common part must be the same.
#[test]
fn c_with_musl() {
    let Some(program) = chains::compile_chains("musl-gcc", "agree_musl", &["-static"]) else {
        return;
    };
    if !installed("gdb") {
        return;
    }
    let cache = tempfile::NamedTempFile::new().unwrap();
    let command = [program.to_str().unwrap(), cache.path().to_str().unwrap()];
    let (theirs, ours) = (by_gdb(&command, None), by_memprof(&command));
    let mut frames = 0;
    for leaf in [
        "a_leaf",
        "huge_frame_leaf",
        "realigned_leaf",
        "fault_leaf",
        "altstack_leaf",
        "tail_leaf",
    ] {
        let (Some(theirs), Some(ours)) = (theirs.get(leaf), ours.get(leaf)) else {
            panic!("{leaf}: {:?} and {:?}", theirs.keys(), ours.keys());
        };
        for callers in ours {
            frames += callers.len();
            // gdb may lack the outermost caller.
            let is_same = |theirs: &Callers| {
                let known: Vec<_> = theirs.iter().take_while(|(file, _)| file != "?").collect();
                known.len() + 1 >= callers.len()
                    && known
                        .into_iter()
                        .zip(callers)
                        .all(|(theirs, ours)| theirs == ours)
            };
            assert!(
                theirs.iter().any(is_same),
                "{leaf}: {ours:x?}, gdb: {theirs:x?}"
            );
        }
    }
    println!("musl: {frames} callers: no difference");
    assert!(frames > 110);
}

#[track_caller]
fn chains_agree(compiler: &str, name: &str, flags: &[&str]) {
    let Some(program) = chains::compile_chains(compiler, name, flags) else {
        return;
    };
    let cache = tempfile::NamedTempFile::new().unwrap();
    let (program, cache) = (program.to_str().unwrap(), cache.path().to_str().unwrap());
    agree(&[program, cache], None, 14);
    // gdb traces one process at a time.
    agree(&[program, cache], Some("vfork_case"), 1);
    agree(&[program, cache], Some("clone_case"), 1);
    agree(&[program, "fork"], Some("fork_case"), 1);
}

#[test]
fn c() {
    chains_agree("gcc", "agree_gcc", &["-Wl,-z,lazy"]);
    if installed("ld.lld") {
        chains_agree("clang", "agree_lld", &["-fuse-ld=lld"]);
    }
}

#[test]
fn c_static() {
    chains_agree("gcc", "agree_static_pie", &["-static-pie"]);
}

#[test]
fn cpp_and_rust() {
    for (compiler, name, source, least) in [
        ("g++", "agree_exceptions", "exceptions.cpp", 3),
        ("rustc", "agree_rust", "chain.rs", 1),
    ] {
        if let Some(program) = chains::compile(compiler, name, &chains::source(source), &[]) {
            agree(&[program.to_str().unwrap()], None, least);
        }
    }
}
