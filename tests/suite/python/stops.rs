//! A busy program that is interrupted anywhere: each evaluator on its stacks has the functions that it runs.
//!
//! ```text
//! MEMPROF_TEST_ROUNDS=10000 cargo test --test suite -- --nocapture python::stops::random      (as root)
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::effort;
use crate::common::interpreted::{Saved, SavedFrame, saved_as_the_kernel_says};
use crate::common::memprof::Memprof;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::python::OPTIONS;

const WORKLOAD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/busy.py");
/// The function in which the signal's handler writes to a fresh page, and the evaluator.
const STOPPED: &str = "stopped";
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";
const PAGE: u64 = 4096;

/// The library that interrupts the program, compiled.
fn library() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/stops.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libstops.so");
    let status = Command::new("cc")
        .args(["-O1", "-g", "-shared", "-fPIC", "-pthread", source, "-o"])
        .arg(&library)
        .status()
        .expect("cc is needed for this test");
    assert!(status.success());
    library
}

/// Numbers of stops.
#[derive(Debug, Default)]
struct Stops {
    /// All whose stack is known.
    all: u64,
    /// Whose stack has an evaluator, as the native walk found it.
    with_evaluator: u64,
    /// Of these: an evaluator other than the innermost one has no functions, or none has.
    not_merged: u64,
    /// The innermost evaluator alone has no functions: it has not begun its function, or has ended it.
    starting: u64,
    /// The native walk was cut off, for example in a library that was loaded just then.
    cut: u64,
    /// Functions that no evaluator runs, on a stack that is complete.
    wrong: u64,
}

impl Stops {
    fn compare(saved: &Saved) -> Stops {
        let mut stops = Stops::default();
        for stack in &saved.stacks {
            let frames: Vec<&SavedFrame> = stack.frames.iter().map(|f| &saved.frames[*f]).collect();
            let is = |frame: &SavedFrame, name: &str| {
                let function = frame.function.as_deref();
                function.is_some_and(|f| f == name || f.starts_with(&format!("{name}.")))
            };
            if !frames.iter().any(|frame| is(frame, STOPPED)) {
                continue;
            }
            // For each evaluator, innermost first, whether functions are before it.
            let (mut evaluators, mut functions, mut wrong) = (Vec::new(), false, false);
            for frame in frames {
                let is_function = frame.language.as_deref() == Some("python");
                if is(frame, EVALUATOR) {
                    evaluators.push(functions);
                } else {
                    wrong |= functions && !is_function;
                }
                functions = is_function;
            }
            let number = stack.bytes.anon / PAGE;
            let mut count = |counter: fn(&mut Stops) -> &mut u64, counts: bool| {
                *counter(&mut stops) += if counts { number } else { 0 };
            };
            let cut = stack.outcome != "complete";
            count(|s| &mut s.all, true);
            count(|s| &mut s.cut, cut);
            // Behind the end of a native walk that was cut off are all others.
            count(|s| &mut s.wrong, wrong || (functions && !cut));
            let Some((innermost, others)) = evaluators.split_first() else {
                continue;
            };
            let bare = others.iter().any(|has| !has) || (!innermost && others.is_empty());
            count(|s| &mut s.with_evaluator, true);
            count(
                |s| &mut s.not_merged,
                bare && !(others.is_empty() && functions),
            );
            count(|s| &mut s.starting, !bare && !innermost);
        }
        stops
    }
}

#[test]
fn frames_at_random_stops_are_merged() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("no CPython that memprof knows is installed");
    }
    let number: u64 = effort::rounds(500);
    let preload = format!("LD_PRELOAD={}", library().display());
    let stops = format!("STOPS={number}");
    for (version, path) in pythons {
        let command = ["env", &preload, &stops, path.to_str().unwrap(), WORKLOAD];
        let (m, mut lines) = Memprof::start_command(OPTIONS, &command);
        assert_eq!(lines.line(), format!("stopped {number}"));
        let saved = saved_as_the_kernel_says(&version, &m);
        let stops = Stops::compare(&saved);
        let lost = saved.lost() / PAGE;
        println!(
            "Python {version}: {:.3} % of {} stops merged; {stops:?}, {lost} lost",
            100.0 * (1.0 - stops.not_merged as f64 / stops.with_evaluator as f64),
            stops.with_evaluator,
        );
        assert!(stops.all + lost >= number, "{version}: {stops:?}");
        assert!(stops.with_evaluator * 2 >= number, "{version}: {stops:?}");
        assert_eq!(stops.wrong, 0, "{version}: {stops:?}");
        // At least 99.9 %; a few stops are too few for a share.
        assert!(
            stops.not_merged <= 3 + number / 1000,
            "{version}: {stops:?}"
        );
    }
}
