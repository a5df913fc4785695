//! What heap snapshots cost: the stop, the time of the analysis, and memprof's own memory.
//!
//! ```text
//! cargo bench --bench heap [-- NAME…]      (as root)
//! ```
//!
//! A short run has a heap of 300 MiB. With `MEMPROF_BENCH_FULL` it also has 1 GiB, and 10 million small chunks.
//!
//! "stop" is memprof's figure. "analysis" is memprof's CPU time in user space: reading and searching the heap, types, roots,
//! symbols, the report. It excludes the load of other processes, and memprof does all this in one thread. "walk", "mark" and
//! "types" are its parts, measured in this process, in user space: reading the heap, the search alone, and what types and
//! roots of all objects add to it. The aim is that of walk and mark. "kernel" is that in the kernel:
//! nearly all of it is copying the memory, which takes several times as long where a virtual machine must get memory from its
//! host first. "elapsed" is the time from its start to its end. "peak" is memprof's maximum RSS.

mod support;

use std::io::{self, Read};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use memprof_heap::{Approach, SnapshotOptions, Stages};
use memprof_sys::ids::Pid;
use support::pairs::{Aim, check, is_full, median, number};
use support::profiler::Profiler;
use support::workload::{Workload, compile, figure};
use support::{Bench, Measurement, exchange};

/// Aims: the stop for a child in ms, by MiB of heap.
const STOP: [(u64, f64); 2] = [(300, 20.0), (1024, 120.0)];
/// Seconds of walk and mark for a GiB of heap.
const ANALYSIS: f64 = 2.5;
/// memprof's memory as a multiple of the heap's.
const PEAK: f64 = 1.3;
/// memprof's memory while it profiles a process, after a snapshot over HTTP as a multiple of that before. It holds
/// the snapshot's tables, and symbols that it has read.
const AFTER: f64 = 1.25;
const MEASUREMENTS: [Measurement; 4] = [
    ("300 MiB", |bench| command(bench, 300)),
    ("1 GiB", |bench| in_full(|| command(bench, 1024))),
    ("small", |bench| in_full(|| small(bench))),
    ("http", |bench| http(bench, 300)),
];

fn main() -> ExitCode {
    let head = "snapshot: median (minimum to maximum)";
    Bench::main_with(head, Bench::unpinned("bench-heap", compile), &MEASUREMENTS)
}

/// Number of snapshots for each figure.
fn rounds() -> usize {
    number(3, 5)
}

fn in_full(measure: impl FnOnce() -> Result<()>) -> Result<()> {
    if is_full() { measure() } else { Ok(()) }
}

/// A target with a heap of this size.
struct Target {
    workload: Workload,
    heap_mib: f64,
}

impl Target {
    fn start(bench: &Bench, args: &[&str]) -> Result<Target> {
        let mut workload = bench.start("chunks", args)?;
        let figures = workload.go()?;
        let heap_mib = figure(&figures, "heap_mib")?;
        let chunks = figure(&figures, "chunks")?;
        println!("heap of {heap_mib:.0} MiB, {chunks} chunks in use");
        Ok(Target { workload, heap_mib })
    }
}

fn command(bench: &Bench, mib: u64) -> Result<()> {
    let target = Target::start(bench, &["--mib", &mib.to_string()])?;
    let aim = STOP.iter().find(|(of, _)| *of == mib);
    let aim = aim.map_or(Aim::None, |(_, ms)| Aim::AtMost(*ms));
    print_rounds(&target, "fork", aim)?;
    print_rounds(&target, "copy", Aim::None)?;
    print_stages(&target)?;
    target.workload.end()
}

/// Ten million small chunks: what is held for each counts most here.
fn small(bench: &Bench) -> Result<()> {
    let target = Target::start(bench, &["--small", "--mib", "320"])?;
    print_rounds(&target, "fork", Aim::None)?;
    print_stages(&target)?;
    target.workload.end()
}

/// The parts of the analysis.
fn print_stages(target: &Target) -> Result<()> {
    let options = SnapshotOptions {
        approach: Approach::Copy,
        max_stop: Duration::from_secs(60),
        limit: "this benchmark",
    };
    let pid = Pid(target.workload.pid());
    // Only memprof itself can be its guard.
    memprof_sys::freeze::guards_run(env!("CARGO_BIN_EXE_memprof").into());
    let rounds = (0..rounds()).map(|_| Stages::measure(pid, &options, user_seconds));
    let rounds: Vec<Stages> = rounds.collect::<Result<_>>()?;
    let gib = target.heap_mib / 1024.0;
    let print = |name: &str, figure: fn(&Stages) -> f64, aim| {
        let figures: Vec<f64> = rounds.iter().map(|round| figure(round) / gib).collect();
        println!("  {name:<19} {}", row(&figures, "s a GiB", aim));
    };
    let aim = Aim::AtMost(ANALYSIS);
    print("walk", |stages| stages.walk, Aim::None);
    print("mark", |stages| stages.mark, Aim::None);
    print("walk and mark", |stages| stages.walk + stages.mark, aim);
    let types = |stages: &Stages| (stages.mark_and_types - stages.mark).max(0.0);
    print("types and roots", types, Aim::None);
    Ok(())
}

/// CPU time of this thread in user space.
fn user_seconds() -> f64 {
    // SAFETY: all zeroes is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is valid for the write; without success it stays zero.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_utime.tv_sec as f64 + usage.ru_utime.tv_usec as f64 / 1e6
}

