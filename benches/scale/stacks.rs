//! A target that holds the same memory under more and more distinct stacks.

use anyhow::{Context, Result, ensure};

use crate::curve::{Curves, points};
use crate::support::Bench;
use crate::support::counters::{bpf_memory, held};
use crate::support::milliseconds;
use crate::support::pairs::median;
use crate::support::profiler::Profiler;
use crate::target::{MIB, rounds};

/// All stacks are walked. After 16,384 stacks memprof would otherwise skip some of them.
pub fn stacks(bench: &Bench) -> Result<()> {
    const COLUMNS: [&str; 7] = [
        "short report, ms",
        "its CPU, ms",
        "first tree, ms",
        "/v1/tree, ms",
        "its CPU, ms",
        "memprof, MiB",
        "BPF maps, MiB",
    ];
    let mut curves = Curves::new("stacks", &COLUMNS);
    for n in points([100, 1_000, 10_000, 65_536]) {
        let mut workload = bench.start("stacks", &["--stacks", &n.to_string()])?;
        let memprof = Profiler::attach(workload.pid(), &["--stacks", "all"])?;
        workload.go()?;
        memprof.settle()?;
        let (short, short_cpu) = of_rounds(&memprof, "/v1/tree?short=true")?;
        let first = milliseconds(|| memprof.get("/v1/tree").map(drop))?;
        let (tree, tree_cpu) = of_rounds(&memprof, "/v1/tree")?;
        let known = known_stacks(&memprof)?;
        ensure!(known >= n as u64, "memprof knows {known} of {n} stacks");
        let rss = held(memprof.pid())? as f64 / MIB;
        let maps = bpf_memory(memprof.pid())?.0 as f64 / MIB;
        curves.add(n, &[short, short_cpu, first, tree, tree_cpu, rss, maps]);
        workload.end()?;
        let losses = memprof.end_with_losses()?;
        losses.iter().for_each(|row| println!("    lost: {row}"));
    }
    curves.growth();
    Ok(())
}

/// The medians of the reply's time and of memprof's CPU time, in ms.
fn of_rounds(memprof: &Profiler, path: &str) -> Result<(f64, f64)> {
    let (mut times, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        memprof.age();
        let (time, used) = memprof.times(|| memprof.get(path).map(drop))?;
        times.push(time);
        cpu.push(used);
    }
    Ok((median(times), median(cpu)))
}

/// Stacks that memprof has recorded.
fn known_stacks(memprof: &Profiler) -> Result<u64> {
    let health: serde_json::Value = serde_json::from_slice(&memprof.get("/v2/health")?)?;
    let outcomes = health["outcomes"].as_array();
    let outcomes = outcomes.with_context(|| format!("no outcomes in {health}"))?;
    Ok(outcomes.iter().filter_map(|o| o["stacks"].as_u64()).sum())
}
