//! `memprof heap --by-stack`: what commands forgot to free, by the stacks that allocated it.

use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::common::binary::{Ended, MEMPROF, memprof, run};
use crate::common::process::{LIMIT, eventually, signal, state};
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::heap::glibc::compiled;
use crate::heap::types;
use crate::heap::unreachable::nearly_all;
use memprof_heap::sampler::{Library, Options};
use memprof_sys::ids::Pid;

/// A right estimate is further away than so many standard errors in one of two million cases.
const ERRORS: f64 = 5.1;

/// What a command said before the report, and the report.
fn parts(ended: &Ended) -> (&str, Value) {
    let start = match ended.stdout.starts_with("{\n") {
        true => 0,
        false => ended.stdout.find("\n{\n").expect("there is a report") + 1,
    };
    let (own, report) = ended.stdout.split_at(start);
    (own, serde_json::from_str(report).unwrap())
}

/// Looks at a command by stack at its end.
#[track_caller]
fn at_end(interval: &str, command: &[&str]) -> (String, Value) {
    at_end_by(&mut Command::new(MEMPROF), interval, command)
}

/// The same by a command that is memprof, or executes it.
#[track_caller]
fn at_end_by(memprof: &mut Command, interval: &str, command: &[&str]) -> (String, Value) {
    memprof.args(["heap", "--by-stack", "--format", "json", "--top", "1000"]);
    memprof
        .args(["--heap-interval", interval, "--"])
        .args(command);
    let ended = run(memprof);
    ended.must(0, &[]);
    let (own, report) = parts(&ended);
    adds_up(&report);
    (own.to_owned(), report)
}

fn rows<'a>(of: &'a Value, list: &str) -> &'a [Value] {
    of[list].as_array().unwrap()
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap()
}

/// All rows are all of the process's anonymous memory, as the kernel counts it.
#[track_caller]
fn adds_up(report: &Value) {
    let by_stack = &report["by_stack"];
    let sum =
        |list: &str, of: fn(&Value) -> u64| -> u64 { rows(by_stack, list).iter().map(of).sum() };
    let held = sum("rows", |row| {
        let parts = ["resident", "pinned", "unreachable"].map(|key| number(&row[key]["bytes"]));
        parts.iter().sum()
    });
    let free = sum("free_pages", |row| number(&row["resident"]));
    let rest = sum("rest", |row| {
        number(&row["resident"]["bytes"]) + number(&row["pinned"])
    });
    let all = held + number(&by_stack["left_out_bytes"]) + free + rest;
    assert_eq!(
        [all, number(&by_stack["total"])],
        [0, 1].map(|n| number(&report["kernel"][n])),
        "{by_stack:#}"
    );
}

/// What was forgotten below a function.
#[derive(Debug, Default)]
struct Leaks {
    allocations: u64,
    requested: u64,
    /// Those that nothing leads to.
    heads: u64,
    /// The variances of the first two.
    variance: [f64; 2],
}

fn leaks(report: &Value, function: &str) -> Leaks {
    let mut all = Leaks::default();
    for row in rows(&report["by_stack"], "leaks") {
        let mut frames = row["stack"].as_str().unwrap().split(';');
        if !frames.any(|frame| frame == function) {
            continue;
        }
        let allocations = number(&row["allocations"]["number"]);
        all.allocations += allocations;
        all.requested += number(&row["requested"]["bytes"]);
        all.heads += u64::from(row["head"]["kind"] == "itself") * allocations;
        for (sum, key) in all.variance.iter_mut().zip(["allocations", "requested"]) {
            *sum += (number(&row[key]["error"]) as f64).powi(2);
        }
    }
    all
}