fn print_rounds(target: &Target, how: &str, stop: Aim) -> Result<()> {
    let rounds = (0..rounds()).map(|_| Round::run(target.workload.pid(), how));
    let rounds: Vec<Round> = rounds.collect::<Result<_>>()?;
    let of = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Vec<f64>>();
    let gib = target.heap_mib / 1024.0;
    let per_gib = |seconds: &[f64]| seconds.iter().map(|s| s / gib).collect::<Vec<f64>>();
    let stops = of(|round| round.stop_ms);
    println!("  {how}: stop          {}", row(&stops, "ms", stop));
    if how == "fork" {
        let second = of(|round| round.second_stop_ms);
        println!("  {how}: second stop   {}", row(&second, "ms", Aim::None));
    }
    let analysis = per_gib(&of(|round| round.user_s));
    println!(
        "  {how}: analysis      {}",
        row(&analysis, "s a GiB", Aim::None)
    );
    let kernel = per_gib(&of(|round| round.kernel_s));
    println!(
        "  {how}: kernel        {}",
        row(&kernel, "s a GiB", Aim::None)
    );
    let elapsed = per_gib(&of(|round| round.elapsed_s));
    println!(
        "  {how}: elapsed       {}",
        row(&elapsed, "s a GiB", Aim::None)
    );
    let heap_mib = target.heap_mib;
    let peak: Vec<f64> = rounds
        .iter()
        .map(|round| round.peak_mib / heap_mib)
        .collect();
    println!(
        "  {how}: peak          {}",
        row(&peak, "of heap", Aim::AtMost(PEAK))
    );
    Ok(())
}

fn row(figures: &[f64], unit: &str, aim: Aim) -> String {
    let low = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let high = figures.iter().copied().fold(0.0, f64::max);
    let middle = median(figures.to_vec());
    let verdict = check(middle, aim);
    format!("{middle:>8.2} {unit:<8} ({low:.2} to {high:.2})  {verdict}")
}

/// The figures of one `memprof heap`.
struct Round {
    stop_ms: f64,
    second_stop_ms: f64,
    user_s: f64,
    kernel_s: f64,
    elapsed_s: f64,
    peak_mib: f64,
}

impl Round {
    fn run(pid: u32, how: &str) -> Result<Round> {
        let begun = Instant::now();
        let mut memprof = Command::new(env!("CARGO_BIN_EXE_memprof"))
            .args(["heap", "--pid", &pid.to_string(), "--snapshot", how])
            .args(["--format", "json", "--max-stop", "60000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run memprof")?;
        let mut said = Vec::new();
        let mut stdout = memprof.stdout.take().context("no stdout")?;
        stdout.read_to_end(&mut said)?;
        let usage = wait(memprof.id())?;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let heap: Value = serde_json::from_slice(&said)?;
        ensure!(
            heap["allocator"]["name"] == "glibc",
            "{}",
            heap["allocator"]
        );
        ensure!(heap["taken"]["approach"] == how, "{}", heap["taken"]);
        // A snapshot that was taken again would be two.
        ensure!(heap["attempts"] == 1, "{} attempts", heap["attempts"]);
        ensure!(
            heap["unreachable"]["chunks"] == 0,
            "{}",
            heap["unreachable"]
        );
        let ms = |key: &str| heap["taken"][key].as_f64().context("no time of the stop");
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok(Round {
            stop_ms: ms("stop_ms")?,
            second_stop_ms: ms("second_stop_ms")?,
            user_s: seconds(usage.ru_utime),
            kernel_s: seconds(usage.ru_stime),
            elapsed_s,
            peak_mib: usage.ru_maxrss as f64 / 1024.0,
        })
    }
}

/// Waits for a child, which must succeed. Returns its CPU times and its maximum RSS.
fn wait(pid: u32) -> Result<libc::rusage> {
    let mut status = 0;
    // SAFETY: all zeroes is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for the writes.
    let waited = unsafe { libc::wait4(pid.cast_signed(), &raw mut status, 0, &raw mut usage) };
    ensure!(waited >= 0, "wait4: {}", io::Error::last_os_error());
    ensure!(status == 0, "memprof ended with status {status:#x}");
    Ok(usage)
}

/// Over HTTP: memprof's memory before, at its highest, and after.
fn http(bench: &Bench, mib: u64) -> Result<()> {
    let target = Target::start(bench, &["--mib", &mib.to_string()])?;
    let memprof = Profiler::attach(target.workload.pid(), &[])?;
    // The first report and the first snapshot leave symbols and thread stacks behind.
    memprof.get("/v1/tree?short=true")?;
    let before = memprof.rollup("Rss")? as f64 / 1024.0;
    let (mut peaks, mut after) = (Vec::new(), Vec::new());
    for _ in 0..rounds() {
        // Sets the maximum to the present RSS.
        std::fs::write(format!("/proc/{}/clear_refs", memprof.pid()), "5")?;
        let body = r#"{"max_stop": 10000}"#;
        let reply = exchange(memprof.address(), "POST", "/v2/heap", body)?;
        ensure!(reply.has_status(201), "{}", reply.head);
        let taken: Value = serde_json::from_slice(&reply.body)?;
        ensure!(taken["allocator"] == "glibc", "{taken}");
        std::thread::sleep(Duration::from_millis(300));
        after.push(memprof.rollup("Rss")? as f64 / 1024.0 / before);
        peaks.push((high_water(memprof.pid())? - before) / target.heap_mib);
        let path = format!("/v2/heap/{}", taken["id"].as_str().context("no id")?);
        exchange(memprof.address(), "DELETE", &path, "")?;
    }
    println!("  http: before         {before:>8.2} MiB");
    println!(
        "  http: peak above it  {}",
        row(&peaks, "of heap", Aim::AtMost(PEAK))
    );
    println!(
        "  http: after          {}",
        row(&after, "of before", Aim::AtMost(AFTER))
    );
    memprof.end()?;
    target.workload.end()
}

/// A process's maximum RSS, in MiB.
fn high_water(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kib.context("no VmHWM in status")? / 1024.0)
}
