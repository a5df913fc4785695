//! What the benchmarks are made of: workloads, a running memprof, its counters, and paired figures.

#![allow(dead_code, reason = "each benchmark uses its own part")]

pub mod counters;
pub mod pairs;
pub mod profiler;
pub mod workload;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Which CPU the workload has, and which memprof and this program: different ones where there are two.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    pub workload: usize,
    pub memprof: usize,
}

impl Cpus {
    /// Chooses the first two CPUs that this process may use.
    pub fn choose() -> Result<Cpus> {
        let may = sched_getaffinity(Pid::from_raw(0)).context("cannot read the CPU affinity")?;
        let free: Vec<usize> = (0..CpuSet::count())
            .filter(|cpu| may.is_set(*cpu).unwrap_or(false))
            .collect();
        let memprof = free.first().copied().context("no CPU may be used")?;
        let workload = free.get(1).copied().unwrap_or(memprof);
        Ok(Cpus { workload, memprof })
    }
}

/// Pins a process (0: this one; what it starts from then on is pinned too).
pub fn pin(pid: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(pid.cast_signed()), &set)
        .with_context(|| format!("cannot pin process {pid} to CPU {cpu}"))
}
