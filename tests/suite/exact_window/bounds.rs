//! Filters, the bound of the live heap, and the end of the window.

use std::process::{Command, Stdio};

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::wait_until;
use crate::common::workload::{Workload, program};
use crate::exact_window::below;
use crate::exact_window::calls::start;

#[test]
fn sizes_and_first_calls_can_be_left_out() {
    let (m, mut lines) = start(&["--min-size", "30", "--max-size", "100"]);
    lines.tell("all");
    let functions = ["by_malloc", "by_calloc", "in_handler", "by_strdup"];
    assert_eq!(below(&m, "alloc_objects", functions), [1000, 0, 10, 0]);
    let (m, mut lines) = start(&["--skip", "5000"]);
    lines.tell("hold 10000 24");
    let [counted] = below(&m, "alloc_objects", ["hold"]);
    // The program's start makes a few calls, too.
    assert!((5000..5200).contains(&counted), "{counted}");
}

#[test]
fn one_call_of_n_stands_for_all_with_its_error() {
    let (m, mut lines) = start(&["--every", "10"]);
    lines.tell("hold 100000 24");
    let reply = m.get("/v2/functions?kind=alloc_space&limit=10000").json();
    let mut rows = reply["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["function"] == "hold").unwrap();
    let (figure, error) = (
        row["total"].as_u64().unwrap(),
        row["total_error"].as_u64().unwrap(),
    );
    let off = figure.abs_diff(2_400_000);
    assert!(
        error > 0 && error < 120_000 && off < 6 * error,
        "{figure} ± {error}"
    );
}

/// What does not fit into the live heap is counted as lost, and is in no figure of it.
#[test]
fn the_live_heap_is_bounded() {
    let program = program("every_call");
    let mut command = Command::new(BINARY);
    command
        .env("MEMPROF_TABLE_SIZES", "exact_blocks=5000")
        .args([
            "--listen",
            "127.0.0.1:0",
            "--stacks",
            "all",
            "--heap=exact",
            "--duration",
            "600",
            "--",
        ])
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut m = Memprof::spawn_as(&mut command);
    let mut lines = crate::common::workload::Lines::new(&mut m.child);
    lines.tell("hold 20000 24");
    assert_eq!(below(&m, "alloc_objects", ["hold"]), [20_000]);
    let [live] = below(&m, "inuse_objects", ["hold"]);
    assert!((4900..=5000).contains(&live), "{live}");
    let lost = m.lost();
    let counted = lost
        .iter()
        .find(|row| row.contains("not in the live heap"))
        .unwrap();
    // Other functions have lost a few, too.
    let counted = counted.split(&[':', ','][..]).nth(1).unwrap();
    let counted: u64 = counted.parse().unwrap();
    assert!((0..50).contains(&(counted - (20_000 - live))), "{lost:?}");
    lines.tell("release 20000");
    assert_eq!(below(&m, "inuse_objects", ["hold"]), [0]);
}

#[test]
fn it_ends_by_itself_and_the_process_goes_on() {
    let mut workload = Workload::start(&program("every_call"));
    let args = ["--heap=exact", "--duration", "1s", "--no-server", "--pid"];
    let pid = workload.pid().to_string();
    let out = crate::common::memprof::run(&[&args[..], &[pid.as_str()]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("calls of allocation functions"), "{said}");
    assert_eq!(traps(&workload), 0);
    workload.lines.tell("all");
    workload.end();
}

#[test]
fn a_killed_memprof_leaves_no_trap() {
    let mut workload = Workload::start(&program("every_call"));
    let m = Memprof::attach(workload.pid(), &["--heap=exact", "--duration", "600"]);
    wait_until(|| traps(&workload) > 0);
    drop(m);
    wait_until(|| traps(&workload) == 0);
    workload.lines.tell("all");
    workload.end();
}

/// Number of bytes in which the code of libc in a process differs from its file: traps.
fn traps(workload: &Workload) -> usize {
    use std::os::unix::fs::FileExt;
    let pid = workload.pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps
        .lines()
        .find(|l| l.contains("/libc.so") && l.contains(" r-xp "))
        .unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, end) = words[0].split_once('-').unwrap();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let (start, end, offset) = (number(start), number(end), number(words[2]));
    let read = |path: &str, at: u64| {
        let mut bytes = vec![0; (end - start) as usize];
        let file = std::fs::File::open(path).unwrap();
        let got = file.read_at(&mut bytes, at).unwrap();
        bytes.truncate(got);
        bytes
    };
    let memory = read(&format!("/proc/{pid}/mem"), start);
    let file = read(words[5], offset);
    memory.iter().zip(&file).filter(|(a, b)| a != b).count()
}
