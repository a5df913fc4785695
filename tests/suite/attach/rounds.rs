//! The library is loaded into processes that are busy, again and again: none crashes, hangs or calculates anything wrong.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::attach::{attached, nothing_left, rounds};
use crate::common::process::{LIMIT, eventually};
use crate::common::sentinel::{sentinel, unharmed};
use crate::common::workload::{Running, Workload, program};

/// Threads that wait, calculate and allocate, and signals: no register changes, and no wait ends early.
#[test]
fn threads_notice_nothing() {
    for _ in 0..rounds() {
        notices_nothing(sentinel(2));
    }
}

pub fn notices_nothing(mut sentinel: Workload) {
    attached(sentinel.pid(), &[]);
    assert_eq!(unharmed(&mut sentinel).early, 0);
    sentinel.end();
}

/// How many blocks had the wrong contents, and how many blocks each thread has had.
pub fn figures(workload: &mut Workload) -> Vec<u64> {
    workload.lines.send("");
    let line = workload.lines.line();
    line.split(' ').map(|n| n.parse().unwrap()).collect()
}

#[test]
fn allocating_threads_go_on() {
    for _ in 0..rounds() {
        keep_their_blocks(Workload::start_with(&program("allocating_threads"), &["4"]));
    }
}

/// The program `allocating_threads`.
pub fn keep_their_blocks(mut workload: Workload) {
    eventually(LIMIT, "all allocate", || {
        figures(&mut workload)[1..].iter().all(|n| *n > 1000)
    });
    let pid = workload.pid();
    // Samples are taken meanwhile.
    attached(pid, &["--heap-interval", "1KiB"]);
    let before = figures(&mut workload);
    eventually(LIMIT, "every thread goes on", || {
        let now = figures(&mut workload);
        now.iter()
            .zip(&before)
            .skip(1)
            .all(|(now, before)| *now > before + 1000)
    });
    assert_eq!(figures(&mut workload)[0], 0, "blocks have other contents");
    nothing_left(pid);
    workload.end();
}

/// Its only thread never waits, and is in the allocator most of the time.
#[test]
fn a_loop_that_allocates_goes_on() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let binary = dir.path().join("malloc_loop");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/workloads/malloc_loop.c"
    );
    let cc = Command::new("cc")
        .args(["-O2", "-fno-builtin", source, "-o"])
        .arg(&binary)
        .status();
    assert!(cc.unwrap().success());
    for round in 0..rounds() {
        let size = ["64", "mixed"][round as usize % 2];
        let mut command = Command::new(&binary);
        let mut child = Running(command.args([size, "1000000000000"]).spawn().unwrap());
        eventually(LIMIT, "it runs", || {
            crate::attach::maps(child.pid()).contains("[heap]")
        });
        attached(child.pid(), &["--wait", "30"]);
        assert!(child.0.try_wait().unwrap().is_none());
    }
}

#[test]
fn python_goes_on() {
    const PROGRAM: &str = "
import json, sys
n = 0
while True:
    data = {str(i): [i] * (i % 50) for i in range(500)}
    assert json.loads(json.dumps(data)) == data
    n += 1
    print(n, flush=True)
";
    for _ in 0..rounds() {
        let child = Command::new("python3")
            .args(["-c", PROGRAM])
            .env("PYTHONMALLOC", "malloc")
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            return crate::common::skip::skip("there is no python3");
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = move || -> u64 { lines.next().unwrap().unwrap().parse().unwrap() };
        let child = Running(child);
        line();
        // What it prints while it is attached to stays in the pipe.
        attached(child.pid(), &["--wait", "30"]);
        let before = line();
        for n in 1..20 {
            assert_eq!(line(), before + n);
        }
    }
}
