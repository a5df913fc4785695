//! A program whose functions make known calls.

use crate::common::memprof::{Memprof, run};
use crate::common::workload::{Lines, Workload, program};
use crate::exact_window::below;

const WINDOW: [&str; 3] = ["--heap=exact", "--duration", "600"];

pub fn start(args: &[&str]) -> (Memprof, Lines) {
    let program = program("every_call");
    Memprof::start_command(&[&WINDOW, args].concat(), &[program.to_str().unwrap()])
}

/// Function, allocations, bytes, live allocations, live bytes.
pub const CALLS: [(&str, [u64; 4]); 10] = [
    ("by_malloc", [1000, 100_000, 500, 50_000]),
    ("by_calloc", [100, 21_000, 100, 21_000]),
    ("by_realloc", [300, 100 * 100_030, 0, 0]),
    ("by_reallocarray", [20, 14_000, 10, 12_000]),
    ("by_aligned", [100, 20 * 5_728, 100, 20 * 5_728]),
    ("by_failing", [1, 50, 1, 50]),
    ("by_nothing", [5, 0, 5, 0]),
    ("by_strdup", [7, 63, 7, 63]),
    ("in_handler", [10, 330, 10, 330]),
    (
        "in_thread",
        [
            40_000,
            4 * 5_000 * 48 + 4 * 5_000 * 65 + 10_000,
            20_000,
            960_000,
        ],
    ),
];

#[track_caller]
fn check(m: &Memprof) {
    let functions = CALLS.map(|(function, _)| function);
    let kinds = [
        "alloc_objects",
        "alloc_space",
        "inuse_objects",
        "inuse_space",
    ];
    for (i, kind) in kinds.into_iter().enumerate() {
        assert_eq!(
            below(m, kind, functions),
            CALLS.map(|(_, known)| known[i]),
            "{kind}"
        );
    }
    // What the child did is its own.
    assert_eq!(below(m, "alloc_objects", ["in_child"]), [0]);
    assert_eq!(m.lost(), [""; 0]);
}

#[test]
fn each_function_counts_once_from_the_start() {
    let (m, mut lines) = start(&[]);
    lines.tell("all");
    check(&m);
    lines.tell("hold 1000 24");
    lines.tell("release 400");
    assert_eq!(below(&m, "inuse_objects", ["hold"]), [600]);
    assert_eq!(below(&m, "inuse_space", ["hold"]), [600 * 24]);
}

#[test]
fn each_function_counts_once_in_a_running_process() {
    let mut workload = Workload::start(&program("every_call"));
    workload.lines.tell("hold 100 40");
    let m = Memprof::attach(workload.pid(), &WINDOW);
    m.said("counting every call of ");
    // All probes are there when a report is made.
    assert_eq!(below(&m, "alloc_objects", ["hold"]), [0]);
    workload.lines.tell("all");
    check(&m);
    // Blocks from before the window are in no figure.
    workload.lines.tell("release 30000");
    assert_eq!(below(&m, "inuse_objects", ["by_malloc", "hold"]), [0, 0]);
}

#[test]
fn sizes_are_written_by_stack() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("sizes.csv");
    let (mut m, mut lines) = start(&["--sizes", file.to_str().unwrap()]);
    lines.tell("hold 300 24");
    lines.tell("hold 200 5000");
    lines.tell("hold 10 0");
    lines.close();
    assert!(m.wait().success());
    let text = std::fs::read_to_string(file).unwrap();
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some("from_bytes,to_bytes,objects,frames"));
    let rows = rows.filter(|row| row.ends_with(";main;hold;malloc"));
    let numbers: Vec<&str> = rows.map(|row| row.rsplit_once(',').unwrap().0).collect();
    assert_eq!(numbers, ["0,0,10", "16,31,300", "4096,8191,200"]);
}

#[test]
fn it_requires_a_duration_and_options_that_fit() {
    for (args, said) in [
        (&["--heap=exact"][..], "--heap=exact requires --duration"),
        (&["--heap", "--every", "3"], "require --heap=exact"),
        (
            &[
                "--heap=exact",
                "--duration",
                "1",
                "--min-size",
                "9",
                "--max-size",
                "8",
            ],
            "no allocation would be counted",
        ),
        (
            &["--heap=exact", "--duration", "1", "--heap-interval", "1MiB"],
            "sampled",
        ),
        (
            &[
                "--heap=exact",
                "--duration",
                "1",
                "--kind",
                "at_peak_space",
                "-o",
                "never.folded",
            ],
            "no earlier moment",
        ),
    ] {
        let out = run(&[args, &["--", "/bin/true"]].concat());
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}
