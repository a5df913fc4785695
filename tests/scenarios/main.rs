//! Every way in which a page can move. For the stopped program, each total must equal the kernel's figure, and the
//! bytes must belong to the function that brought them in.
//!
//!   scenarios [--list] [NAME…]     (all of them without a name; a name is part of a scenario's)
//!
//! Prints one line for each scenario: passed, SKIPPED with the reason, or FAILED. It also writes these lines to the
//! file `MEMPROF_TEST_RESULTS` (default: scenarios.results in cargo's directory). Needs root, and `cc` unless
//! `MEMPROF_TEST_MOVES` names the workload. Creates files in `MEMPROF_TEST_DIR`, by default cargo's directory.
//!
//! `random` is a scenario of its own: random steps for `MEMPROF_TEST_SECS` seconds; see random.rs.

#[path = "../common/mod.rs"]
mod common;

mod figures;
mod file;
mod forks;
mod live;
mod memory;
mod paging;
mod random;
mod run;
mod sampled;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use common::skip::skip_named;
use live::Live;
use run::Run;

/// Why a scenario cannot run on this machine.
pub type Skip = String;

/// One way in which pages move.
pub struct Scenario {
    /// The name on the command line and in the table.
    pub name: &'static str,
    /// Whether children are followed.
    pub forks: bool,
    /// The share of faults whose stack is walked (`--stacks`).
    pub stacks: &'static str,
    /// Runs it and checks the results.
    pub run: fn(&mut Run) -> Result<(), Skip>,
}

/// `--stacks` of the scenarios in which not every fault's stack is walked: a share, and as many as fit into a budget so
/// small that most are not.
const SAMPLED: &str = "1/8";
const BUDGET: &str = "auto --max-overhead 0.05";

/// The scenarios in which it matters how a page fault is seen are run again as where the kernel has no tracepoints for
/// them: the fault itself, copies, pages that return, and the kernel's own accesses.
const FAULT_EVENTS: &str = "page_faults_by_events";
const FAULT_HOOKS: &str = "MEMPROF_FAULT_HOOKS";
const BY_EVENTS: [&str; 9] = [
    "private_memory",
    "zero_page",
    "read_into_fresh_memory",
    "copy_on_write_of_file_pages",
    "shared_memory",
    "ksm",
    "swap_out_and_in",
    "fork_both",
    "copies_after_fork",
];

/// Number of times that a scenario is run at most.
const TRIES: u32 = 3;

/// A row of the table of scenarios.
macro_rules! scenario {
    ($run:path) => {
        scenario!($run, forks: false)
    };
    ($run:path, forks: $forks:expr) => {
        scenario!($run, forks: $forks, stacks: "all")
    };
    ($run:path, forks: $forks:expr, stacks: $stacks:expr) => {
        $crate::Scenario {
            name: stringify!($run),
            forks: $forks,
            stacks: $stacks,
            run: $run,
        }
    };
}
use scenario;

