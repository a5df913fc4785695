//! The page ledger's size: what is empty leaves it.
//!
//! Needs root and `cc`.

mod common;

use std::collections::HashSet;

use ::memprof::probe::{Probe, ProbeConfig};
use common::workload::{Workload, program};

const CHUNK: u64 = 2 << 20;
const CHUNKS: u64 = 100;

#[test]
fn memory_given_back_piece_by_piece_leaves_the_ledger() {
    let mut workload = Workload::start(&program("moves"));
    assert_eq!(workload.lines.line(), "ok");
    let mut probe = Probe::load(&ProbeConfig::default()).unwrap();
    probe.follow(&[workload.pid()]).unwrap();
    workload.lines.tell(&format!("anon 0 {}", CHUNKS * CHUNK));
    let mut each = |command: &str, rest: &str| {
        for n in 0..CHUNKS {
            workload
                .lines
                .tell(&format!("{command} 0 {} 8192{rest}", n * CHUNK + 4096));
        }
    };
    each("touch", "");
    let full = probe.sweep(&HashSet::new(), 0).unwrap();
    each("advise", " 4");
    let empty = probe.sweep(&HashSet::new(), 0).unwrap();
    assert!(
        empty.len() as u64 >= full.len() as u64 + CHUNKS - 1,
        "{} chunks are empty, {} were",
        empty.len(),
        full.len()
    );
    // In use again: it stays, the others go.
    workload.lines.tell("touch 0 4096 4096");
    assert_eq!(probe.sweep(&empty, 0).unwrap(), HashSet::new());
    assert_eq!(probe.sweep(&HashSet::new(), 0).unwrap(), HashSet::new());
    let losses = probe.losses().counters;
    assert!(losses.is_empty(), "{losses:?}");
    workload.end();
}
