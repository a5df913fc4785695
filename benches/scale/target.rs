//! A target of a given size, the memprof that follows it, and what both do while its memory is read.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use memprof_sys::ids::Pid;
use memprof_sys::residency::{Classifier, Method, Scanner, add_run, figures, proc_maps};
use memprof_sys::usage::Usage;

use crate::support::Bench;
use crate::support::counters::{held, map_memory};
use crate::support::milliseconds;
use crate::support::pairs::{Pairs, median, number};
use crate::support::profiler::Profiler;
use crate::support::workload::{Figures, Workload, figure};

pub const MIB: f64 = 1024.0 * 1024.0;

/// Repetitions of each measurement of a target.
pub fn rounds() -> usize {
    number(7, 7)
}

/// A workload that keeps taking its mmap lock, and a memprof that was attached while it filled its memory.
pub struct Target {
    pub workload: Workload,
    pub memprof: Profiler,
    pub pid: Pid,
    /// The line that the workload printed when it had filled its memory.
    filled: Figures,
}

/// CPU time of the target: in ms, to fill its memory, and in ns, of a round of mmap, munmap and page fault later.
#[derive(Clone, Copy)]
pub struct OwnCost {
    fill: f64,
    round: f64,
}

/// The target's cost without and with memprof.
pub struct CostPairs {
    fill: Pairs,
    round: Pairs,
}

impl Target {
    pub fn start(bench: &Bench, args: &[&str], options: &[&str]) -> Result<Target> {
        let mut workload = bench.start("stall", args)?;
        let memprof = Profiler::attach(workload.pid(), options)?;
        let filled = workload.go()?;
        Ok(Target {
            pid: Pid(workload.pid()),
            workload,
            memprof,
            filled,
        })
    }

    pub fn cost(&mut self) -> Result<OwnCost> {
        own_cost(&mut self.workload, &self.filled)
    }

    /// memprof's cost of this target: see `COSTS`.
    pub fn costs(&mut self) -> Result<[f64; COSTS.len()]> {
        let (mut scans, mut reports, mut cpu) = (vec![], vec![], vec![]);
        let (mut waits, mut alone) = (vec![], vec![]);
        self.memprof.settle()?;
        for _ in 0..rounds() {
            scans.push(milliseconds(|| self.scan(Method::Auto))?);
            self.memprof.age();
            // Discard the maxima so far.
            self.workload.go()?;
            let (time, used) = self.memprof.times(|| self.report())?;
            reports.push(time);
            cpu.push(used);
            waits.push(self.longest_wait()?);
            // As long as the report took: on a busy machine the target also waits for a processor.
            std::thread::sleep(Duration::from_secs_f64(time / 1e3));
            alone.push(self.longest_wait()?);
        }
        Ok([
            median(scans),
            median(reports),
            median(cpu),
            median(waits),
            median(alone),
            map_memory(self.memprof.pid(), &["pages"])? as f64 / MIB,
            held(self.memprof.pid())? as f64 / MIB,
        ])
    }

    /// The longest wait in ms since the last answer. A round that began during the work may end later, on a
    /// busy machine much later: only after the second answered round it is known that all of them have ended.
    pub fn longest_wait(&mut self) -> Result<f64> {
        let began = Instant::now();
        let (mut rounds, mut longest) = (0.0, 0.0_f64);
        while rounds < 2.0 {
            ensure!(
                began.elapsed() < Duration::from_secs(60),
                "the target took its lock only {rounds} times in a minute"
            );
            let waits = self.workload.go()?;
            for operation in ["map_ms", "fault_ms"] {
                longest = longest.max(figure(&waits, operation)?);
            }
            rounds += figure(&waits, "rounds")?;
        }
        Ok(longest)
    }

    pub fn roll_up(&self) -> Result<()> {
        figures::rollup(self.pid)?;
        Ok(())
    }

    pub fn report(&self) -> Result<()> {
        self.memprof.short("total").map(drop)
    }

    pub fn scan(&self, method: Method) -> Result<()> {
        let mut scanner = Scanner::open(self.pid, method)?;
        let mut total = Usage::default();
        let vmas = proc_maps::read(self.pid, &mut Classifier::new())?;
        scanner.scan(&vmas, &mut |_, run| add_run(&mut total, run), &mut || ())?;
        ensure!(total.anon + total.shmem > 0, "the scan found nothing");
        Ok(())
    }

    pub fn end(self) -> Result<()> {
        self.workload.end()?;
        self.memprof.end()
    }
}

/// The columns of `Target::costs`.
pub const COSTS: [&str; 7] = [
    "scan, ms",
    "report, ms",
    "its CPU, ms",
    "target waits, ms",
    "left alone, ms",
    "ledger, MiB",
    "memprof, MiB",
];

/// The cost of a target with these arguments, without memprof.
pub fn left_alone(bench: &Bench, args: &[&str]) -> Result<OwnCost> {
    let mut workload = bench.start("stall", args)?;
    let filled = workload.go()?;
    let cost = own_cost(&mut workload, &filled)?;
    workload.end()?;
    Ok(cost)
}

fn own_cost(workload: &mut Workload, filled: &Figures) -> Result<OwnCost> {
    const WHILE: Duration = Duration::from_millis(300);
    workload.go()?;
    std::thread::sleep(WHILE);
    let rounds = workload.go()?;
    Ok(OwnCost {
        fill: figure(filled, "fill_ms")?,
        round: figure(&rounds, "round_ns")?,
    })
}

impl CostPairs {
    pub fn new(what: &str) -> CostPairs {
        use crate::support::pairs::Aim::None;
        CostPairs {
            fill: Pairs::new(format!("filling {what}"), "ms", None),
            round: Pairs::new(
                format!("mmap, munmap and a fault beside {what}"),
                "ns",
                None,
            ),
        }
    }

    pub fn add(&mut self, without: OwnCost, with: OwnCost) {
        self.fill.add(without.fill, with.fill);
        self.round.add(without.round, with.round);
    }

    pub fn print(&self) {
        println!("{}\n{}", self.fill.row(), self.round.row());
    }

    /// The ratios of filling and of a round.
    pub fn ratios(&self) -> [f64; 2] {
        [self.fill.ratio(), self.round.ratio()]
    }
}
