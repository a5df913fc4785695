//! How long memprof takes to start and to stop.
//!
//! ```text
//! cargo bench --bench start [-- NAME…]      (as root; MEMPROF_BENCH_RUNS=21 for more runs than 5)
//! ```
//!
//! Wall-clock times: on a shared machine they are too long. Nothing is pinned to a CPU.

mod support;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::query::ProgInfoIter;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::unistd::Pid;

use support::counters::programs;
use support::pairs::{Aim, number};
use support::profiler::Profiler;
use support::times::{HEAD, Times};
use support::workload::compile;
use support::{Bench, Killed, Measurement, exchange};

const MEMPROF: &str = env!("CARGO_BIN_EXE_memprof");
const MEASUREMENTS: [Measurement; 4] = [
    ("command", command),
    ("true", plain),
    ("attach", attach),
    ("verifier", verified),
];

fn main() -> ExitCode {
    Bench::main_with(HEAD, Bench::unpinned("bench-start", compile), &MEASUREMENTS)
}

fn runs() -> Result<usize> {
    match std::env::var("MEMPROF_BENCH_RUNS") {
        Ok(text) => text.parse().context("MEMPROF_BENCH_RUNS is no number"),
        Err(_) => Ok(number(5, 5)),
    }
}

/// Time of the monotonic clock, in ms.
fn now() -> Result<f64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    ensure!(failed == 0, "the monotonic clock cannot be read");
    Ok(time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6)
}

/// The times that `moments` printed, in ms.
fn moments(line: &str) -> Result<(f64, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["began_ns", began, "ended_ns", ended] = words[..] else {
        anyhow::bail!("the workload printed {line:?}");
    };
    Ok((began.parse::<f64>()? / 1e6, ended.parse::<f64>()? / 1e6))
}

/// A command after `--`: from memprof's exec to the command's main function, and from the end of main to
/// the end of memprof.
fn command(bench: &Bench) -> Result<()> {
    let program = bench.programs.join("moments");
    let mut rows = [
        Times::new("`-- COMMAND`: start until main runs", Aim::AtMost(250.0)),
        Times::new(
            "`-- COMMAND`: end of main until memprof ended",
            Aim::AtMost(150.0),
        ),
        Times::new("`-- COMMAND`: both", Aim::AtMost(400.0)),
    ];
    for _ in 0..runs()? {
        let started = now()?;
        let out = Command::new(MEMPROF)
            .args(["--no-server", "--"])
            .arg(&program)
            .stdin(Stdio::null())
            .output()
            .context("cannot run memprof")?;
        let ended = now()?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(
            out.status.success(),
            "memprof ended with {}: {said}",
            out.status
        );
        let (main_began, main_ended) = moments(&String::from_utf8_lossy(&out.stdout))?;
        rows[0].add(main_began - started);
        rows[1].add(ended - main_ended);
        rows[2].add(main_began - started + ended - main_ended);
    }
    rows.iter().for_each(|row| println!("{}", row.row()));
    Ok(())
}

/// CPU time of this process's ended children and their ended children, in user space and in the kernel, in ms.
fn used() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let times = usage.user_time() + usage.system_time();
    Ok(times.num_microseconds() as f64 / 1e3)
}

/// The total time with a command that does nothing.
fn plain(_: &Bench) -> Result<()> {
    let mut row = Times::new("`memprof --no-server -- /bin/true`", Aim::AtMost(150.0));
    let mut cpu = Times::new("the same, CPU time of all processes", Aim::AtMost(150.0));
    for _ in 0..runs()? {
        let (started, before) = (now()?, used()?);
        let out = Command::new(MEMPROF)
            .args(["--no-server", "--", "/bin/true"])
            .stdin(Stdio::null())
            .output()
            .context("cannot run memprof")?;
        row.add(now()? - started);
        cpu.add(used()? - before);
        ensure!(out.status.success(), "memprof ended with {}", out.status);
    }
    println!("{}\n{}", row.row(), cpu.row());
    Ok(())
}

