//! The cost of unwinding by unwind tables: synthetic programs without frame pointers, and real programs.
//!
//! ```text
//! cargo bench --bench programs [-- NAME…]      (as root)
//! MEMPROF_BENCH_FULL=1 cargo bench --bench programs      (five pairs of each)
//! ```
//!
//! As in `overhead`, runs without and with memprof alternate. For real programs the CPU time, in user
//! space and in the kernel, is compared. Programs that are not installed are reported as skipped.

#[allow(dead_code, reason = "tests ask it for more")]
#[path = "../tests/common/postgres.rs"]
mod postgres;
mod support;

use std::io::Write;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use support::counters::map_memory;
use support::pairs::{Aim, Pairs, number, verdict};
use support::profiler::Profiler;
use support::skip::skip_named;
use support::workload::compile_without_frame_pointers;
use support::{Bench, Killed, Measurement, pin};

const PATIENCE: Duration = Duration::from_secs(60);

const MEASUREMENTS: [Measurement; 8] = [
    ("touch", touch),
    ("paths", paths),
    ("rustc", rustc),
    ("python", python),
    ("ruby", ruby),
    ("sqlite", sqlite),
    ("redis", redis),
    ("postgres", postgres_load),
];

/// The number of pairs: in the short form the middle one of three.
fn pairs_of_each() -> usize {
    number(3, 5)
}

fn main() -> ExitCode {
    let bench = Bench::prepare("bench-without-fp", compile_without_frame_pointers);
    Bench::main(bench, &MEASUREMENTS)
}

/// The row of a workload with all stacks walked; returns the median of what memprof adds.
fn all_stacks(bench: &Bench, program: &str, args: &[&str], pairs: Pairs) -> Result<f64> {
    bench.pairs(program, args, &["--stacks", "all"], pairs_of_each(), pairs)
}

/// One loop touches all pages, so the unwound stack is cached.
fn touch(bench: &Bench) -> Result<()> {
    let args = ["--start-on-stdin", "--mib", "256", "--depth", "22"];
    let name = "page touch, all stacks, 22 frames by tables";
    let pairs = Pairs::new(name, "ns/page", Aim::AtMost(1.35));
    all_stacks(bench, "touch", &args, pairs).map(drop)
}

/// Each page is touched under a different stack than the page before.
fn paths(bench: &Bench) -> Result<()> {
    let mut costs = Vec::new();
    for (depth, aim) in [("22", Aim::AtMost(1.75)), ("100", Aim::None)] {
        let name = format!("every stack different, all walked, {depth} frames");
        let pairs = Pairs::new(name, "ns/page", aim);
        let args = ["--start-on-stdin", "--depth", depth];
        costs.push(all_stacks(bench, "paths", &args, pairs)?);
    }
    let a_frame = (costs[1] - costs[0]) / 78.0;
    println!(
        "  one frame more: {a_frame:.0} ns  {}",
        verdict(a_frame, Aim::AtMost(150.0))
    );
    Ok(())
}

/// A command that waits for a line before it executes the program.
struct Gate(Child);

impl Gate {
    fn start(bench: &Bench, command: &[&str]) -> Result<Gate> {
        let child = Command::new("sh")
            .args(["-c", "read -r go && exec \"$@\"", "sh"])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run sh")?;
        pin(child.id(), bench.cpus.workload)?;
        Ok(Gate(child))
    }

    /// Lets it run to its end, and returns its CPU time.
    fn run(mut self) -> Result<Duration> {
        let mut stdin = self.0.stdin.take().context("no stdin")?;
        stdin.write_all(b"go\n")?;
        drop(stdin);
        let mut status = 0;
        // SAFETY: rusage contains only integers, for which zero is valid.
        let mut used: libc::rusage = unsafe { std::mem::zeroed() };
        let pid = self.0.id().cast_signed();
        // SAFETY: both pointers outlive the call; the child is ours and not waited for elsewhere.
        let got = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) };
        ensure!(
            got > 0 && status == 0,
            "the program ended with status {status:#x}"
        );
        let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, 1000 * t.tv_usec as u32);
        Ok(time(used.ru_utime) + time(used.ru_stime))
    }
}

fn there(program: &str) -> bool {
    // An absolute path stands for itself.
    let found = std::env::var_os("PATH")
        .is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    if !found {
        skip_named("bench programs", format_args!("{program} is not installed"));
    }
    found
}

