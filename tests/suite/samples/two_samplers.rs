//! Processes with another sampler beside memprof's library, or with two others: what both see counts once.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::allocators::{JEMALLOC, allocator};
use crate::common::memprof::{BINARY, Memprof, served};
use crate::common::process::wait_until;
use crate::common::skip::skip;
use crate::common::workload::{Lines, Workload, program, program_with};
use crate::sampler::ddheap;
use crate::samples::preloaded::must_be;
use crate::samples::{below, total};

const SAMPLED: [&str; 3] = ["--heap", "--heap-interval", "64KiB"];

/// An allocator that gets its memory from malloc, and samples each block.
#[test]
fn above_the_library() {
    let program = program("two_samplers");
    let (m, mut lines) = Memprof::start_command(&SAMPLED, &[program.to_str().unwrap()]);
    wait_until(|| {
        lines.send("listeners");
        lines.line() == "1 1"
    });
    lines.tell("take 20000");
    for kind in ["alloc_space", "inuse_space"] {
        must_be(&m, "take_one", kind, 20_000 * 4096);
    }
    must_be(&m, "take_one", "inuse_objects", 20_000);
    lines.tell("release 15000");
    must_be(&m, "take_one", "inuse_space", 5_000 * 4096);
    lines.tell("release 5000");
    assert_eq!(below(&m, "take_one", "inuse_space"), (0, 0));
    must_be(&m, "take_one", "alloc_space", 20_000 * 4096);
    assert_eq!(m.lost(), [""; 0]);
}

/// A malloc that samples each block, which the library calls.
#[test]
fn below_the_library() {
    let (malloc, program) = (program("sampling_malloc"), program("allocations"));
    let args = [&served(&SAMPLED)[..], &["--", program.to_str().unwrap()]].concat();
    let mut command = Command::new(BINARY);
    command.args(args).env("LD_PRELOAD", malloc);
    let mut m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = Lines::new(&mut m.child);
    m.said("following ");
    lines.tell("hold 1000 4096");
    wait_until(|| {
        lines.tell("churn 100 4096");
        !m.has_said("the malloc is listened to").is_empty()
    });
    lines.tell("hold 20000 4096");
    for kind in ["alloc_space", "inuse_space"] {
        must_be(&m, "hold", kind, 21_000 * 4096);
    }
    lines.tell("release 21000");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
}

/// A program that samples what it gets from a malloc that samples it, too: the malloc's samples count.
#[test]
fn one_above_another() {
    let mut command = Command::new(program("two_samplers"));
    command.env("LD_PRELOAD", program("sampling_malloc"));
    let mut workload = Workload::start_as(&mut command);
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    wait_until(|| {
        workload.lines.send("listeners");
        workload.lines.line() == "1 1"
    });
    let figures = || {
        let of = |kind| ["take_one", "malloc"].map(|function| below(&m, function, kind).0);
        ["alloc_space", "inuse_space"].map(of)
    };
    let more = |than: [[u64; 2]; 2], blocks: u64| than.map(|of| of.map(|all| all + blocks * 4096));
    // The malloc is in another file, whose probes may come later. The program's samples are taken back then. (The first stacks may be
    // cut off.)
    wait_until(|| {
        let before = figures();
        workload.lines.tell("take 1");
        figures() == more(before, 1)
    });
    let before = figures();
    workload.lines.tell("take 2000");
    assert_eq!(figures(), more(before, 2000));
    workload.lines.tell("release 1500");
    assert_eq!(figures()[1], more(before, 500)[1]);
}

/// jemalloc's own samples, by its hooks, at another interval than the library's.
const JEMALLOC_SAMPLES: (&str, &str) = (
    "MALLOC_CONF",
    "prof:true,prof_active:false,lg_prof_sample:15",
);

/// What is preloaded for that, if this jemalloc has the hooks; that of `MEMPROF_TEST_JEMALLOC` or the installed one.
fn jemalloc_that_speaks() -> Option<String> {
    let chosen = std::env::var_os("MEMPROF_TEST_JEMALLOC").map(PathBuf::from);
    let jemalloc = chosen.or_else(|| allocator(JEMALLOC))?;
    let speaker = program_with("jemalloc_speaker", &["-lm"]);
    let preload = format!("{}:{}", speaker.display(), jemalloc.display());
    let (name, value) = JEMALLOC_SAMPLES;
    let mut probe = Command::new("true");
    let said = probe.env("LD_PRELOAD", &preload).env(name, value).output();
    let stderr = String::from_utf8(said.unwrap().stderr).unwrap();
    if !stderr.is_empty() {
        skip(format!("{}: {}", jemalloc.display(), stderr.trim()));
        return None;
    }
    Some(preload)
}

#[test]
fn jemalloc_s_own_samples() {
    let Some(preload) = jemalloc_that_speaks() else {
        return;
    };
    let (name, value) = JEMALLOC_SAMPLES;
    let mut command = Command::new(program("allocations"));
    command.env("LD_PRELOAD", preload).env(name, value);
    let mut workload = Workload::start_as(&mut command);
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    wait_until(|| {
        workload.lines.tell("churn 1000 500");
        total(&m, "alloc_space") > 0
    });
    workload.lines.tell("hold 20000 500");
    for kind in ["alloc_space", "inuse_space"] {
        must_be(&m, "hold", kind, 20_000 * 500);
    }
    workload.lines.tell("release 20000");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
    assert_eq!(m.lost(), [""; 0]);
}

/// Of so many small blocks, both sample one in ten runs at most: the stacks show that the library calls jemalloc.
#[test]
fn jemalloc_s_own_samples_below_the_library() {
    let Some(preload) = jemalloc_that_speaks() else {
        return;
    };
    let program = program("allocations");
    let args = [&served(&SAMPLED)[..], &["--", program.to_str().unwrap()]].concat();
    let (name, value) = JEMALLOC_SAMPLES;
    let mut command = Command::new(BINARY);
    command
        .args(args)
        .env("LD_PRELOAD", preload)
        .env(name, value);
    let mut m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = Lines::new(&mut m.child);
    m.said("following ");
    lines.tell("hold 20000 48");
    wait_until(|| {
        lines.tell("churn 2000 500");
        !m.has_said("jemalloc is listened to").is_empty()
    });
    lines.tell("hold 80000 48");
    for kind in ["alloc_space", "inuse_space"] {
        must_be(&m, "hold", kind, 100_000 * 48);
    }
    lines.tell("release 100000");
    assert_eq!(below(&m, "hold", "inuse_space"), (0, 0));
}

/// The published crates: a wrapper of an allocator.
#[test]
fn ddheap_s() {
    let Some(program) = ddheap::built() else {
        return;
    };
    let (m, mut lines) = Memprof::start_command(&SAMPLED, &[program.to_str().unwrap()]);
    lines.tell("10000 4096");
    std::thread::sleep(std::time::Duration::from_secs(1));
    lines.tell("10000 4096");
    must_be(&m, "ddheap::allocate", "alloc_space", 20_000 * 4096);
    let before = total(&m, "inuse_space");
    assert!(before >= 70 << 20, "{before}");
    lines.tell("0 0");
    assert_eq!(below(&m, "ddheap::allocate", "inuse_space"), (0, 0));
}
