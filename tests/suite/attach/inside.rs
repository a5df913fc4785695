//! Allocators inside the executable: their functions are changed while threads call them, and memprof is killed meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::attach::rounds::{figures, keep_their_blocks, notices_nothing};
use crate::attach::{attach, attached, nothing_left, rounds};
use crate::common::binary::MEMPROF;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::pythons::pythons;
use crate::common::random::Random;
use crate::common::sentinel::sentinel_of;
use crate::common::workload::{Workload, program_with, program_with_musl};
use crate::samples::below;
use crate::samples::inside::{rust_program, with_allocator, with_prefixed_jemalloc};
use crate::samples::preloaded::must_be;
use crate::samples::static_programs::forms;
use memprof_sys::ids::Pid;

const LIBRARIES: [&str; 2] = ["libjemalloc.a", "libtcmalloc_minimal.a"];

/// Four threads that allocate and check their blocks all the time.
#[test]
fn threads_that_allocate_go_on() {
    let inside = LIBRARIES.map(|library| with_allocator("allocating_threads", library));
    for program in inside.into_iter().flatten() {
        for _ in 0..rounds() {
            keep_their_blocks(Workload::start_with(&program, &["4"]));
        }
    }
}

/// Threads of Rust programs with an allocator inside, and of an interpreter with and without its own.
fn threads_of_languages() -> Vec<(PathBuf, Vec<String>)> {
    let rust = ["jemalloc", "mimalloc"].map(rust_program);
    let four = vec!["4".to_owned()];
    let mut all: Vec<_> = rust
        .into_iter()
        .flatten()
        .map(|program| (program, four.clone()))
        .collect();
    let script = crate::common::workload::source("allocating_threads.py");
    if let Some((_, python)) = pythons().into_iter().next_back() {
        for allocator in ["pymalloc", "malloc"] {
            let set = format!("PYTHONMALLOC={allocator}");
            let command = [
                &set,
                python.to_str().unwrap(),
                script.to_str().unwrap(),
                "4",
            ];
            all.push(("/usr/bin/env".into(), command.map(str::to_owned).to_vec()));
        }
    }
    all
}

#[test]
fn threads_of_other_languages_go_on() {
    for (program, args) in threads_of_languages() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for _ in 0..rounds() {
            keep_their_blocks(Workload::start_with(&program, &args));
        }
    }
}

/// The forms of programs that cannot load the library: statically linked ones, and those with musl.
fn without_loader(workload: &str) -> Vec<PathBuf> {
    let mut all = forms(workload);
    all.extend(program_with_musl(workload, &[]));
    all
}

#[test]
fn threads_of_programs_without_a_loader_go_on() {
    for program in without_loader("allocating_threads") {
        for _ in 0..rounds() {
            keep_their_blocks(Workload::start_with(&program, &["4"]));
        }
    }
}

/// No register changes, and no wait ends early.
#[test]
fn threads_of_a_static_program_notice_nothing() {
    let program = program_with("sentinel", &["-static"]);
    for _ in 0..rounds() {
        notices_nothing(sentinel_of(&program, 2));
    }
}

#[test]
fn samples_begin_with_the_attachment() {
    let Some(program) = with_prefixed_jemalloc("allocations") else {
        return;
    };
    let expected = "functions of the executable's own allocator lead to the library";
    begin_with_the_attachment(&program, expected);
}

#[test]
fn samples_without_a_loader_begin_with_the_attachment() {
    for program in without_loader("allocations") {
        begin_with_the_attachment(&program, "functions of its allocator lead to the library");
    }
}

fn begin_with_the_attachment(program: &Path, expected: &str) {
    let mut workload = Workload::start(program);
    workload.lines.tell("hold 10000 500");
    let said = attached(workload.pid(), &["--heap-interval", "4KiB"]);
    assert!(said.contains(expected), "{said}");
    let m = Memprof::start(&["--heap", "--pid", &workload.pid().to_string()]);
    workload.lines.tell("hold 20000 500");
    must_be(&m, "hold", "inuse_space", 20_000 * 500);
    must_be(&m, "hold", "alloc_objects", 20_000);
    // Blocks from before are freed, too.
    workload.lines.tell("release 25000");
    let table = m.get("/v2/functions?kind=inuse_space").json();
    assert_eq!(table["rows"].as_array().unwrap().len(), 0, "{table}");
    assert_eq!(m.lost(), [""; 0]);
    workload.end();
}