/// The CPU time of a command, without and with memprof with these options. `look` is called with memprof after the
/// command has ended.
fn command(
    bench: &Bench,
    command: &[&str],
    options: &str,
    name: &str,
    aim: f64,
    mut look: impl FnMut(&Profiler) -> Result<()>,
) -> Result<()> {
    if !there(command[0]) {
        return Ok(());
    }
    let name = format!("{name}, {options}");
    let options: Vec<&str> = options.split(' ').collect();
    let mut figures = [Pairs::new(name, "ms", Aim::AtMost(aim))];
    Pairs::settle(&mut figures, pairs_of_each(), |[pairs]| {
        let without = Gate::start(bench, command)?.run()?;
        let gate = Gate::start(bench, command)?;
        let memprof = Profiler::attach(gate.0.id(), &options)?;
        let with = gate.run()?;
        look(&memprof)?;
        pairs.add_own(memprof.cpu_time()?);
        memprof.end()?;
        pairs.add(without.as_secs_f64() * 1e3, with.as_secs_f64() * 1e3);
        Ok(())
    })?;
    println!("{}", figures[0].row());
    Ok(())
}

fn rustc(bench: &Bench) -> Result<()> {
    let dir = bench.programs.join("crate");
    std::fs::create_dir_all(&dir)?;
    let source = dir.join("small.rs");
    let types = (0..40).map(|n| {
        let derives = "Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default";
        format!("#[derive({derives})] pub struct S{n} {{ pub a: Vec<u64>, pub b: String }}\n")
    });
    std::fs::write(&source, types.collect::<String>())?;
    let (dir, source) = (dir.to_string_lossy(), source.to_string_lossy());
    let args = [
        "rustc",
        "-O",
        "--crate-type=lib",
        "--out-dir",
        &dir,
        &source,
    ];
    let mut memory = 0;
    command(
        bench,
        &args,
        "--stacks auto",
        "rustc on a small crate",
        1.06,
        |memprof| {
            memory = map_memory(
                memprof.pid(),
                &["memprof_rows", "unwind_pages", "unwind_rules"],
            )?;
            Ok(())
        },
    )?;
    let mib = memory as f64 / f64::from(1 << 20);
    println!(
        "  its tables: {mib:.1} MiB  {}",
        verdict(mib, Aim::AtMost(16.0))
    );
    Ok(())
}

/// An interpreter's program, with each of the options.
fn interpreted(
    bench: &Bench,
    command_line: &[&str],
    name: &str,
    aims: &[(&str, f64)],
) -> Result<()> {
    let mut aims = aims.iter();
    aims.try_for_each(|(options, aim)| {
        command(bench, command_line, options, name, *aim, |_| Ok(()))
    })
}

/// With and without its own functions: the difference is what they cost.
fn python(bench: &Bench) -> Result<()> {
    // Not from PATH, where a version manager's wrapper script may come first.
    let run = |script, name, aims: &[(&str, f64)]| {
        interpreted(bench, &["/usr/bin/python3", "-c", script], name, aims)
    };
    // Imports and parses much: a new process with many page faults, most of them with new stacks.
    run(
        "import json, ast, inspect, decimal, argparse, xml.dom.minidom\n\
        for m in (json, inspect, argparse): ast.parse(inspect.getsource(m))",
        "CPython, start and parsing",
        &[("--stacks all", 1.15), ("--stacks all --python off", 1.15)],
    )?;
    run(
        "import ast, glob\n\
        for f in sorted(glob.glob('/usr/lib/python3*/*.py'))[:120]:\n\
        \x20   ast.parse(open(f, encoding='utf8').read())",
        "CPython, parsing its library",
        &[
            ("--stacks auto", 1.10),
            ("--stacks auto --python off", 1.05),
            ("--stacks all", 1.10),
            ("--stacks all --python off", 1.08),
        ],
    )
}

fn ruby(bench: &Bench) -> Result<()> {
    let script = "require 'ripper'\n\
        $LOAD_PATH.flat_map { |d| Dir[\"#{d}/**/*.rb\"] }.sort.first(200)\n\
        \x20   .each { |f| Ripper.sexp(File.read(f)) }";
    interpreted(
        bench,
        &["/usr/bin/ruby", "-e", script],
        "Ruby, parsing its library",
        &[
            ("--stacks auto", 1.10),
            ("--stacks auto --ruby off", 1.05),
            ("--stacks all", 1.10),
            ("--stacks all --ruby off", 1.08),
        ],
    )
}

