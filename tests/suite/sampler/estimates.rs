//! Estimates from samples against what workloads allocated: unbiased, and with the right error.
//!
//! An estimate from one run is off by its standard error. So each workload runs thousands of times, with fixed
//! seeds. What is left to chance (the C library's own allocations shift the random numbers) is bounded: means are
//! within 4.5 standard errors, and shares within 4.5 standard deviations of the binomial distribution. One test in
//! 100,000 fails by chance.

use std::ffi::OsStr;
use std::path::Path;

use super::support::{LIBCS, exists, listening_library, program, program_with, run, stdout};
use crate::common::allocators::{JEMALLOC, LINK_JEMALLOC, allocator};

pub(super) const INTERVAL: u64 = 4096;
pub(super) const SEED: u64 = 20_261_123;
const Z: f64 = 4.5;
/// Runs whose coverage is then within 94 and 96 %, by the binomial distribution.
const MANY: usize = 10_000;
const SOME: usize = 2000;
const FEW: usize = 500;

/// What one run did, its estimate, and the estimate's variance.
#[derive(Clone, Copy)]
pub(super) struct Run {
    truth: f64,
    estimate: f64,
    variance: f64,
}

/// The four figures of each run: bytes and count allocated, bytes and count live.
pub(super) struct Runs(pub(super) [Vec<Run>; 4]);

impl Runs {
    #[track_caller]
    pub(super) fn parse(text: &str) -> Runs {
        let mut runs = Runs(Default::default());
        for line in text.lines() {
            let words: Vec<f64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
            assert_eq!(words.len(), 12, "{line}");
            for (figure, run) in runs.0.iter_mut().zip(words.chunks(3)) {
                figure.push(Run {
                    truth: run[0],
                    estimate: run[1],
                    variance: run[2],
                });
            }
        }
        runs
    }
}

fn total(runs: &[Run], of: fn(&Run) -> f64) -> f64 {
    runs.iter().map(of).sum()
}

/// The sum of all estimates is the truth, within its own error; of many runs, within 1 %.
#[track_caller]
pub(super) fn assert_unbiased(name: &str, runs: &[Run]) {
    let truth = total(runs, |r| r.truth);
    let off = total(runs, |r| r.estimate) / truth - 1.0;
    let error = total(runs, |r| r.variance).sqrt() / truth;
    println!(
        "{name}: {} runs, off by {:.3} %, standard error {:.3} %",
        runs.len(),
        off * 100.0,
        error * 100.0
    );
    assert!(error < 0.02, "{name}: there are too few runs");
    assert!(off.abs() < Z * error, "{name}: off by {off}, error {error}");
    if runs.len() >= MANY {
        assert!(off.abs() < 0.01, "{name}: off by {off}");
    }
}

/// The truth lies within 1.96 standard errors in 95 % of the runs.
#[track_caller]
pub(super) fn assert_covered(name: &str, runs: &[Run]) {
    let covered = |r: &&Run| (r.estimate - r.truth).abs() <= 1.96 * r.variance.sqrt();
    let share = runs.iter().filter(covered).count() as f64 / runs.len() as f64;
    let chance = Z * (0.95 * 0.05 / runs.len() as f64).sqrt();
    println!(
        "{name}: covered in {:.2} % of {} runs",
        share * 100.0,
        runs.len()
    );
    assert!(
        (share - 0.95).abs() < chance.max(0.01),
        "{name}: covered in {share}"
    );
}

/// All that holds for a workload, of bytes and of counts. Few samples are of small blocks, and each stands for
/// many: the error of a count is skewed, and covers less often.
#[track_caller]
fn assert_true(name: &str, text: &str, expected: usize) {
    let Runs([bytes, count, live_bytes, live_count]) = Runs::parse(text);
    assert_eq!(bytes.len(), expected, "{name}");
    assert_unbiased(&format!("{name}, bytes"), &bytes);
    assert_unbiased(&format!("{name}, count"), &count);
    assert_unbiased(&format!("{name}, live bytes"), &live_bytes);
    assert_unbiased(&format!("{name}, live count"), &live_count);
    assert_covered(&format!("{name}, bytes"), &bytes);
    assert_covered(&format!("{name}, live bytes"), &live_bytes);
}