/// A program that a command starts has the library, and its executable's own allocator does not lead to it yet.
#[test]
fn programs_that_a_command_starts_get_what_is_missing() {
    let Some(program) = with_prefixed_jemalloc("allocations") else {
        return;
    };
    let shell = format!("{}; exit", program.display());
    let args = ["--heap", "--heap-interval", "16KiB", "--follow-forks"];
    let (m, mut lines) = Memprof::start_command(&args, &["sh", "-c", &shell]);
    lines.tell("hold 5000 500");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
    let pid = m.said("own allocator");
    assert!(pid.contains("memprof attach-heap --pid"), "{pid}");
    let pid = pid.split("process ").nth(1).unwrap();
    let pid = Pid(pid.split(' ').next().unwrap().parse().unwrap());
    let said = attach(pid, &[]);
    said.must(0, &[]);
    assert!(
        said.stdout.contains("had the sampling library already"),
        "{said:?}"
    );
    lines.tell("hold 20000 500");
    must_be(&m, "hold", "inuse_space", 20_000 * 500);
    lines.tell("release 25000");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
    // Once only.
    let again = attach(pid, &[]);
    again.must(0, &[]);
    assert!(
        again.stdout.contains("has the sampling library already"),
        "{again:?}"
    );
}

#[test]
fn killing_memprof_harms_nobody() {
    if let Some(program) = with_allocator("allocating_threads", LIBRARIES[0]) {
        // The code of the detours is there, and the jumps follow within a millisecond.
        is_unharmed(&program, &["4"], 3000, has_code);
    }
}

#[test]
fn killing_memprof_harms_no_program_of_other_languages() {
    for (program, args) in threads_of_languages() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        is_unharmed(&program, &args, 12_000, is_traced);
    }
}

fn has_code(pid: Pid) -> bool {
    crate::attach::maps(pid).matches("libmemprof_heap").count() > 5
}

#[test]
fn killing_memprof_harms_no_program_without_a_loader() {
    for program in without_loader("allocating_threads") {
        // The threads are stopped, and one of them maps the library.
        is_unharmed(&program, &["4"], 3000, is_traced);
    }
}

fn is_traced(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    !status.contains("TracerPid:\t0\n")
}

/// Kills memprof up to so many microseconds after a moment.
fn is_unharmed(program: &Path, args: &[&str], within: u64, moment: impl Fn(Pid) -> bool) {
    let mut random = Random(0x5851_f42d);
    let mut has_library = 0;
    for _ in 0..rounds() * 4 {
        let mut workload = Workload::start_with(program, args);
        eventually(LIMIT, "all allocate", || {
            figures(&mut workload)[1..].iter().all(|n| *n > 1000)
        });
        let pid = workload.pid();
        let mut memprof = Command::new(MEMPROF)
            .args(["attach-heap", "--yes", "--pid", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !moment(pid) && memprof.try_wait().unwrap().is_none() {
            sleep(Duration::from_micros(20));
        }
        // (To sleep takes longer than that.)
        let later = Instant::now() + Duration::from_micros(random.below(within));
        while Instant::now() < later {}
        let _ = memprof.kill();
        let _ = memprof.wait();
        // The process that does the work is killed next.
        eventually(LIMIT, "nobody traces it", || !is_traced(pid));
        let before = figures(&mut workload);
        eventually(LIMIT, "every thread goes on", || {
            let now = figures(&mut workload);
            let mut pairs = now.iter().zip(&before).skip(1);
            pairs.all(|(now, before)| *now > before + 1000)
        });
        assert_eq!(figures(&mut workload)[0], 0, "blocks have other contents");
        eventually(LIMIT, "the loader's memory is removed", || {
            !crate::attach::code_without_a_file(pid)
        });
        nothing_left(pid);
        has_library += u32::from(crate::attach::maps(pid).contains("libmemprof_heap"));
        attach(pid, &[]).must(0, &[]);
        workload.end();
    }
    println!(
        "{has_library} of {} have the library: {} {}",
        rounds() * 4,
        program.display(),
        args.join(" ")
    );
}
