//! How long targets are frozen for a report: with many threads, many pages, many processes.
//!
//! ```text
//! cargo bench --bench freeze [-- NAME…]      (as root)
//! ```
//!
//! `pages` uses 10 GiB, or what the machine has free. Each target is measured with the default time limit and with
//! a practically unlimited one. "stood still" is memprof's figure. "did not run" is the target's own figure, which
//! is longer: the target notices the stop only when it next gets a CPU.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use support::pairs::is_short;
use support::profiler::Profiler;
use support::workload::compile;
use support::{Bench, Measurement, exchange};

const ROUNDS: usize = 5;
/// Memory left to other processes on the machine, in MiB.
const RESERVE: u64 = 3 << 10;
const MEASUREMENTS: [Measurement; 3] = [
    ("threads", |bench| measure(bench, "threads", scaled(20_000))),
    ("pages", pages),
    ("processes", |bench| measure(bench, "forks", scaled(400))),
];

fn main() -> ExitCode {
    Bench::main(Bench::prepare("bench-freeze", prepare), &MEASUREMENTS)
}

/// How much of something the target has: in a short run a tenth.
fn scaled(usual: u64) -> u64 {
    if is_short() { usual / 10 } else { usual }
}

fn prepare(to: &Path) -> Result<()> {
    compile(to)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/traced.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-pthread", "-fno-omit-frame-pointer", "-o"]);
    let done = cc.args([&to.join("traced"), &source]).status()?;
    ensure!(done.success(), "cc failed on {}", source.display());
    Ok(())
}

fn pages(bench: &Bench) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let free = kib.context("/proc/meminfo has no MemAvailable")? / 1024;
    measure(
        bench,
        "pages",
        free.saturating_sub(RESERVE).min(scaled(10 << 10)),
    )
}

fn measure(bench: &Bench, what: &str, n: u64) -> Result<()> {
    let mut target = Target::start(&bench.programs.join("traced"), what, n)?;
    for (bound, how) in [
        ("50", "freeze"),
        ("60000", "freeze"),
        ("60000", "freeze_group"),
    ] {
        let mut args = vec!["--max-freeze", bound];
        args.extend((what == "forks").then_some("--follow-forks"));
        if how == "freeze_group" && what != "forks" {
            continue;
        }
        println!("{n} {what}, --max-freeze {bound}, {how}");
        let memprof = Profiler::attach(target.child.id(), &args)?;
        for _ in 0..ROUNDS {
            target.longest()?;
            let reply = mark(&memprof, how)?;
            println!(
                "  {reply}; did not run for {:.1} ms",
                target.longest()? as f64 / 1e3
            );
        }
        memprof.end()?;
    }
    target.end()
}

/// Creates a mark and deletes it again; returns a description of how it went.
fn mark(memprof: &Profiler, how: &str) -> Result<String> {
    let body = format!("{{\"{how}\": true}}");
    let reply = send(memprof, "POST", "/v2/marks", &body)?;
    let Ok(mark) = serde_json::from_str::<Value>(&reply) else {
        return Ok(reply.trim_end().to_owned());
    };
    let path = format!("/v2/marks/{}", mark["id"].as_str().unwrap_or_default());
    send(memprof, "DELETE", &path, "")?;
    let ms = mark["stopped_us"].as_u64().context("it did not stop")? as f64 / 1e3;
    let turn = match mark["stopped_in_turn"] == true {
        true => "one after the other, each up to",
        false => "at once for",
    };
    Ok(format!(
        "stood still {turn} {ms:.1} ms, exact: {}",
        mark["exact"]
    ))
}

/// Sends a request; returns the body of the reply.
fn send(memprof: &Profiler, method: &str, path: &str, body: &str) -> Result<String> {
    let reply = exchange(memprof.address(), method, path, body)?;
    Ok(String::from_utf8(reply.body)?)
}

/// A program that measures how long it did not run.
struct Target {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, what: &str, n: u64) -> Result<Target> {
        let mut child = Command::new(program)
            .args([what, &n.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run the workload")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let mut target = Target {
            child,
            said: BufReader::new(stdout),
        };
        ensure!(target.line()? == "ready", "the workload did not start");
        Ok(target)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The longest time since the last call during which it did not run, in microseconds.
    fn longest(&mut self) -> Result<u64> {
        let stdin = self.child.stdin.as_mut().context("no stdin")?;
        writeln!(stdin)?;
        Ok(self.line()?.parse()?)
    }

    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the workload failed");
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
