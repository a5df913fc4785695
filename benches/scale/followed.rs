//! More and more followed processes: all of them idle but one.

use std::time::Duration;

use anyhow::Result;

use crate::curve::{Curves, points};
use crate::support::Bench;
use crate::support::counters::{bpf_memory, held};
use crate::support::pairs::median;
use crate::support::profiler::Profiler;
use crate::target::{MIB, rounds};

pub fn followed(bench: &Bench) -> Result<()> {
    const COLUMNS: [&str; 6] = [
        "no reports, ms/s",
        "report, ms",
        "its CPU, ms",
        "first, CPU ms",
        "memprof, MiB",
        "BPF maps, MiB",
    ];
    let mut curves = Curves::new("processes", &COLUMNS);
    for n in points([1, 10, 100, 1_000]) {
        let mut workload = bench.start("crowd", &["--processes", &n.to_string()])?;
        let memprof = Profiler::attach(workload.pid(), &["--follow-forks"])?;
        workload.go()?;
        let (_, first) = memprof.times(|| memprof.short("total").map(drop))?;
        memprof.settle()?;
        let idle_share = memprof.idle_share(Duration::from_secs(5))?;
        let (mut reports, mut used) = (Vec::new(), Vec::new());
        for _ in 0..rounds() {
            memprof.age();
            let (time, cpu) = memprof.times(|| memprof.short("total").map(drop))?;
            reports.push(time);
            used.push(cpu);
        }
        let rss = held(memprof.pid())? as f64 / MIB;
        let maps = bpf_memory(memprof.pid())?.0 as f64 / MIB;
        curves.add(
            n,
            &[idle_share, median(reports), median(used), first, rss, maps],
        );
        workload.end()?;
        let losses = memprof.end_with_losses()?;
        losses.iter().for_each(|row| println!("    lost: {row}"));
    }
    curves.growth();
    Ok(())
}
