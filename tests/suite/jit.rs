//! Names of JIT code: perf maps and jitdump files, of a test program that reuses one address, and of real
//! runtimes.
//!
//! Needs root and `cc`; for parts of it `node`, or a `python3.12` or later.

mod hostile;
mod runtimes;
mod same_address;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::common::memprof::BINARY;

const PAGE: u64 = 4096;

/// A command under memprof, and the bytes of each of its stacks, outermost frame first.
struct Recorded {
    output: Output,
    dir: TempDir,
    stacks: Vec<(Vec<String>, u64)>,
}

/// Runs a command under memprof with these options, in a directory of its own; it kills itself at its end.
fn record(options: &[&str], command: &[&str]) -> Recorded {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new(BINARY)
        .args([
            "--no-server",
            "--stacks",
            "all",
            "--output",
            "out.folded",
            "--output",
            "out.memprof.json",
        ])
        .args(options)
        .arg("--")
        .args(command)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stacks = folded(&dir.path().join("out.folded"), &output);
    Recorded {
        output,
        dir,
        stacks,
    }
}

fn folded(path: &Path, of: &Output) -> Vec<(Vec<String>, u64)> {
    let said = String::from_utf8_lossy(&of.stderr);
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}: {said}", path.display()));
    parse(&text)
}

fn parse(folded: &str) -> Vec<(Vec<String>, u64)> {
    let stack = |line: &str| {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        let frames = stack.split(';').map(str::to_owned).collect();
        (frames, bytes.parse().unwrap())
    };
    folded.lines().map(stack).collect()
}

impl Recorded {
    /// The bytes of each function `fN`, by N, and those of code without a name.
    fn by_function(&self) -> (BTreeMap<u64, u64>, u64) {
        by_function(&self.stacks)
    }

    /// The same, opened again with these options.
    fn opened(&self, options: &[&str]) -> Recorded {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let output = Command::new(BINARY)
            .arg("open")
            .arg(self.dir.path().join("out.memprof.json"))
            .args(["--output", "again.folded"])
            .args(options)
            .current_dir(dir.path())
            .output()
            .unwrap();
        let stacks = folded(&dir.path().join("again.folded"), &output);
        Recorded {
            output,
            dir,
            stacks,
        }
    }

    /// What memprof says at its end.
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
            + &String::from_utf8_lossy(&self.output.stdout)
    }
}

/// N of a function `fN`.
fn number(frame: &str) -> Option<u64> {
    frame.strip_prefix('f')?.parse().ok()
}

fn by_function(stacks: &[(Vec<String>, u64)]) -> (BTreeMap<u64, u64>, u64) {
    let (mut named, mut nameless) = (BTreeMap::new(), 0);
    for (frames, bytes) in stacks {
        match frames.iter().find_map(|f| number(f)) {
            Some(n) => *named.entry(n).or_default() += bytes,
            None if frames.iter().any(|f| f == "[JIT]") => nameless += bytes,
            None => {}
        }
    }
    (named, nameless)
}