fn sqlite(bench: &Bench) -> Result<()> {
    let sql = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n REAL);
        WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 50000)
        INSERT INTO t SELECT n, 'name ' || n, n * 1.5 FROM c;
        WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 40)
        SELECT sum(length(name) * c.n) FROM t, c;";
    let args = ["sqlite3", ":memory:", sql];
    command(
        bench,
        &args,
        "--stacks auto",
        "SQLite, one table again and again",
        1.02,
        |_| Ok(()),
    )
}

/// CPU time of a process so far.
fn cpu_time(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let ns = stat
        .split_whitespace()
        .next()
        .context("schedstat is empty")?;
    Ok(ns.parse::<f64>()? / 1e6)
}

fn redis(bench: &Bench) -> Result<()> {
    if !there("redis-server") || !there("redis-benchmark") {
        return Ok(());
    }
    let socket = bench.programs.join("redis.sock");
    let _ = std::fs::remove_file(&socket);
    let place = socket.to_string_lossy();
    let server = Command::new("redis-server")
        .args([
            "--port",
            "0",
            "--unixsocket",
            &place,
            "--save",
            "",
            "--daemonize",
            "no",
        ])
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run redis-server")?;
    let server = Killed(server);
    pin(server.0.id(), bench.cpus.workload)?;
    let began = Instant::now();
    while !socket.exists() {
        ensure!(began.elapsed() < PATIENCE, "redis-server does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The CPU time of the main thread, which does all the work. The load uses the same keys repeatedly.
    let load = || -> Result<f64> {
        let before = cpu_time(server.0.id())?;
        let args = [
            "-q",
            "-n",
            "60000",
            "-r",
            "5000",
            "-d",
            "100",
            "-t",
            "set,get,lpush,rpop,hset",
        ];
        let ended = Command::new("redis-benchmark")
            .args(["-s", &place])
            .args(args)
            .output()?;
        ensure!(ended.status.success(), "redis-benchmark failed");
        Ok(cpu_time(server.0.id())? - before)
    };
    steady("Redis under steady load", server.0.id(), &[], load)
}

/// CPU time in ms of successive loads on a running server, without and with memprof.
fn steady(name: &str, pid: u32, args: &[&str], load: impl Fn() -> Result<f64>) -> Result<()> {
    load()?;
    let mut figures = [Pairs::new(name, "ms", Aim::AtMost(1.02))];
    Pairs::settle(&mut figures, pairs_of_each(), |[pairs]| {
        let without = load()?;
        let memprof = Profiler::attach(pid, args)?;
        let with = load()?;
        pairs.add_own(memprof.cpu_time()?);
        memprof.end()?;
        pairs.add(without, with);
        Ok(())
    })?;
    println!("{}", figures[0].row());
    Ok(())
}

/// Readers of one table; the server's processes are followed as they start.
fn postgres_load(bench: &Bench) -> Result<()> {
    let Some(database) = postgres::Postgres::start() else {
        skip_named("bench programs", "postgres is not installed");
        return Ok(());
    };
    pin(database.pid(), bench.cpus.workload)?;
    database.run("pgbench", &["-i", "-q", "-s", "2"]);
    // One connection, so one process. Once the server has waited for it, its CPU time is in that of the
    // server's children.
    let load = || -> Result<f64> {
        let before = cpu_time_of_children(database.pid())?;
        database.run("pgbench", &["-n", "-S", "-c", "1", "-t", "30000"]);
        let began = Instant::now();
        loop {
            // A smaller value comes from other short-lived children.
            let used = cpu_time_of_children(database.pid())? - before;
            if used >= 100.0 {
                return Ok(used);
            }
            let long = began.elapsed() > PATIENCE;
            ensure!(!long, "the server's process does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let args = ["--follow-forks"];
    steady("PostgreSQL, readers", database.pid(), &args, load)
}

/// CPU time in ms of a process's ended children, with a resolution of 10 ms.
fn cpu_time_of_children(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("stat has no name")?;
    let fields = rest.split(' ').skip(13).take(2);
    let ticks: f64 = fields.map(|n| n.parse::<f64>()).sum::<Result<_, _>>()?;
    // USER_HZ is 100 everywhere.
    Ok(ticks * 10.0)
}
