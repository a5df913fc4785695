//! Memprof's side of its guard, a process that stops others.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::guard::message::{Asked, Said, receive, send};
use crate::ids::Pid;

/// How much longer than it may stop a process the guard may take for an answer: it prepares, and it cleans up.
const PATIENCE: Duration = Duration::from_secs(30);

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Has guards run this program, memprof, instead of the current one: for tests and benchmarks, which are programs of their own.
pub fn guards_run(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// The process that stops others and makes children of them: one request at a time. It is started when it is first needed.
#[derive(Debug, Default)]
pub struct Guard(Option<Running>);

#[derive(Debug)]
struct Running {
    process: Child,
    /// `None` once the guard is to end, and to let go of everything.
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
}

impl Guard {
    /// Starts it now.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn start(&mut self) -> Result<(), String> {
        self.running().map(drop)
    }

    /// The process id of the guard, if it has been started.
    pub fn pid(&self) -> Option<Pid> {
        self.0.as_ref().map(|running| Pid(running.process.id()))
    }

    fn running(&mut self) -> Result<&mut Running, String> {
        match &mut self.0 {
            Some(running) => Ok(running),
            none => Ok(none.insert(Running::start()?)),
        }
    }

    /// Asks for something that stops processes for `max` at most, and waits for the answer.
    pub(super) fn ask(&mut self, what: &Asked, max: Duration) -> Result<Said, String> {
        if matches!(what, Asked::Stop { .. } | Asked::Fork { .. }) {
            self.forget_said();
        }
        self.send(what)?;
        self.answer(max)
    }

    /// Forgets what it has said when nobody had asked: that one of its processes was killed.
    fn forget_said(&mut self) {
        while let Some(running) = self.0.as_mut().filter(|it| it.has_said(Duration::ZERO)) {
            if receive::<Said>(&mut running.stdout).is_err() {
                return;
            }
        }
    }

    pub(super) fn send(&mut self, what: &Asked) -> Result<(), String> {
        let stdin = self.running()?.stdin.as_mut();
        let stdin = stdin.ok_or("memprof's guard has ended")?;
        send(stdin, what).map_err(|e| format!("memprof's guard has ended: {e}"))
    }

    /// Waits for what it says.
    pub(super) fn answer(&mut self, max: Duration) -> Result<Said, String> {
        let limit = max + PATIENCE;
        let running = self.running()?;
        if !running.has_said(limit) {
            // A late answer would be taken for the answer to the next request. (The kernel has released the held processes.)
            running.stdin = None;
            return Err(format!(
                "memprof's guard (process {}) did not answer in {} s: is it stopped?",
                running.process.id(),
                limit.as_secs()
            ));
        }
        let said = receive(&mut running.stdout);
        said.map_err(|e| format!("memprof's guard did not answer: {e}"))
    }

    /// Whether it has said something, also that it has ended.
    pub(super) fn has_said(&self) -> bool {
        let mut running = self.0.iter();
        running.any(|running| running.has_said(Duration::ZERO))
    }
}

impl Running {
    fn start() -> Result<Running, String> {
        let failed = |e| format!("memprof cannot start its guard: {e}");
        let own = || PathBuf::from("/proc/self/exe");
        let mut process = Command::new(PROGRAM.get().cloned().unwrap_or_else(own))
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
            stdout,
        })
    }

    fn has_said(&self, within: Duration) -> bool {
        let limit = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        loop {
            let mut polled = [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, limit) {
                Err(nix::Error::EINTR) => {}
                ready => return ready != Ok(0),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.process.wait();
    }
}
