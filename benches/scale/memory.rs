//! Targets of more and more memory: dense, sparse, and shared.

use anyhow::Result;

use crate::curve::{Curves, points};
use crate::large::spare_mib;
use crate::support::Bench;
use crate::support::counters::memory_in_pieces_of_4_kib;
use crate::target::{COSTS, MIB, Target};

/// Anonymous 4 KiB pages, one beside the other.
pub fn resident(bench: &Bench) -> Result<()> {
    const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10];
    sizes(bench, "MiB", points(SIZES), |mib| {
        let args = vec!["--mib".to_owned(), mib.to_string()];
        (args, mib as u64)
    })
}

/// Single pages, far from each other, in 64 GiB of addresses: each takes a chunk of the ledger if it is alone in 2 MiB.
pub fn sparse(bench: &Bench) -> Result<()> {
    const PAGES: [usize; 4] = [1 << 15, 1 << 17, 1 << 18, 1 << 20];
    sizes(bench, "lone pages", points(PAGES), |pages| {
        let stride = ((64 << 20) / pages).to_string();
        let args = ["--sparse-gib", "64", "--stride-kib", &stride].map(str::to_owned);
        (args.to_vec(), pages as u64 >> 8)
    })
}

/// The same GiB of shared memory, mapped again and again: as many pages to scan and to record as in a target of that size,
/// without its memory.
pub fn shared(bench: &Bench) -> Result<()> {
    sizes(bench, "mapped GiB", points([1, 4, 16, 64]), |gib| {
        let args = ["--shared-gib".to_owned(), gib.to_string()].to_vec();
        (args, 1 << 10)
    })
}

/// A curve of targets with these arguments. A target takes so many MiB.
fn sizes(
    bench: &Bench,
    by: &'static str,
    sizes: Vec<usize>,
    target: impl Fn(usize) -> (Vec<String>, u64),
) -> Result<()> {
    let mut curves = Curves::new(by, &[&COSTS[..], &["ledger in slabs, MiB"]].concat());
    for n in sizes {
        let (args, needed) = target(n);
        let spare = spare_mib()?;
        if needed > spare {
            println!("  {n}: the machine has only {spare} MiB to spare");
            continue;
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let before = memory_in_pieces_of_4_kib()?;
        let mut target = Target::start(bench, &args)?;
        let costs = target.costs()?;
        let taken = memory_in_pieces_of_4_kib()?.saturating_sub(before);
        curves.add(n, &[&costs[..], &[taken as f64 / MIB]].concat());
        target.end()?;
    }
    curves.growth();
    Ok(())
}
