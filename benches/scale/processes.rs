//! Processes that start and end, more and more of them each second.

use std::time::Duration;

use anyhow::Result;

use crate::curve::{Curves, points};
use crate::support::Bench;
use crate::support::counters::held;
use crate::support::group::Group;
use crate::support::pairs::{is_short, median, number};
use crate::support::profiler::Profiler;
use crate::support::workload::{Figures, Workload, figure};

/// The way in which memprof chooses the processes.
#[derive(Clone, Copy)]
enum By {
    Forks,
    Group,
    /// Every process of the machine: memprof's CPU time contains the cost of the others.
    All,
}

const MODES: [(&str, By); 3] = [
    ("--follow-forks", By::Forks),
    ("--cgroup", By::Group),
    ("--all", By::All),
];

/// `/bin/true` by posix_spawn.
pub fn spawned(bench: &Bench) -> Result<()> {
    let modes = if is_short() { &MODES[1..2] } else { &MODES };
    each(bench, &["--exec"], modes)
}

/// fork and _exit, without exec.
pub fn forked(bench: &Bench) -> Result<()> {
    let modes = if is_short() { &MODES[..1] } else { &MODES };
    each(bench, &[], modes)
}

fn each(bench: &Bench, args: &[&str], modes: &[(&str, By)]) -> Result<()> {
    for (name, by) in modes {
        println!("{name}");
        rates(bench, args, *by)?;
    }
    Ok(())
}

/// The figures of one round.
struct Round {
    without: Figures,
    with: Figures,
    /// memprof's CPU time in ms per second: before the first process and while they start and end.
    idle: f64,
    cpu: f64,
    /// Growth of memprof's resident memory in KiB.
    grown: f64,
    losses: Vec<String>,
}

fn rates(bench: &Bench, args: &[&str], by: By) -> Result<()> {
    const COLUMNS: [&str; 10] = [
        "reached, 1/s",
        "idle memprof, ms/s",
        "memprof, ms/s",
        "memprof grows, KiB",
        "start alone, us",
        "its ratio",
        "start p99, ratio",
        "end alone, us",
        "its ratio",
        "end p99, ratio",
    ];
    let mut curves = Curves::new("1/s", &COLUMNS);
    for rate in points([10, 100, 300, 1_000]) {
        let mut rounds = Vec::new();
        for _ in 0..number(2, 3) {
            let Some(round) = round(bench, args, rate, by)? else {
                return Ok(());
            };
            rounds.push(round);
        }
        let of = |get: &dyn Fn(&Round) -> Result<f64>| -> Result<f64> {
            Ok(median(rounds.iter().map(get).collect::<Result<_>>()?))
        };
        let ratio = |name: &str| of(&|r| Ok(figure(&r.with, name)? / figure(&r.without, name)?));
        let alone = |name: &str| of(&|r| figure(&r.without, name));
        let costs = [
            of(&|r| figure(&r.with, "per_s"))?,
            of(&|r| Ok(r.idle))?,
            of(&|r| Ok(r.cpu))?,
            of(&|r| Ok(r.grown))?,
            alone("started_us")?,
            ratio("started_us")?,
            ratio("started_p99_us")?,
            alone("ended_us")?,
            ratio("ended_us")?,
            ratio("ended_p99_us")?,
        ];
        curves.add(rate, &costs);
        let losses = rounds.iter().flat_map(|r| &r.losses);
        losses.for_each(|row| println!("    lost: {row}"));
    }
    curves.growth();
    Ok(())
}

/// Starts the processes without and with memprof; `None` if there can be no control group.
fn round(bench: &Bench, args: &[&str], rate: usize, by: By) -> Result<Option<Round>> {
    let count = if is_short() { 5 } else { 3 * rate };
    let [rate, count] = [rate, count].map(|n| n.to_string());
    let args = [&["--rate", &rate, "--count", &count], args].concat();
    let mut alone = bench.start("paced", &args)?;
    let without = alone.go()?;
    alone.end()?;
    let workload = bench.start("paced", &args)?;
    let pid = workload.pid().to_string();
    match by {
        By::Forks => measure(without, workload, &["--pid", &pid, "--follow-forks"]).map(Some),
        By::All => measure(without, workload, &["--all"]).map(Some),
        By::Group => {
            let Some(group) = Group::new("bench scale")? else {
                workload.end()?;
                return Ok(None);
            };
            group.add(workload.pid())?;
            measure(without, workload, &["--cgroup", &group.name()?]).map(Some)
        }
    }
}

fn measure(without: Figures, mut workload: Workload, selector: &[&str]) -> Result<Round> {
    let memprof = Profiler::follow(selector, &[])?;
    memprof.settle()?;
    let idle = memprof.idle_share(Duration::from_secs(1))?;
    let before = held(memprof.pid())? as f64;
    let mut with = Figures::new();
    let (time, cpu) = memprof.times(|| {
        with = workload.go()?;
        Ok(())
    })?;
    let grown = (held(memprof.pid())? as f64 - before) / 1024.0;
    workload.end()?;
    let losses = memprof.end_with_losses()?;
    let cpu = 1e3 * cpu / time;
    Ok(Round {
        without,
        with,
        idle,
        cpu,
        grown,
        losses,
    })
}
