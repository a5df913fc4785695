//! A memprof process: attached to a target, queried over HTTP, ended, and its own cost.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::pairs::is_short;
use super::{PATIENCE, exchange, milliseconds};

/// Heads the rows of the summary's losses that are no losses: what memprof leaves out on purpose.
const NOT_LOSSES: &str = "Not counted,";

/// A memprof that follows its target.
pub struct Profiler {
    child: Child,
    stdout: ChildStdout,
    said: Receiver<String>,
    address: Option<SocketAddr>,
}

impl Profiler {
    /// Attaches memprof to this process; returns once it is attached.
    pub fn attach(pid: u32, args: &[&str]) -> Result<Profiler> {
        Self::follow(&["--pid", &pid.to_string()], args)
    }

    /// Starts a memprof that follows what these words select; returns once it follows a process.
    pub fn follow(selector: &[&str], args: &[&str]) -> Result<Profiler> {
        Self::spawn(&[selector, &["--listen", "127.0.0.1:0"], args].concat())
    }

    /// Attaches a memprof that serves no HTTP.
    pub fn attach_alone(pid: u32, args: &[&str]) -> Result<Profiler> {
        let pid = pid.to_string();
        Self::spawn(&[&["--pid", &pid, "--no-server"], args].concat())
    }

    fn spawn(args: &[&str]) -> Result<Profiler> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memprof"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run memprof")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let said = lines(child.stderr.take().context("no stderr")?);
        match attached(&said, !args.contains(&"--no-server")) {
            Ok(address) => Ok(Profiler {
                child,
                stdout,
                said,
                address,
            }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address.expect("a memprof that serves")
    }

    /// The body of the reply; fails unless its status is 200.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        let reply = exchange(self.address(), "GET", path, "")?;
        ensure!(reply.has_status(200), "GET {path}: {}", reply.head);
        Ok(reply.body)
    }

    /// Waits until the newest report is too old to be reused.
    pub fn age(&self) {
        std::thread::sleep(Duration::from_millis(60));
    }

    /// Has memprof make its first report, with names: it reads what later ones know. Waits until that has ended.
    pub fn settle(&self) -> Result<()> {
        self.get("/v1/tree")?;
        std::thread::sleep(tried(Duration::from_millis(500)));
        self.short("total").map(drop)
    }

    /// memprof's CPU time without a request, in ms per second.
    pub fn idle_share(&self, during: Duration) -> Result<f64> {
        let (time, cpu) = self.times(|| {
            std::thread::sleep(tried(during));
            Ok(())
        })?;
        Ok(1e3 * cpu / time)
    }

    /// A number of the short report, in KiB.
    pub fn short(&self, key: &str) -> Result<u64> {
        let body = self.get("/v1/tree?short=true")?;
        let report: serde_json::Value = serde_json::from_slice(&body)?;
        report[key]
            .as_u64()
            .with_context(|| format!("no {key} in {report}"))
    }

    /// CPU time used so far, by all threads, in user space and in the kernel.
    pub fn cpu_time(&self) -> Result<Duration> {
        let mut clock = 0;
        // SAFETY: `clock` outlives the call.
        let failed = unsafe { libc::clock_getcpuclockid(self.pid().cast_signed(), &raw mut clock) };
        ensure!(failed == 0, "memprof has no CPU clock: it has ended");
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` outlives the call.
        let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
        ensure!(failed == 0, "memprof's CPU clock cannot be read");
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    /// Runs `work`; returns its time and memprof's CPU time in it, in ms.
    pub fn times(&self, work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
        let before = self.cpu_time()?;
        let time = milliseconds(work)?;
        let used = self.cpu_time()?.saturating_sub(before);
        Ok((time, used.as_secs_f64() * 1e3))
    }

    /// A field of `/proc/PID/smaps_rollup`, in KiB.
    pub fn rollup(&self, field: &str) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let value = text.lines().find_map(|line| {
            let rest = line.strip_prefix(field)?.strip_prefix(':')?;
            rest.trim().strip_suffix(" kB")?.parse().ok()
        });
        value.with_context(|| format!("no {field} in smaps_rollup"))
    }

    /// Ends memprof with SIGINT; fails unless it ends successfully and its summary reports no losses.
    pub fn end(self) -> Result<()> {
        let losses = self.end_with_losses()?;
        ensure!(losses.is_empty(), "memprof reports losses: {losses:?}");
        Ok(())
    }

    /// Ends memprof with SIGINT; returns the losses that its summary reports. Fails unless it ends successfully.
    pub fn end_with_losses(mut self) -> Result<Vec<String>> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT)?;
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    bail!("memprof did not end within {PATIENCE:?}");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let messages: Vec<String> = self.said.try_iter().collect();
        ensure!(
            status.success(),
            "memprof ended with {status}: {messages:?}"
        );
        let mut summary = String::new();
        self.stdout.read_to_string(&mut summary)?;
        losses(&summary)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // memprof has already ended, or a measurement failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A wait, of which a short run takes a tenth.
fn tried(wait: Duration) -> Duration {
    if is_short() { wait / 10 } else { wait }
}

fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (send, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    said
}

/// Waits until memprof follows and, if it is to, serves; returns the server's address.
fn attached(said: &Receiver<String>, serves: bool) -> Result<Option<SocketAddr>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut address, mut following, mut all) = (None, false, Vec::new());
    loop {
        if following && (address.is_some() || !serves) {
            return Ok(address);
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        let line = match said.recv_timeout(rest) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("memprof did not attach: it said {all:#?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("memprof ended; it said {all:#?}"),
        };
        if let Some((_, url)) = line.split_once("serving http://") {
            let end = url.find('/').unwrap_or(url.len());
            address = Some(url[..end].parse()?);
        }
        following |= line.contains(" following ");
        all.push(line);
    }
}

/// The rows below `Losses:` in a summary.
///
/// # Errors
/// If there is no such line.
pub fn losses(summary: &str) -> Result<Vec<String>> {
    let (_, rest) = summary
        .split_once("\nLosses:")
        .context("the summary says nothing of losses")?;
    let (first, rows) = rest.split_once('\n').unwrap_or((rest, ""));
    if first.trim() == "none" {
        return Ok(Vec::new());
    }
    let rows = rows.lines().map(str::trim);
    let rows = rows.take_while(|row| !row.is_empty() && !row.starts_with(NOT_LOSSES));
    Ok(rows.map(str::to_owned).collect())
}
