//! Unreachable chunks: those that a program forgot, and no others.

use std::path::Path;

use serde::Deserialize;

use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::heap::glibc::{compiled, snapshot};
use memprof_heap::Unreachable;

/// What the workload forgot.
#[derive(Debug, Deserialize)]
pub struct Forgotten {
    pub blocks: u64,
    bytes: u64,
    heads: u64,
}

fn unreachable(workload: &Workload) -> Unreachable {
    snapshot(workload.pid())
        .unreachable
        .expect("the heap is read")
}

/// What the workload says that it forgot, and what is found.
pub fn forgotten_and_found(workload: &mut Workload) -> (Forgotten, Unreachable) {
    let forgotten = serde_json::from_str(&workload.lines.line()).unwrap();
    (forgotten, unreachable(workload))
}

/// Whether so many blocks and heads are no more than there are, and at least 99.9 % of the blocks: a number somewhere in memory
/// may be the address of one.
pub fn nearly_all(found: [u64; 2], all: [u64; 2]) -> bool {
    let [blocks, heads] = [0, 1].map(|n| all[n].checked_sub(found[n]));
    blocks.is_some_and(|left| left <= all[0] / 1000 && heads.is_some_and(|heads| heads <= left))
}

/// Fails if both of two runs of a program fail.
///
/// A number in memory that is the address of a block in a forgotten list hides the rest of the list, which may be more than
/// [`nearly_all`] allows. The heap of a static program has low addresses, which round numbers also have. The kernel chooses
/// other addresses for the second run, so such a number is not the address of a block again, while a defect is there again.
#[track_caller]
pub fn one_of_two_runs(run: impl Fn() -> Result<(), String>) {
    let Err(first) = run() else { return };
    eprintln!("the first run: {first}");
    run().expect("the second run");
}

/// Compares what the workload says with what is found.
#[track_caller]
pub fn compare(workload: Workload) {
    compared(workload).unwrap();
}

fn compared(mut workload: Workload) -> Result<(), String> {
    let (forgotten, found) = forgotten_and_found(&mut workload);
    workload.end();
    let heads = found.heads.len() as u64 + found.heads_left_out;
    let all = [forgotten.blocks, forgotten.heads];
    // Contents are rounded up: to 16 bytes, those with mappings of their own to pages.
    let most = forgotten.bytes + forgotten.blocks * 24 + 10 * 4096;
    let bytes = forgotten.bytes / 1000 * 999..=most;
    match nearly_all([found.chunks, heads], all) && bytes.contains(&found.bytes) {
        true => Ok(()),
        false => Err(format!("{forgotten:?} {found:#?}")),
    }
}

#[test]
fn all_forgotten_blocks_are_found_and_no_others() {
    compare(Workload::start(&program("leaks")));
}

#[test]
fn those_of_a_static_program_too() {
    let leaks = compiled("leaks", &["-static"]);
    one_of_two_runs(|| compared(Workload::start(&leaks)));
}

/// A program of Debian's at rest.
#[test]
fn sqlite_forgets_nothing() {
    const SQLITE: &str = "/usr/bin/sqlite3";
    if !Path::new(SQLITE).exists() {
        return skip("there is no sqlite3");
    }
    let mut workload = Workload::start(Path::new(SQLITE));
    workload
        .lines
        .tell("create table t(a); insert into t values (zeroblob(100000)); select 'ok';");
    let found = unreachable(&workload);
    assert_eq!(found, Unreachable::default());
    workload.end();
}
