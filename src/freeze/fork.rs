//! A copy-on-write child of a process: its memory as it was at one moment, while the process runs on.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::guard::Said;
use super::registers::Registers;
use crate::event::Pid;

/// The child, which is stopped. It is gone, without a trace in the process, when this is dropped.
#[derive(Debug)]
pub struct Fork {
    /// Its id.
    pub child: Pid,
    /// The time for which the process was stopped.
    pub stop: Duration,
    /// The registers of the process's threads.
    pub threads: Vec<Registers>,
    guard: Guard,
}

impl Fork {
    /// Stops a process for `max` at most until it can be forked, forks it, and releases it. How long forking takes depends on the
    /// size of its page tables.
    ///
    /// # Errors
    /// The reason why it cannot be forked.
    pub fn of(pid: Pid, max: Duration) -> Result<Fork, String> {
        let mut guard = Guard::start(pid, max)?;
        match guard.listen()? {
            Said::Forked {
                child,
                stop,
                threads,
            } => Ok(Fork {
                child: Pid(child.cast_unsigned()),
                stop: Duration::try_from_secs_f64(stop).unwrap_or_default(),
                threads,
                guard,
            }),
            Said::Failed { reason } => Err(reason),
            Said::Ended { .. } => Err("its guard ended early".to_owned()),
        }
    }

    /// Removes the child. Returns the time for which one thread of the process was stopped for that.
    pub fn end(mut self) -> Duration {
        self.guard.stdin = None;
        match self.guard.listen() {
            Ok(Said::Ended { stop }) => Duration::try_from_secs_f64(stop).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

/// The process that holds the child.
#[derive(Debug)]
struct Guard {
    process: Child,
    /// The guard removes the child when this is closed.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Guard {
    fn start(pid: Pid, max: Duration) -> Result<Guard, String> {
        let failed = |e| format!("memprof cannot start its guard: {e}");
        let mut process = Command::new("/proc/self/exe")
            .arg0("memprof")
            .args(["fork-guard", &pid.to_string(), &max.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (stdin, stdout) = pipes.ok_or("its pipes are missing")?;
        Ok(Guard {
            process,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
        })
    }

    fn listen(&mut self) -> Result<Said, String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        let said = read
            .map_err(|e| e.to_string())
            .and_then(|_| serde_json::from_str(&line).map_err(|e| e.to_string()));
        said.map_err(|e| format!("the guard did not answer: {e}"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.process.wait();
    }
}
