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
pub fn of(workload: &mut Workload) -> (Forgotten, Unreachable) {
    let forgotten = serde_json::from_str(&workload.lines.line()).unwrap();
    (forgotten, unreachable(workload))
}

/// Whether so many blocks and heads are no more than there are, and at least 99.9 % of the blocks: a number somewhere in memory
/// may be the address of one.
pub fn nearly_all(found: [u64; 2], all: [u64; 2]) -> bool {
    let [blocks, heads] = [0, 1].map(|n| all[n].checked_sub(found[n]));
    blocks.is_some_and(|left| left <= all[0] / 1000 && heads.is_some_and(|heads| heads <= left))
}

/// Compares what the workload says with what is found.
pub fn compare(mut workload: Workload) {
    let (forgotten, found) = of(&mut workload);
    let heads = found.heads.len() as u64 + found.heads_left_out;
    let all = [forgotten.blocks, forgotten.heads];
    assert!(
        nearly_all([found.chunks, heads], all),
        "{forgotten:?} {found:#?}"
    );
    // Contents are rounded up: to 16 bytes, those with mappings of their own to pages.
    let most = forgotten.bytes + forgotten.blocks * 24 + 10 * 4096;
    assert!(
        found.bytes >= forgotten.bytes / 1000 * 999 && found.bytes <= most,
        "{forgotten:?} {found:#?}"
    );
    workload.end();
}

#[test]
fn all_forgotten_blocks_are_found_and_no_others() {
    compare(Workload::start(&program("leaks")));
}

#[test]
fn those_of_a_static_program_too() {
    compare(Workload::start(&compiled("leaks", &["-static"])));
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
