//! How long memprof takes to start and to stop, and what short jobs pay for that.
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
use support::pairs::{Aim, median, number};
use support::profiler::Profiler;
use support::skip::skip_named;
use support::times::{HEAD, Times};
use support::workload::compile;
use support::{Bench, Killed, Measurement, exchange};

const MEMPROF: &str = env!("CARGO_BIN_EXE_memprof");
const MEASUREMENTS: [Measurement; 5] = [
    ("jobs", jobs),
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

/// Jobs of less than a second: 400,000 rows in SQLite, 60 files parsed by CPython.
const JOBS: [(&str, &[&str]); 2] = [
    (
        "sqlite3",
        &[
            "sqlite3",
            ":memory:",
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
             INSERT INTO t SELECT i, printf('row %d %x', i, i * 7919), i * 0.5 FROM n;
             CREATE INDEX tb ON t(b);
             SELECT count(*), sum(c) FROM t WHERE b LIKE 'row 1%';",
        ],
    ),
    (
        "python3",
        &[
            "python3",
            "-c",
            "import ast, glob, os
for f in sorted(glob.glob(os.path.dirname(os.__file__) + '/*.py'))[:60]:
    ast.parse(open(f, errors='replace').read())",
        ],
    ),
];

/// The tools that run a job; `OUT` stands for their output file.
const TOOLS: [(&str, &[&str]); 4] = [
    ("alone", &[]),
    ("memprof", &[MEMPROF, "--no-server", "-o", "OUT", "--"]),
    (
        "memprof --heap",
        &[MEMPROF, "--no-server", "--heap", "-o", "OUT", "--"],
    ),
    ("heaptrack", &["heaptrack", "-o", "OUT"]),
];

/// Short jobs alone, under memprof, and under heaptrack, in turn: wall-clock and CPU time of all processes, and the ratios to
/// the job alone.
fn jobs(bench: &Bench) -> Result<()> {
    for (job, command) in JOBS {
        let known = TOOLS.map(|(_, tool)| is_there(tool.first().copied().unwrap_or(command[0])));
        if !known[0] {
            skip_named(&format!("bench start: {job}"), "it is not installed");
            continue;
        }
        let mut taken: [Vec<[f64; 2]>; TOOLS.len()] = Default::default();
        for _ in 0..runs()? {
            for (n, (_, tool)) in TOOLS.iter().enumerate().filter(|(n, _)| known[*n]) {
                taken[n].push(run_job(bench, &[tool, command].concat())?);
            }
        }
        for (n, (tool, _)) in TOOLS.iter().enumerate() {
            let ratio = |what: usize| {
                let pairs = taken[n].iter().zip(&taken[0]);
                median(
                    pairs
                        .map(|(with, alone)| with[what] / alone[what])
                        .collect(),
                )
            };
            let time = |what: usize| median(taken[n].iter().map(|t| t[what]).collect());
            if known[n] {
                println!(
                    "{job:<8} {tool:<16} wall {:>5.0} ms {:>5.2}   CPU {:>5.0} ms {:>5.2}",
                    time(0),
                    ratio(0),
                    time(1),
                    ratio(1)
                );
            }
        }
    }
    Ok(())
}

/// Whether a program is installed.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Wall-clock and CPU time of a command, in ms.
fn run_job(bench: &Bench, words: &[&str]) -> Result<[f64; 2]> {
    let out = bench.programs.join("job.pb.gz");
    let words = words.iter().map(|word| match *word {
        "OUT" => out.as_os_str(),
        word => word.as_ref(),
    });
    let words: Vec<_> = words.collect();
    let (started, before) = (now()?, used()?);
    let status = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", words[0].display()))?;
    ensure!(
        status.success(),
        "{} ended with {status}",
        words[0].display()
    );
    Ok([now()? - started, used()? - before])
}

/// A process to attach to.
fn idle_target(bench: &Bench) -> Result<Killed> {
    let target = Command::new(bench.programs.join("moments"))
        .arg("--wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    target.map(Killed).context("cannot run the workload")
}

/// The instructions that the kernel's verifier checks while memprof starts, by program. No noise changes them: a
/// microsecond or more for each.
fn verified(bench: &Bench) -> Result<()> {
    let target = idle_target(bench)?;
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
    let target = idle_target(bench)?;
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
