//! Targets of more and more memory: dense, sparse, and shared.

use anyhow::Result;

use crate::curve::{Curves, points};
use crate::large::spare_mib;
use crate::support::Bench;
use crate::target::{COSTS, Target};

/// Anonymous 4 KiB pages, one beside the other.
pub fn resident(bench: &Bench) -> Result<()> {
    const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10];
    sizes(bench, "MiB", points(SIZES), &[], |mib| {
        (format!("--mib {mib}"), mib as u64)
    })
}

/// One page in every 2 MiB: each has a chunk of the ledger and a page table of its own. All faults are recorded.
pub fn lone(bench: &Bench) -> Result<()> {
    const SIZES: [usize; 4] = [4, 16, 64, 256];
    sizes(
        bench,
        "GiB of addresses",
        points(SIZES),
        &["--stacks", "all"],
        |gib| {
            (
                format!("--sparse-gib {gib} --stride-kib 2048"),
                6 * gib as u64,
            )
        },
    )
}

/// More and more single pages in 64 GiB of addresses.
pub fn sparse(bench: &Bench) -> Result<()> {
    const PAGES: [usize; 4] = [1 << 15, 1 << 17, 1 << 18, 1 << 20];
    sizes(bench, "lone pages", points(PAGES), &[], |pages| {
        let stride = (64 << 20) / pages;
        let args = format!("--sparse-gib 64 --stride-kib {stride}");
        (args, (pages as u64 >> 8) + 256)
    })
}

/// The same GiB of shared memory, mapped again and again: as many pages to scan and to record as in a target of that size,
/// without its memory.
pub fn shared(bench: &Bench) -> Result<()> {
    sizes(bench, "mapped GiB", points([1, 4, 16, 64]), &[], |gib| {
        (format!("--shared-gib {gib}"), (1 << 10) + 4 * gib as u64)
    })
}

/// A curve of targets with these arguments, which memprof follows with these options. A target takes so many MiB.
fn sizes(
    bench: &Bench,
    by: &'static str,
    sizes: Vec<usize>,
    options: &[&str],
    target: impl Fn(usize) -> (String, u64),
) -> Result<()> {
    let mut curves = Curves::new(by, &COSTS);
    for n in sizes {
        let (args, needed) = target(n);
        let spare = spare_mib()?;
        if needed > spare {
            println!("  {n}: the machine has only {spare} MiB to spare");
            continue;
        }
        let args: Vec<&str> = args.split(' ').collect();
        let mut target = Target::start(bench, &args, options)?;
        curves.add(n, &target.costs()?);
        target.end()?;
    }
    curves.growth();
    Ok(())
}