#[track_caller]
fn measure(program: &Path, args: &[&str], others: &[&Path], runs: usize) -> String {
    let library = listening_library(INTERVAL, SEED);
    let preload: Vec<&OsStr> = [library.as_path()]
        .iter()
        .chain(others)
        .map(|p| p.as_os_str())
        .collect();
    let runs = runs.to_string();
    let args: Vec<&str> = args.iter().copied().chain([runs.as_str()]).collect();
    stdout(run(program, &args, &preload))
}

#[track_caller]
fn check(kind: &str, runs: usize) {
    // musl's allocator is slow.
    for (libc, runs) in LIBCS.into_iter().zip([runs, FEW]) {
        if exists(libc) {
            let text = measure(&program("sampler.c", libc), &[kind], &[], runs);
            assert_true(&format!("{kind}, {libc}"), &text, runs);
        }
    }
}

/// The workload exits with an error unless every function is within 10⁻⁹ of libm's.
#[test]
fn logarithms_and_weights_are_exact() {
    let text = stdout(run(&program("sampler_math.c", "cc"), &[], &[]));
    assert!(text.starts_with("largest relative error"), "{text}");
}

#[test]
fn malloc_is_estimated_truly() {
    check("small", MANY);
}

#[test]
fn sizes_around_the_interval_are_estimated_truly() {
    check("any", MANY);
}

#[test]
fn realloc_is_estimated_truly() {
    check("realloc", SOME);
}

#[test]
fn calloc_is_estimated_truly() {
    check("calloc", SOME);
}

#[test]
fn aligned_blocks_are_estimated_truly() {
    check("aligned", SOME);
}

#[test]
fn threads_are_estimated_truly() {
    check("threads", SOME);
}

#[test]
fn allocations_of_signal_handlers_are_estimated_truly() {
    check("signal", SOME);
}

/// Children that do the same err independently of each other and of their parent: otherwise their sum would be off
/// by more than its error.
#[test]
fn forked_children_are_estimated_truly() {
    check("fork", SOME);
}

#[test]
fn allocations_before_main_and_at_the_end_are_seen() {
    for libc in LIBCS {
        if !exists(libc) {
            continue;
        }
        for moment in ["constructor", "exit", "thread-exit"] {
            let mut command = std::process::Command::new(program("sampler.c", libc));
            command.args(["moment", "1"]).env("SAMPLER_MOMENT", moment);
            command.env("LD_PRELOAD", listening_library(INTERVAL, SEED));
            let text = stdout(command.output().unwrap());
            let Runs(figures) = Runs::parse(&text);
            let [run] = figures[0][..] else {
                panic!("{text}");
            };
            let off = (run.estimate - run.truth) / run.variance.sqrt();
            println!(
                "{moment}, {libc}: {} of {}, {off:.1} errors",
                run.estimate, run.truth
            );
            assert!(
                run.truth > 0.0 && off.abs() < Z,
                "{moment}, {libc}: off by {off} standard errors"
            );
        }
    }
}

#[test]
fn operators_are_estimated_truly() {
    if !exists("c++") {
        return;
    }
    let program = program("sampler_operators.cpp", "c++");
    let library = listening_library(INTERVAL, SEED);
    let text = stdout(run(
        &program,
        &[&MANY.to_string(), "throw"],
        &[library.as_os_str()],
    ));
    assert_true("operators", &text, MANY);
    for name in [JEMALLOC, "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        if let Some(path) = allocator(name) {
            let text = measure(&program, &[], &[&path], FEW);
            assert_true(&format!("operators, {name}"), &text, FEW);
        }
    }
}

#[test]
fn other_allocators_are_estimated_truly() {
    let program = program("sampler.c", "cc");
    for name in [JEMALLOC, "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let Some(path) = allocator(name) else {
            continue;
        };
        for kind in ["small", "calloc", "aligned", "realloc"] {
            let text = measure(&program, &[kind], &[&path], FEW);
            assert_true(&format!("{kind}, {name}"), &text, FEW);
        }
    }
}

/// Each call of jemalloc's own functions: the workload compares the samples with its own sums and with jemalloc's counters.
#[test]
fn jemallocs_own_functions_are_all_seen() {
    if allocator(JEMALLOC).is_none() {
        return;
    }
    let program = program_with("sampler_mallocx.c", "cc", &[LINK_JEMALLOC]);
    let mut command = std::process::Command::new(program);
    command.env("MALLOC_CONF", "tcache:false");
    command.env("LD_PRELOAD", listening_library(0, SEED));
    print!("{}", stdout(command.output().unwrap()));
}
