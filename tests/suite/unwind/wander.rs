//! Walks that continue from cached ones, compared with a program that knows its own stacks.
//!
//! Needs root and `cc`.

use std::collections::BTreeMap;

use super::chains::{compile, source};
use super::results::profile;

const PAGES: u64 = 4096;
const THREADS: u64 = 2;

/// Bytes by path of the program's own functions.
type Paths = BTreeMap<String, u64>;

/// Reads the program's output: a line for each page.
fn truth(lines: &str) -> Paths {
    let mut paths = Paths::new();
    for path in lines.lines() {
        *paths.entry(path.to_owned()).or_default() += 4096;
    }
    paths
}

#[test]
fn every_page_stands_under_its_own_path() {
    // No lazy binding: the dynamic loader would touch its own pages at the first call of each function.
    let flags = ["-Wall", "-Wextra", "-Wl,-z,now"];
    let program =
        compile("cc", "wander", &source("wander.c"), &flags).expect("cc is needed for this test");
    // Different paths in every run; the printed seed repeats one.
    let seed = std::process::id().to_string();
    println!("seed {seed}");
    let written = tempfile::NamedTempFile::new().unwrap();
    let command = [
        program.to_str().unwrap(),
        written.path().to_str().unwrap(),
        &seed,
        &PAGES.to_string(),
    ];
    let found = profile(&["--kind", "anon"], &command);

    let truth = truth(&std::fs::read_to_string(written.path()).unwrap());
    assert_eq!(truth.values().sum::<u64>(), THREADS * PAGES * 4096);
    assert!(truth.len() > 1000, "{} paths", truth.len());
    let mut seen = Paths::new();
    for (frames, bytes) in &found.stacks {
        if frames.iter().any(|f| f == "rehearse") {
            continue;
        }
        let own: Vec<&str> = frames
            .iter()
            .map(String::as_str)
            .filter(|f| f.starts_with("wander_"))
            .collect();
        if !own.is_empty() {
            *seen.entry(own.join(";")).or_default() += bytes;
        }
    }
    for (path, bytes) in &truth {
        assert_eq!(seen.get(path), Some(bytes), "{path}, seed {seed}");
    }
    assert_eq!(seen.len(), truth.len(), "seed {seed}");
}
