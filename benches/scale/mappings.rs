//! Targets of the same resident memory in more and more mappings, which the kernel cannot merge with their neighbours.

use anyhow::{Result, ensure};

use memprof_sys::residency::{Classifier, proc_maps};

use crate::curve::{Curves, points};
use crate::large::{times, waits};
use crate::support::Bench;
use crate::support::pairs::{Aim, is_full, number};
use crate::target::{COSTS, CostPairs, Target, left_alone};

/// Resident pages: 234 MiB. Each mapping has an equal part of them.
const PAGES: usize = 60_000;

/// 60,000 mappings are nearly as many as the kernel permits (`vm.max_map_count`).
pub fn mappings(bench: &Bench) -> Result<()> {
    let mut curves = Curves::new(
        "mappings",
        &[&COSTS[..], &["filling, ratio", "a call, ratio"]].concat(),
    );
    let mut details = Vec::new();
    for n in points([10, 100, 1_000, 10_000, 60_000]) {
        let (mappings, pages) = (n.to_string(), (PAGES / n).to_string());
        let args = ["--mappings", &mappings, "--mapping-pages", &pages];
        let mut pairs = CostPairs::new(&format!("{n} mappings"));
        let mut costs = [0.0; COSTS.len()];
        for _ in 0..number(3, 5) {
            let alone = left_alone(bench, &args)?;
            let mut target = Target::start(bench, &args, &[])?;
            let found = proc_maps::read(target.pid, &mut Classifier::new())?.len();
            ensure!(found >= n, "the workload has {found} mappings");
            pairs.add(alone, target.cost()?);
            costs = target.costs()?;
            target.end()?;
        }
        curves.add(n, &[&costs[..], &pairs.ratios()].concat());
        details.push(pairs);
    }
    curves.growth();
    details.iter().for_each(CostPairs::print);
    if is_full() {
        println!("a target of 10,000 mappings");
        let mut target = Target::start(bench, &["--mappings", "10000"], &[])?;
        times(&target, Aim::None)?;
        waits(&mut target)?;
        target.end()?;
    }
    Ok(())
}
