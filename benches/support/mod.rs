//! Shared parts of the benchmarks: workloads, a running memprof, its counters, and paired figures.

#![allow(dead_code, reason = "each benchmark uses its own part")]

pub mod counters;
pub mod group;
pub mod pairs;
pub mod profiler;
#[path = "../../tests/common/skip.rs"]
pub mod skip;
pub mod times;
pub mod workload;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use pairs::{HEAD, Pairs};
use profiler::Profiler;
use workload::{Workload, figure};

/// Timeout for attaching, replying and ending.
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment of a measurement.
pub struct Bench {
    pub cpus: Cpus,
    /// Directory of the compiled workloads.
    pub programs: PathBuf,
}

/// The name on the command line, and the function that measures and prints.
pub type Measurement = (&'static str, fn(&Bench) -> Result<()>);

impl Bench {
    /// Compiles the workloads into a directory of this name, and pins this process to memprof's CPU.
    pub fn prepare(dir: &str, compile: fn(&Path) -> Result<()>) -> Result<Bench> {
        let bench = Bench::unpinned(dir, compile)?;
        // Processes started from here on inherit this CPU, except workloads.
        pin(0, bench.cpus.memprof)?;
        Ok(bench)
    }

    /// Like `prepare`, but pins nothing.
    pub fn unpinned(dir: &str, compile: fn(&Path) -> Result<()>) -> Result<Bench> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "memprof needs root, and so do its benchmarks: run `sudo -E cargo bench`"
        );
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
        compile(&programs)?;
        let cpus = Cpus::choose()?;
        Ok(Bench { cpus, programs })
    }

    pub fn start(&self, program: &str, args: &[&str]) -> Result<Workload> {
        Workload::start(&self.programs.join(program), args, self.cpus)
    }

    /// Prints the row of a workload without and with memprof, and returns the median of what memprof adds.
    pub fn pairs(
        &self,
        program: &str,
        args: &[&str],
        options: &[&str],
        n: usize,
        pairs: Pairs,
    ) -> Result<f64> {
        let run = |with: bool| -> Result<f64> {
            let mut workload = self.start(program, args)?;
            let memprof = with
                .then(|| Profiler::attach(workload.pid(), options))
                .transpose()?;
            let figures = workload.go()?;
            workload.end()?;
            memprof.map_or(Ok(()), Profiler::end)?;
            figure(&figures, "ns_per_page")
        };
        let mut figures = [pairs];
        Pairs::settle(&mut figures, n, |[pairs]| {
            pairs.add(run(false)?, run(true)?);
            Ok(())
        })?;
        println!("{}", figures[0].row());
        Ok(figures[0].added())
    }

    /// Runs the measurements whose names contain one of the command line's words; without words, all.
    pub fn main(prepared: Result<Bench>, measurements: &[Measurement]) -> ExitCode {
        Bench::main_with(HEAD, prepared, measurements)
    }

    /// Like `main`, with another table head.
    pub fn main_with(
        head: &str,
        prepared: Result<Bench>,
        measurements: &[Measurement],
    ) -> ExitCode {
        // cargo passes `--bench`.
        let wanted: Vec<String> = std::env::args()
            .skip(1)
            .filter(|a| !a.starts_with("--"))
            .collect();
        let bench = match prepared {
            Ok(bench) => bench,
            Err(e) => {
                eprintln!("cannot measure: {e:#}");
                return ExitCode::FAILURE;
            }
        };
        println!("{head}");
        let mut failed = Vec::new();
        for (name, measure) in measurements {
            if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
                continue;
            }
            if let Err(e) = measure(&bench) {
                println!("FAILED {name}: {e:#}");
                failed.push(*name);
            }
        }
        if !failed.is_empty() {
            println!("failed: {}", failed.join(" "));
            return ExitCode::FAILURE;
        }
        if pairs::fails() {
            println!("failed: an aim was missed on a quiet machine (MEMPROF_BENCH_STRICT)");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

/// A process, killed when dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a request to memprof's server; returns the reply.
pub fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.with_context(|| format!("no header in the reply to {method} {path}"))?;
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Reply { head, body })
}

pub struct Reply {
    /// The status line and the headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn has_status(&self, status: u16) -> bool {
        self.head.starts_with(&format!("HTTP/1.1 {status} "))
    }
}

/// The CPUs of the workload and of memprof with this program: different ones if there are two.
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

pub fn milliseconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}

/// Pins a process (0: this one) and its later children to a CPU.
pub fn pin(pid: u32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(pid.cast_signed()), &set)
        .with_context(|| format!("cannot pin process {pid} to CPU {cpu}"))
}