/// The instructions that the kernel's verifier checks while memprof starts, by program. No noise changes them: a
/// microsecond or more for each.
fn verified(bench: &Bench) -> Result<()> {
    let target = Command::new(bench.programs.join("moments"))
        .arg("--wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run the workload")?;
    let target = Killed(target);
    let profiler = Profiler::attach_alone(target.0.id(), &[])?;
    let ids = programs(profiler.pid())?;
    let mut rows: Vec<(u32, String)> = ProgInfoIter::default()
        .filter(|program| ids.contains(&program.id))
        .map(|p| (p.verified_insns, p.name.to_string_lossy().into_owned()))
        .collect();
    ensure!(!rows.is_empty(), "memprof holds no BPF program");
    rows.sort_unstable_by(|a, b| b.cmp(a));
    let all: u32 = rows.iter().map(|(instructions, _)| instructions).sum();
    println!("instructions that the verifier checks: {all}");
    for (instructions, name) in rows.iter().filter(|(n, _)| *n >= all / 50) {
        println!("  {instructions:>7}  {name}");
    }
    profiler.end()
}

/// Attaching to a running process: time until memprof says that it follows it, until the first summary over
/// HTTP, and from SIGINT to the end.
fn attach(bench: &Bench) -> Result<()> {
    let target = Command::new(bench.programs.join("moments"))
        .arg("--wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run the workload")?;
    let target = Killed(target);
    let mut rows = [
        Times::new("`--pid`: start until it follows", Aim::AtMost(250.0)),
        Times::new("`--pid`: start until the first summary", Aim::None),
        Times::new("`--pid`: SIGINT until memprof ended", Aim::AtMost(150.0)),
    ];
    for _ in 0..runs()? {
        let started = now()?;
        let child = Command::new(MEMPROF)
            .args([
                "--pid",
                &target.0.id().to_string(),
                "--listen",
                "127.0.0.1:0",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run memprof")?;
        let mut memprof = Killed(child);
        let stderr = memprof.0.stderr.take().context("no stderr")?;
        let address = following(BufReader::new(stderr))?;
        rows[0].add(now()? - started);
        first_summary(address)?;
        rows[1].add(now()? - started);
        let interrupted = now()?;
        kill(Pid::from_raw(memprof.0.id().cast_signed()), Signal::SIGINT)?;
        let status = memprof.0.wait()?;
        rows[2].add(now()? - interrupted);
        ensure!(status.success(), "memprof ended with {status}");
    }
    rows.iter().for_each(|row| println!("{}", row.row()));
    Ok(())
}

/// Reads until memprof serves and follows; returns the server's address.
fn following(stderr: impl BufRead + Send + 'static) -> Result<SocketAddr> {
    let (mut address, mut follows, mut all) = (None, false, String::new());
    let mut lines = stderr.lines();
    while address.is_none() || !follows {
        let line = lines
            .next()
            .with_context(|| format!("memprof ended; it said {all}"))??;
        if let Some((_, url)) = line.split_once("serving http://") {
            address = url.strip_suffix('/').map(str::to_owned);
        }
        follows |= line.contains(" following ");
        all += &(line + "\n");
    }
    // Keep reading, so that memprof can write its last messages.
    std::thread::spawn(move || lines.for_each(drop));
    let address = address.context("memprof said no address")?;
    Ok(address.parse()?)
}

/// Requests the summary until there is one.
fn first_summary(address: SocketAddr) -> Result<()> {
    for _ in 0..10_000 {
        let reply = exchange(address, "GET", "/v2/summary", "")?;
        if reply.has_status(200) {
            return Ok(());
        }
        ensure!(reply.has_status(503), "GET /v2/summary: {}", reply.head);
        std::thread::sleep(Duration::from_millis(2));
    }
    anyhow::bail!("no summary")
}