enum Outcome {
    Passed,
    Skipped(Skip),
    Failed,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let tables = [
        memory::SCENARIOS,
        paging::SCENARIOS,
        file::SCENARIOS,
        forks::SCENARIOS,
        random::SCENARIOS,
        sampled::SCENARIOS,
    ];
    let wanted: Vec<&Scenario> = tables
        .into_iter()
        .flatten()
        .filter(|s| names.is_empty() || names.iter().any(|n| s.name.contains(n.as_str())))
        .collect();
    // (On other processors they all are.)
    let by_events = cfg!(target_arch = "x86_64")
        && std::env::var_os(FAULT_HOOKS).is_none()
        && (names.is_empty() || names.iter().any(|n| FAULT_EVENTS.contains(n.as_str())));
    if args.iter().any(|a| a == "--list") {
        let names = wanted.iter().map(|s| s.name);
        let names = names.chain(by_events.then_some(FAULT_EVENTS));
        names.for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let mut rows = Vec::new();
    for (forks, stacks) in [
        (false, "all"),
        (true, "all"),
        (false, SAMPLED),
        (true, SAMPLED),
        (true, BUDGET),
    ] {
        let fits = |s: &&&Scenario| s.forks == forks && s.stacks == stacks;
        let some: Vec<_> = wanted.iter().filter(fits).collect();
        if some.is_empty() {
            continue;
        }
        let live = Live::start(forks, stacks);
        for scenario in some {
            rows.push((scenario.name, perform(scenario, &live)));
        }
    }
    if by_events {
        rows.push((FAULT_EVENTS, again_by_events()));
    }
    report(&rows)
}

/// Runs some scenarios in a process of its own, because the hooks are chosen by an environment variable.
fn again_by_events() -> Outcome {
    let own = std::env::current_exe().unwrap();
    let done = std::process::Command::new(own)
        .args(BY_EVENTS)
        .env(FAULT_HOOKS, "events")
        .env("MEMPROF_TEST_RESULTS", "/dev/null")
        .output()
        .unwrap();
    let outcome = match done.status.success() {
        true => Outcome::Passed,
        false => Outcome::Failed,
    };
    println!("{}", line(FAULT_EVENTS, &outcome));
    if !done.status.success() {
        print!("{}", String::from_utf8_lossy(&done.stdout));
        eprint!("{}", String::from_utf8_lossy(&done.stderr));
    }
    outcome
}

/// Runs a scenario. If it fails and the kernel skipped events meanwhile, which some kernels that preempt their own code do, it is run again:
/// without these events the owners cannot be right.
fn perform(scenario: &Scenario, live: &Live) -> Outcome {
    let began = Instant::now();
    let mut tries = 1;
    let outcome = loop {
        let before = live.skipped();
        let outcome = attempt(scenario, live);
        let skipped = live.skipped() - before;
        if tries == TRIES || skipped == 0 || !matches!(outcome, Outcome::Failed) {
            break outcome;
        }
        println!(
            "again   scenario:{}: {skipped} events were not reported",
            scenario.name
        );
        tries += 1;
    };
    let took = began.elapsed().as_secs_f32();
    println!("{} ({took:.1} s)", line(scenario.name, &outcome));
    outcome
}

fn attempt(scenario: &Scenario, live: &Live) -> Outcome {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::start(live);
        let done = (scenario.run)(&mut run);
        run.end();
        if let Err(why) = &done {
            skip_named(&format!("scenario:{}", scenario.name), why);
        }
        done
    }));
    match done {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(why)) => Outcome::Skipped(why),
        Err(_) => Outcome::Failed,
    }
}

fn line(name: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => format!("passed  scenario:{name}"),
        Outcome::Skipped(why) => format!("SKIPPED scenario:{name}: {why}"),
        Outcome::Failed => format!("FAILED  scenario:{name}"),
    }
}

/// The table, and whether nothing failed.
fn report(rows: &[(&str, Outcome)]) -> ExitCode {
    let count = |wanted: fn(&Outcome) -> bool| rows.iter().filter(|(_, o)| wanted(o)).count();
    let failed = count(|o| matches!(o, Outcome::Failed));
    let table: String = rows
        .iter()
        .map(|(name, outcome)| line(name, outcome) + "\n")
        .collect();
    println!("\n{table}");
    let own = || concat!(env!("CARGO_TARGET_TMPDIR"), "/scenarios.results").into();
    let path = std::env::var("MEMPROF_TEST_RESULTS").unwrap_or_else(|_| own());
    std::fs::write(&path, table).unwrap_or_else(|e| panic!("{path}: {e}"));
    println!(
        "{} scenarios: {} passed, {} skipped, {failed} failed",
        rows.len(),
        count(|o| matches!(o, Outcome::Passed)),
        count(|o| matches!(o, Outcome::Skipped(_))),
    );
    if failed == 0 && !rows.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
