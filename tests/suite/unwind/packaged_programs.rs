//! The share of stacks of packaged programs that are walked to their outermost frame.
//!
//! Needs root. Programs that are not installed are reported as skipped. Figures: `--nocapture`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::results::{Found, attached, first_second, profile};
use crate::common::skip::skip;
use crate::common::workload::{Lines, Running};

/// Percentage of bytes, in a running program one second after the attach.
pub const RUNNING: f64 = 99.5;
/// Percentage of bytes in a program's first second, and from its first instruction to its end.
pub const STARTED: f64 = 95.0;
/// Minimum bytes under stacks, so that the percentages are meaningful.
const LEAST: u64 = 1 << 20;

const PYTHON: &str = "/usr/bin/python3";
/// Many small objects and some large ones, by functions of C and of Python.
const BUILD: &str = "
import json, sys
print('ready', flush=True)
sys.stdin.readline()
def build(depth):
    if depth:
        return [build(depth - 1) for _ in range(4)]
    return {'key %d' % n: (n, str(n), [n] * 20) for n in range(40)}
held = build(5)
text = json.dumps(held)
held2 = json.loads(text)
words = sorted(text.split(','), key=len)
print('done', flush=True)
sys.stdin.readline()
";

#[track_caller]
pub fn check(what: &str, found: &Found, least: f64) {
    let (stacks, bytes) = found.complete();
    println!("{what}: {stacks:.2} % of stacks complete, {bytes:.3} % of bytes");
    let text: Vec<&str> = found
        .summary
        .lines()
        .skip_while(|l| *l != "Stacks:")
        .collect();
    let text: Vec<&str> = text.into_iter().take_while(|l| !l.is_empty()).collect();
    println!("{}", text.join("\n"));
    assert!(bytes >= least, "{what}: {bytes} %\n{}", found.text());
    let sum: u64 = found.stacks.iter().map(|(_, bytes)| bytes).sum();
    assert!(sum >= LEAST, "{what}: {sum} bytes\n{}", found.text());
}

/// Checks a program's first second and its whole run; returns what memprof found in the latter.
#[track_caller]
pub fn check_started(command: &[&str]) -> Found {
    let name = command[0];
    let found = first_second(command);
    check(&format!("{name}, its first second"), &found, STARTED);
    let found = profile(&[], command);
    check(&format!("{name}, from its start"), &found, STARTED);
    found
}

/// Whether a program is installed; if not, reports the test as skipped.
#[track_caller]
pub fn installed(program: &str) -> bool {
    let there = program.starts_with('/') && Path::new(program).exists()
        || std::env::var("PATH")
            .is_ok_and(|p| p.split(':').any(|d| Path::new(d).join(program).exists()));
    if !there {
        skip(format_args!("{program} is not installed"));
    }
    there
}

pub fn start(command: &mut Command) -> Running {
    Running(
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    )
}

/// Attaches to a program that prints `ready`. For each line of input it works and prints `done`.
#[track_caller]
pub fn attached_while_it_works(command: &[&str]) -> Found {
    let mut child = start(Command::new(command[0]).args(&command[1..]));
    let mut lines = Lines::new(&mut child.0);
    assert_eq!(lines.line(), "ready");
    attached(child.pid(), || {
        lines.send("");
        assert_eq!(lines.line(), "done");
    })
}

#[test]
fn python() {
    if !installed(PYTHON) {
        return;
    }
    let found = attached_while_it_works(&[PYTHON, "-c", BUILD]);
    check("python3, running", &found, RUNNING);
    // Its functions stand in the place of the interpreter's evaluator.
    assert!(found.names("<module>"), "{}", found.text());

    check_started(&[PYTHON, "-c", BUILD]);
}

#[test]
fn sqlite() {
    if !installed("sqlite3") {
        return;
    }
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n REAL);
        WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 200000)
        INSERT INTO t SELECT n, 'name ' || n, n * 1.5 FROM c;
        CREATE INDEX i ON t (name); SELECT count(*) FROM t;\n";
    let mut child = start(Command::new("sqlite3").arg(":memory:"));
    let mut lines = Lines::new(&mut child.0);
    let found = attached(child.pid(), || {
        lines.send(sql);
        assert_eq!(lines.line(), "200000");
    });
    check("sqlite3, running", &found, RUNNING);
    assert!(found.names("sqlite3"), "{}", found.text());
    lines.close();

    check_started(&["sqlite3", ":memory:", sql]);
}

#[test]
fn rustc() {
    if !installed("rustc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut source = std::fs::File::create(dir.path().join("small.rs")).unwrap();
    let types = (0..40).map(|n| {
        format!("#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)] pub struct S{n} {{ pub a: Vec<u{}>, pub b: String }}\n", 8 << (n % 4))
    });
    write!(source, "{}", types.collect::<String>()).unwrap();
    let path = dir.path().join("small.rs");
    let found = check_started(&[
        "rustc",
        "-O",
        "--crate-type=lib",
        "--out-dir",
        dir.path().to_str().unwrap(),
        path.to_str().unwrap(),
    ]);
    // The compiler passes of every crate.
    for pass in ["rustc_parse::", "rustc_expand::", "rustc_metadata::"] {
        assert!(found.names(pass), "{pass}\n{}", found.text());
    }
    let passes: std::collections::BTreeSet<&str> = found
        .stacks
        .iter()
        .flat_map(|(frames, _)| frames)
        .filter_map(|f| f.split("::").next().filter(|f| f.starts_with("rustc_")))
        .collect();
    println!("rustc's crates seen: {passes:?}");
}
