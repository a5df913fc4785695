//! One target with more and more threads that touch new pages at once, on all CPUs of the benchmark.

use anyhow::Result;

use crate::curve::{Curves, points};
use crate::support::Bench;
use crate::support::pairs::{Aim, Pairs, interleave, is_short, number};
use crate::support::profiler::Profiler;
use crate::support::workload::{Figures, figure};

/// MiB that all threads touch together, in chunks of 4 MiB.
fn all_mib() -> usize {
    if is_short() { 64 } else { 512 }
}

pub fn threads(bench: &Bench) -> Result<()> {
    curve(bench, "by default", &[])?;
    curve(bench, "--stacks all", &["--stacks", "all"])
}

fn curve(bench: &Bench, name: &str, options: &[&str]) -> Result<()> {
    const COLUMNS: [&str; 6] = [
        "alone, CPU ns/page",
        "added, CPU ns/page",
        "CPU ratio",
        "alone, wall ns/page",
        "added, wall",
        "wall ratio",
    ];
    println!("{name}");
    let mut curves = Curves::new("threads", &COLUMNS);
    let mut rows = Vec::new();
    for n in points([1, 2, 4, 8, 16, 32, 64]) {
        let mut cpu = Pairs::new(
            format!("{n} threads, {name}, CPU time"),
            "ns/page",
            Aim::None,
        );
        let mut wall = Pairs::new(
            format!("{n} threads, {name}, wall clock"),
            "ns/page",
            Aim::None,
        );
        interleave(number(3, 5), || {
            let (without, with) = (run(bench, n, None)?, run(bench, n, Some(options))?);
            cpu.add(per_page(&without)?, per_page(&with)?);
            wall.add(wall_ns(&without)?, wall_ns(&with)?);
            Ok(())
        })?;
        let of = |p: &Pairs| [p.base(), p.added(), p.ratio()];
        curves.add(n, &[of(&cpu), of(&wall)].concat());
        rows.extend([cpu.row(), wall.row()]);
    }
    curves.growth();
    rows.iter().for_each(|row| println!("{row}"));
    Ok(())
}

fn per_page(figures: &Figures) -> Result<f64> {
    figure(figures, "ns_per_page_with_munmap")
}

fn wall_ns(figures: &Figures) -> Result<f64> {
    Ok(1e9 / figure(figures, "pages_per_s")?)
}

fn run(bench: &Bench, threads: usize, options: Option<&[&str]>) -> Result<Figures> {
    let cpus = if bench.cpus.workload == bench.cpus.memprof {
        1
    } else {
        2
    };
    let [mib, threads, cpus] = [(all_mib() / threads).max(4), threads, cpus].map(|n| n.to_string());
    let args = [
        "--start-on-stdin",
        "--chunk-mib",
        "4",
        "--mib",
        &mib,
        "--threads",
        &threads,
        "--cpus",
        &cpus,
    ];
    let mut workload = bench.start("touch", &args)?;
    let memprof = options
        .map(|o| Profiler::attach(workload.pid(), o))
        .transpose()?;
    let figures = workload.go()?;
    workload.end()?;
    memprof.map_or(Ok(()), Profiler::end)?;
    Ok(figures)
}
