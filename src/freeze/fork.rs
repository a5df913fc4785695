//! A copy-on-write child of a process: its memory as it was at one moment, while the process runs on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::claims::Claims;
use super::guard::{Asked, Said};
use super::registers::Registers;
use crate::event::Pid;

/// Maximum time to wait for an exact report of the process before the child is removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The child, which is stopped. It is gone, without a trace in the process, when this is dropped.
#[derive(Debug)]
pub struct Fork<'a> {
    /// Its id.
    pub child: Pid,
    /// The time for which the process was stopped.
    pub stop: Duration,
    /// A moment at which it was stopped, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// The registers of the process's threads.
    pub threads: Vec<Registers>,
    /// The process's anonymous memory then, resident and swapped out, in bytes, if the kernel's counters are exact.
    pub anonymous: Option<[u64; 2]>,
    /// The process is stopped until this time at the latest if it was to be held.
    pub held_until: Instant,
    is_held: bool,
    of: Pid,
    /// `None` once the child is gone.
    guard: Option<&'a mut Guard>,
}

impl<'a> Fork<'a> {
    /// Stops a process for `max` at most until it can be forked, forks it, and releases it, or holds it until
    /// [`Fork::release`] or the end of that time. How long forking takes depends on the size of its page tables.
    ///
    /// # Errors
    /// The reason why it cannot be forked.
    pub fn of(
        guard: &'a mut Guard,
        pid: Pid,
        max: Duration,
        hold: bool,
    ) -> Result<Fork<'a>, String> {
        let mut claims = Claims::default();
        claims.add(&[pid], max).map_err(|e| e.to_string())?;
        let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
        let asked = Asked::Fork {
            pid: pid.0,
            max_ms,
            hold,
        };
        match guard.ask(asked)? {
            Said::Forked {
                child,
                stop,
                left,
                at,
                threads,
                anonymous,
            } => Ok(Fork {
                child: Pid(child.cast_unsigned()),
                stop: seconds(stop),
                at,
                threads,
                anonymous,
                held_until: Instant::now() + seconds(left),
                is_held: hold,
                of: pid,
                guard: Some(guard),
            }),
            Said::Failed { reason } => Err(reason),
            Said::Released { .. } | Said::Ended { .. } => {
                Err("its guard gave another answer".to_owned())
            }
        }
    }

    /// Releases the process if it is held. Returns whether it was stopped until then.
    pub fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.is_held) {
            return true;
        }
        let said = self.guard.as_mut().map(|guard| guard.ask(Asked::Release));
        match said {
            Some(Ok(Said::Released { stop, in_time })) => {
                self.stop = seconds(stop);
                in_time
            }
            _ => false,
        }
    }

    /// Removes the child. Returns the time for which one thread of the process was stopped for that.
    pub fn end(mut self) -> Duration {
        self.remove()
    }

    fn remove(&mut self) -> Duration {
        let mut claims = Claims::default();
        // Otherwise the guard tries again until the report is done.
        let _ = claims.add(&[self.of], PATIENCE);
        match self.guard.take().map(|guard| guard.ask(Asked::End)) {
            Some(Ok(Said::Ended { stop })) => seconds(stop),
            _ => Duration::ZERO,
        }
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        if self.guard.is_some() {
            self.remove();
        }
    }
}

fn seconds(said: f64) -> Duration {
    Duration::try_from_secs_f64(said).unwrap_or_default()
}

/// The process that makes and holds children: one at a time. It is started when it is first needed.
#[derive(Debug, Default)]
pub struct Guard(Option<Running>);

#[derive(Debug)]
struct Running {
    process: Child,
    /// `None` once the guard is to end, and to remove the child.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Guard {
    /// Starts it now.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn start(&mut self) -> Result<(), String> {
        self.running().map(drop)
    }

    /// Its id, if it has been started.
    pub fn pid(&self) -> Option<Pid> {
        self.0.as_ref().map(|running| Pid(running.process.id()))
    }

    fn running(&mut self) -> Result<&mut Running, String> {
        match &mut self.0 {
            Some(running) => Ok(running),
            none => Ok(none.insert(Running::start()?)),
        }
    }

    fn ask(&mut self, what: Asked) -> Result<Said, String> {
        let said = self.running()?.ask(what);
        said.map_err(|e| format!("the guard did not answer: {e}"))
    }
}

impl Running {
    fn start() -> Result<Running, String> {
        let failed = |e| format!("memprof cannot start its guard: {e}");
        let mut process = Command::new("/proc/self/exe")
            .arg0("memprof")
            .arg("fork-guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (stdin, stdout) = pipes.ok_or("its pipes are missing")?;
        Ok(Running {
            process,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
        })
    }

    fn ask(&mut self, what: Asked) -> Result<Said, String> {
        let mut line = serde_json::to_string(&what).map_err(|e| e.to_string())?;
        line.push('\n');
        let stdin = self.stdin.as_mut().ok_or("it has ended")?;
        let asked = stdin.write_all(line.as_bytes());
        asked.map_err(|e| e.to_string())?;
        line.clear();
        let read = self.stdout.read_line(&mut line);
        read.map_err(|e| e.to_string())?;
        serde_json::from_str(&line).map_err(|e| e.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.process.wait();
    }
}
