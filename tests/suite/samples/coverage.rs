//! Stated errors: how often they cover the truth, for allocators in every place that they can have in a program.
//!
//! Each round is an estimate of its own, of memory that the process has allocated since the round before.

use std::path::Path;

use super::below;
use super::inside::{rust_program, with_allocator};
use crate::common::effort::rounds;
use crate::common::memprof::Memprof;
use crate::common::pythons::pythons;
use crate::common::workload::program_with_musl;

/// Standard errors on both sides of an estimate within which the truth is in 95 of 100 cases.
const COVERS: f64 = 1.96;
/// Numbers and sizes of blocks that a round allocates: of one size, mostly small, mostly large in bytes, and of two sizes that
/// take turns.
const PATTERNS: [&[(u64, u64)]; 5] = [
    &[(20_000, 500)],
    &[(90_000, 24)],
    &[(300, 60_000)],
    &[(90_000, 16), (30, 300_000)],
    &[(5_000, 48), (5_000, 1_040), (5_000, 48), (5_000, 1_040)],
];

/// A figure that only grows, and its standard error.
type Estimate = (u64, u64);

/// What was allocated between two estimates: the errors are of different samples.
fn between(before: Estimate, after: Estimate) -> (f64, f64) {
    let variance = |(_, error): Estimate| (error as f64).powi(2);
    let figure = after.0 as f64 - before.0 as f64;
    (figure, (variance(after) - variance(before)).max(0.0).sqrt())
}

/// Estimates that cover the truth.
#[derive(Default)]
struct Covered {
    of: u64,
    within: u64,
    /// Sum of (estimate − truth) / error.
    errors: f64,
}

impl Covered {
    fn add(&mut self, (figure, error): (f64, f64), truth: u64) {
        let off = (figure - truth as f64) / error.max(1.0);
        self.of += 1;
        self.within += u64::from(off.abs() <= COVERS);
        self.errors += off;
    }

    /// Fails if right errors cover so few, or right estimates are so far to one side, in less than one of 10,000 cases.
    #[track_caller]
    fn check(&self, name: &str) {
        let n = self.of as f64;
        println!(
            "{name}: {} of {n} within {COVERS} standard errors, mean {:+.2}",
            self.within,
            self.errors / n
        );
        let expected = 0.95 * n - 4.5 * (n * 0.95 * 0.05).sqrt();
        assert!(self.within as f64 >= expected - 0.5, "{name}");
        assert!((self.errors / n).abs() <= 4.5 / n.sqrt(), "{name}: biased");
    }
}

/// `function` allocates what it is told; `added` is what it allocates for `N` blocks besides their size.
fn errors_cover(command: &[&str], function: &str, added: impl Fn(u64) -> u64, release: &str) {
    let args = ["--heap", "--heap-interval", "64KiB"];
    let (m, mut lines) = Memprof::start_command(&args, command);
    let (mut live, mut allocated) = (Covered::default(), Covered::default());
    let mut before = (0, 0);
    for round in 0..rounds(10) {
        let pattern = PATTERNS[round % PATTERNS.len()];
        for (count, size) in pattern {
            lines.tell(&format!("hold {count} {size}"));
        }
        let truth = pattern
            .iter()
            .map(|(count, size)| count * size + added(*count))
            .sum();
        let (figure, error) = below(&m, function, "inuse_space");
        live.add((figure as f64, error as f64), truth);
        let after = below(&m, function, "alloc_space");
        allocated.add(between(before, after), truth);
        before = after;
        let blocks: u64 = pattern.iter().map(|(count, _)| count).sum();
        lines.tell(&release.replace('N', &blocks.to_string()));
    }
    assert_eq!(m.lost(), [""; 0]);
    live.check(&format!("{}: live", command.join(" ")));
    allocated.check(&format!("{}: allocated", command.join(" ")));
}

fn of_c(program: &Path) {
    errors_cover(&[program.to_str().unwrap()], "hold", |_| 0, "release N");
}

fn of_rust(name: &str) {
    if let Some(program) = rust_program(name) {
        let command = [program.to_str().unwrap()];
        errors_cover(&command, "rust_allocators::hold", |_| 0, "release N");
    }
}

#[test]
fn rust_with_jemalloc() {
    of_rust("jemalloc");
}

#[test]
fn rust_with_mimalloc() {
    of_rust("mimalloc");
}

#[test]
fn a_static_program_with_musl() {
    if let Some(program) = program_with_musl("allocations", &["-static"]) {
        of_c(&program);
    }
}

#[test]
fn static_tcmalloc() {
    if let Some(program) = with_allocator("allocations", "libtcmalloc_minimal.a") {
        of_c(&program);
    }
}

#[test]
fn python() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/python_holds.py");
    if let Some((_, python)) = pythons().into_iter().next_back() {
        for allocator in ["pymalloc", "malloc"] {
            let set = format!("PYTHONMALLOC={allocator}");
            let command = [
                "env",
                &set,
                python.to_str().unwrap(),
                script.to_str().unwrap(),
            ];
            // The objects' heads, and the list of them.
            errors_cover(&command, "hold", |count| 33 * count + 8 * count, "release");
        }
    }
}