/// Each allocation is a sample: numbers and bytes are exact.
#[track_caller]
fn are_exact(report: &Value, function: &str, [blocks, bytes, heads]: [u64; 3]) {
    let by_stack = &report["by_stack"];
    assert_eq!(by_stack["every"], true);
    assert_eq!(number(&by_stack["samples"]["lost"]), 0, "{by_stack:#}");
    let found = leaks(report, function);
    assert_eq!(found.variance, [0.0; 2], "{found:?}");
    // A number in memory may be the address of a block; then what it leads to is reachable, too.
    assert!(
        nearly_all([found.allocations, found.heads], [blocks, heads]),
        "{blocks} blocks, {heads} heads: {found:?} {by_stack:#}"
    );
    let per_block = found.requested as f64 / bytes as f64;
    assert!(
        found.requested == bytes || found.allocations < blocks && per_block > 0.99,
        "{bytes} bytes: {found:?}"
    );
    // Nobody else forgot anything.
    let all = number(&report["unreachable"]["chunks"]);
    assert_eq!(found.allocations, all, "{by_stack:#}");
}

#[test]
fn what_a_c_program_forgot_is_under_the_stack_that_allocated_it() {
    let linked = [program("leaks"), compiled("leaks", &["-static"])];
    for (leaks, interval) in linked.iter().flat_map(|leaks| [(leaks, "0"), (leaks, "1")]) {
        let (said, report) = at_end(interval, &[leaks.to_str().unwrap()]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let truth = ["blocks", "bytes", "heads"].map(|key| number(&said[key]));
        are_exact(&report, "forget", truth);
        // What nothing forgot has no row there.
        assert_eq!(self::leaks(&report, "hold").allocations, 0);
    }
}

/// The probe has the kernel's own clock, whatever memprof's is.
#[test]
fn samples_are_found_in_another_time_namespace() {
    if !Path::new("/proc/self/timens_offsets").exists() {
        return skip("this kernel has no time namespaces");
    }
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let leaks = program("leaks");
    // Before the machine has started, and long after now.
    for ahead in [-(uptime as i64) / 2, 100_000] {
        let ahead = ahead.to_string();
        let mut unshare = Command::new("unshare");
        unshare.args(["--time", "--fork", "--monotonic", &ahead, MEMPROF]);
        let (said, report) = at_end_by(&mut unshare, "0", &[leaks.to_str().unwrap()]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let truth = ["blocks", "bytes", "heads"].map(|key| number(&said[key]));
        are_exact(&report, "forget", truth);
    }
}

#[test]
fn what_a_cpp_program_forgot_too() {
    let Some(classes) = types::compiled("c++", "classes.cpp", &["-O1", "-pthread"]) else {
        return;
    };
    let (_, report) = at_end("0", &[classes.to_str().unwrap()]);
    // Five cats, and a list of 40 ducks.
    are_exact(&report, "forget()", [45, 5 * 56 + 40 * 32, 6]);
}

#[test]
fn what_a_rust_program_forgot_too() {
    let Some(boxes) = types::compiled("rustc", "boxes.rs", &["--edition=2021"]) else {
        return;
    };
    let (_, report) = at_end("0", &[boxes.to_str().unwrap()]);
    // A boxed box and a vector, five times.
    are_exact(&report, "boxes::forget", [15, 5 * (16 + 96 + 500), 10]);
}

/// At the usual interval the figures are estimates, as far off as they say.
#[test]
fn estimates_are_as_far_off_as_they_say() {
    let owners = program("owners");
    let mut commands = NamedTempFile::new().unwrap();
    commands.write_all(b"fill\nleak\n").unwrap();
    let script = "exec \"$0\" <\"$1\"";
    let input = commands.path().to_str().unwrap();
    let command = ["sh", "-c", script, owners.to_str().unwrap(), input];
    for interval in ["512KiB", "16KiB"] {
        let (_, report) = at_end(interval, &command);
        let by_stack = &report["by_stack"];
        assert_eq!(
            (&by_stack["every"], &by_stack["from_start"]),
            (&false.into(), &true.into())
        );
        let found = leaks(&report, "leaks");
        let [number, bytes] = found.variance.map(f64::sqrt);
        let off = [
            found.allocations.abs_diff(40_000) as f64 / (number + 1.0),
            found.requested.abs_diff(40_000 * 300) as f64 / (bytes + 1.0),
        ];
        println!("{interval}: {found:?}: {off:?}");
        assert!(off.iter().all(|off| *off < ERRORS), "{found:?} {off:?}");
        assert!(
            found.allocations > 0 && bytes < 40_000.0 * 300.0,
            "{found:?}"
        );
    }
}

/// If only some allocations are samples, the library does not remember so many: the others have no stack, but are counted, and
/// the sums are true.
#[test]
fn very_many_are_known_and_what_is_not_remembered_is_counted() {
    let owners = program("owners");
    let mut commands = NamedTempFile::new().unwrap();
    commands.write_all(b"fill\nleak\n").unwrap();
    let script = "exec \"$0\" <\"$1\"";
    let input = commands.path().to_str().unwrap();
    let command = ["sh", "-c", script, owners.to_str().unwrap(), input];
    let (_, report) = at_end("0", &command);
    are_exact(&report, "leaks", [40_000, 40_000 * 300, 10_000]);
    // Nearly all of them are samples.
    let (_, report) = at_end("8", &command);
    let by_stack = &report["by_stack"];
    let [joined, lost] = ["joined", "lost"].map(|key| number(&by_stack["samples"][key]));
    let all = 100_000 + 20_000 + 200 + 3 + 40_000;
    let samples = all - 2_000..all + 100;
    assert!(samples.contains(&(joined + lost)), "{by_stack:#}");
    assert!(lost > 0 && joined > 50_000, "{by_stack:#}");
    assert_eq!(number(&report["unreachable"]["chunks"]), 40_000);
    let rest = rows(by_stack, "rest").iter();
    let rest = rest.filter(|row| row["kind"] == "not_sampled" && row["unreachable"] == true);
    let rest: u64 = rest.map(|row| number(&row["resident"]["bytes"])).sum();
    let found = rows(by_stack, "leaks").iter();
    let found: u64 = found.map(|row| number(&row["unreachable"]["bytes"])).sum();
    assert!(rest > 0, "{by_stack:#}");
    assert_eq!(rest + found, 40_000 * 320);
}

#[test]
fn text_and_html_have_them_too() {
    let leaks = program("leaks");
    let shown = |format: &str| {
        let options = ["--heap-interval", "0", "--format", format, "--"];
        let line = [
            &["heap", "--by-stack"],
            &options[..],
            &[leaks.to_str().unwrap()],
        ];
        let ended = memprof(&line.concat());
        ended.must(0, &[]);
        ended.stdout
    };
    let text = shown("text");
    for part in [
        "each allocation was a sample",
        "Unreachable by stack, in bytes",
        "  take (leaks.c:40); nothing leads to them, as 0x",
        "anonymous memory: the sum of resident, pinned and unreachable\n",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let html = shown("html");
    let data = html.split_once("id=\"saved\"").unwrap().1;
    let data = data.split_once('>').unwrap().1.split_once('<').unwrap().0;
    let data = STANDARD.decode(data).unwrap();
    let mut saved = String::new();
    let mut whole = flate2::read::GzDecoder::new(&*data);
    whole.read_to_string(&mut saved).unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    let leak = &saved["by_stack"]["leaks"][0]["stack"];
    assert!(leak.as_str().unwrap().contains(";forget;"), "{leak}");
}

/// The rows of a list whose stack has a function of this name: of each, the functions, outermost first, with their places.
fn with_places<'a>(
    by_stack: &'a Value,
    list: &str,
    function: &str,
) -> Vec<Vec<(&'a str, &'a str)>> {
    let rows = rows(by_stack, list).iter().map(|row| {
        let names: Vec<&str> = row["stack"].as_str().unwrap().split(';').collect();
        let places = row["places"].as_array().unwrap();
        // Memory without a known stack has no places.
        assert!([0, names.len()].contains(&places.len()), "{row:#}");
        let places = places
            .iter()
            .map(|place| place.as_str().unwrap_or_default());
        names.into_iter().zip(places).collect::<Vec<_>>()
    });
    let has = |row: &Vec<(&str, &str)>| row.iter().any(|(name, _)| *name == function);
    rows.filter(has).collect()
}

/// As elsewhere, each frame has its source line, and inlined functions are frames unless that is turned off.
#[test]
fn frames_have_lines_and_inlined_functions() {
    let dir = tempfile::tempdir().unwrap();
    let [source, binary] = ["lines.c", "lines"].map(|name| dir.path().join(name));
    let text = "#include <stdlib.h>\n\
        static inline __attribute__((always_inline)) void *inner(void) { return malloc(1000); }\n\
        __attribute__((noinline)) void outer(void) {\n\
        \t((volatile char *)inner())[0] = 1;\n\
        }\n\
        int main(void) {\n\
        \tfor (int i = 0; i < 50; i++)\n\
        \t\touter();\n\
        }\n";
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    let cc = cc.args(["-g", "-O1", "-o"]).args([&binary, &source]);
    assert!(cc.status().unwrap().success());
    let binary = binary.to_str().unwrap();

    let (_, report) = at_end("0", &[binary]);
    let found = with_places(&report["by_stack"], "leaks", "outer");
    let wanted = [
        ("main", "lines.c:8"),
        ("outer", "lines.c:4"),
        ("inner", "lines.c:2"),
    ];
    assert!(found.iter().any(|row| row.ends_with(&wanted)), "{found:?}");

    let shown = |more: &[&str]| {
        let line = ["heap", "--by-stack", "--heap-interval", "0"];
        let ended = memprof(&[&line, more, &["--", binary]].concat());
        ended.must(0, &[]);
        ended.stdout
    };
    let text = shown(&[]);
    for part in [
        "  inner (lines.c:2)\n",
        "   outer (lines.c:4)\n",
        "    main (lines.c:8)\n",
        "  inner (lines.c:2); nothing leads to them, as 0x",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let text = shown(&["--no-inline"]);
    assert!(text.contains("  outer (lines.c:"), "{text}");
    assert!(!text.contains("inner"), "{text}");
}

#[test]
fn frames_of_python_have_lines() {
    let Some(python) = pythons().into_values().next() else {
        return skip("no CPython that memprof reads");
    };
    let mut script = tempfile::Builder::new().suffix(".py").tempfile().unwrap();
    let text = "import os\n\
        kept = []\n\
        def keep():\n\
        \x20   kept.append(bytearray(300_000))\n\
        for _ in range(20):\n\
        \x20   keep()\n\
        os._exit(0)\n";
    script.write_all(text.as_bytes()).unwrap();
    let path = script.path();
    let file = path.file_name().unwrap().to_str().unwrap();
    let (_, report) = at_end("0", &[python.to_str().unwrap(), path.to_str().unwrap()]);
    let found = with_places(&report["by_stack"], "rows", "keep");
    let [outer, inner] = [6, 4].map(|line| format!("{file}:{line}"));
    let wanted = [("<module>", &*outer), ("keep", &*inner)];
    assert!(found.iter().any(|row| row.ends_with(&wanted)), "{found:?}");
}

#[test]
fn the_exit_status_is_the_command_s_with_stacks_too() {
    for (script, status) in [
        ("exit 3", 3),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let ended = memprof(&["heap", "--by-stack", "--", "sh", "-c", script]);
        ended.must(status, &[]);
        assert!(ended.stdout.contains("\nBy stack, in KiB"), "{ended:?}");
    }
    let missing = ["heap", "--by-stack", "--", "/no/such/command"];
    memprof(&missing).must(127, &["cannot run"]);
}

/// Also where the last thread is not the first one.
#[test]
fn the_last_thread_s_memory_is_looked_at() {
    let relay = program("relay");
    let (said, report) = at_end("0", &[relay.to_str().unwrap()]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let found = leaks(&report, "forget");
    assert_eq!(
        found.allocations,
        number(&said["blocks"]),
        "{found:?} {report:#}"
    );
}

#[test]
fn after_a_time_the_command_runs_on() {
    let script = "echo $$; exec sleep 300 > /dev/null 2>&1";
    let options = [
        "heap",
        "--by-stack",
        "--at",
        "0.5",
        "--format",
        "json",
        "--",
    ];
    let ended = memprof(&[&options[..], &["sh", "-c", script]].concat());
    // The loader of what it executes would miss the file.
    ended.must(0, &["stays: processes still use it"]);
    let (pid, report) = parts(&ended);
    let pid = Pid(pid.trim().parse().unwrap());
    assert_eq!(
        (&report["comm"], &report["pid"]),
        (&"sleep".into(), &pid.0.into())
    );
    adds_up(&report);
    assert_eq!(state(pid), 'S');
    signal(pid, libc::SIGKILL);
}

#[test]
fn what_cannot_be_sampled_is_told_so() {
    let leaks = compiled("leaks", &["-static", "-s"]);
    let ended = memprof(&["heap", "--by-stack", "--", leaks.to_str().unwrap()]);
    ended.must(0, &["no allocation is sampled"]);
    assert!(
        ended
            .stdout
            .contains("\nBy stack, in KiB: estimated from 0 live samples"),
        "{ended:?}"
    );
}

#[test]
fn a_process_without_a_sampler_is_told_so() {
    let workload = Workload::start(&program("leaks"));
    let pid = workload.pid().to_string();
    let process = ["heap", "--by-stack", "--pid", &pid];
    memprof(&process).must(2, &["requires --for SECS"]);
    let advice = format!("`memprof attach-heap --pid {pid}`");
    let said = ["has no sampler of allocations", &advice];
    memprof(&[&process[..], &["--for", "60"]].concat()).must(1, &said);
    workload.end();
}

/// What was allocated before is in rows of its own.
#[test]
fn a_process_with_a_sampler_is_sampled_for_a_time() {
    let options = Options {
        interval: 0,
        children: false,
        seed: NonZeroU64::new(1),
    };
    let library = Library::place(&options).unwrap();
    let mut command = Command::new(program("owners"));
    let mut workload = Workload::start_as(command.env("LD_PRELOAD", library.path()));
    workload.lines.tell("fill");
    let pid = workload.pid().to_string();
    let said = NamedTempFile::new().unwrap();
    let options = ["--for", "5", "--format", "json", "--top", "1000"];
    let mut memprof = Command::new(MEMPROF);
    memprof
        .args(["heap", "--by-stack", "--pid", &pid])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(said.reopen().unwrap());
    let memprof = memprof.spawn().unwrap();
    eventually(LIMIT, "it samples", || {
        let said = std::fs::read_to_string(said.path()).unwrap();
        said.contains("is sampled for 5 s")
    });
    workload.lines.tell("leak");
    let ended = memprof.wait_with_output().unwrap();
    assert!(ended.status.success());
    let ended = Ended {
        status: ended.status,
        stdout: String::from_utf8(ended.stdout).unwrap(),
        stderr: String::new(),
    };
    let (_, report) = parts(&ended);
    adds_up(&report);
    let by_stack = &report["by_stack"];
    assert_eq!(
        (&by_stack["every"], &by_stack["from_start"]),
        (&false.into(), &false.into())
    );
    let found = leaks(&report, "leaks");
    // An address may be left on the stack, which leads to four of them.
    let all = number(&report["unreachable"]["chunks"]);
    assert!(nearly_all([all, 0], [40_000, 0]), "{all}");
    assert_eq!(
        (found.allocations, found.requested),
        (all, all * 300),
        "{by_stack:#}"
    );
    let before = rows(by_stack, "rest")
        .iter()
        .filter(|row| row["kind"] == "before_sampling");
    let before: u64 = before.map(|row| number(&row["resident"]["bytes"])).sum();
    assert!(before > 100_000 * 48, "{by_stack:#}");
    assert!(Path::new(library.path()).exists());
    workload.end();
}

#[test]
fn wrong_lines_of_by_stack_are_told_so() {
    memprof(&["heap", "--no-inline", "--", "true"]).must(2, &["--by-stack"]);
    memprof(&["heap", "--heap-interval", "0", "--", "true"]).must(2, &["--by-stack"]);
    memprof(&["heap", "--by-stack", "--for", "3", "--", "true"]).must(2, &["cannot be used with"]);
    let pid = std::process::id().to_string();
    let line = [
        "heap",
        "--by-stack",
        "--for",
        "3",
        "--heap-interval",
        "0",
        "--pid",
        &pid,
    ];
    memprof(&line).must(2, &["cannot be used with"]);
}
