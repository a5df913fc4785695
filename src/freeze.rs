//! Holding processes still while their pages are scanned, so that a report is exact.
//!
//! Each thread is seized and interrupted as a debugger does it. Nobody else notices: the parent sees
//! no stop, a stopped process stays stopped, and should memprof die the kernel lets go. Only memprof's own
//! command has a tracer already, memprof itself; it is stopped by SIGSTOP, and asked the kernel for a
//! SIGCONT at memprof's death when it was made (see `session::command`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid as NixPid;

use crate::event::Pid;

/// How long threads are waited for; one that hangs in the kernel does not stop.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often they are looked at.
const PAUSE: Duration = Duration::from_micros(100);

/// Processes that stand still; they go on when this is dropped.
#[derive(Debug)]
pub struct Frozen {
    since: Instant,
    seized: Vec<Seized>,
    /// Those that SIGSTOP stopped.
    stopped: Vec<NixPid>,
}

/// A thread that this thread of memprof traces.
#[derive(Debug)]
struct Seized {
    tid: NixPid,
    /// A signal that was on its way to it.
    signal: Option<Signal>,
}

impl Frozen {
    /// Stops every thread of these processes. One that was stopped already stays so in the end.
    ///
    /// # Errors
    /// A thread does not stop, or may not be traced (another debugger has it); nothing stays stopped.
    pub fn stop(pids: &[Pid]) -> Result<Frozen> {
        let mut frozen = Frozen {
            since: Instant::now(),
            seized: Vec::new(),
            stopped: Vec::new(),
        };
        for pid in pids {
            frozen
                .stop_process(*pid)
                .with_context(|| format!("cannot stop process {pid}"))?;
        }
        Ok(frozen)
    }

    /// Lets them go on; how long they stood still.
    pub fn release(self) -> Duration {
        let since = self.since;
        drop(self);
        since.elapsed()
    }

    fn stop_process(&mut self, pid: Pid) -> Result<()> {
        if threads(pid).first().is_some_and(|t| is_traced_here(*t)) {
            return self.stop_by_signal(pid);
        }
        // Threads that are made meanwhile are found by looking again until there are none.
        let mut known = BTreeSet::new();
        loop {
            let fresh: Vec<NixPid> = threads(pid)
                .into_iter()
                .filter(|t| known.insert(*t))
                .collect();
            if fresh.is_empty() {
                return Ok(());
            }
            let first = self.seized.len();
            for tid in fresh {
                self.seize(tid)?;
            }
            for index in first..self.seized.len() {
                self.wait(index)?;
            }
        }
    }

    fn seize(&mut self, tid: NixPid) -> Result<()> {
        match ptrace::seize(tid, ptrace::Options::empty()) {
            Ok(()) => {}
            // Gone meanwhile.
            Err(Errno::ESRCH) => return Ok(()),
            // One that has ended and waits to be collected runs no more.
            Err(_) if has_ended(tid) => return Ok(()),
            Err(e) => return Err(e).context("its threads may not be traced"),
        }
        self.seized.push(Seized { tid, signal: None });
        match ptrace::interrupt(tid) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(e) => Err(e).context("cannot interrupt a thread"),
        }
    }

    fn wait(&mut self, index: usize) -> Result<()> {
        let seized = &mut self.seized[index];
        let begun = Instant::now();
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
            match waitpid(seized.tid, Some(flags)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
                Ok(WaitStatus::Stopped(_, signal)) => {
                    seized.signal = Some(signal);
                    return Ok(());
                }
                // Stopped, or ended.
                Ok(_) | Err(_) => return Ok(()),
            }
            if begun.elapsed() > PATIENCE {
                bail!("thread {} hangs in the kernel", seized.tid);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn stop_by_signal(&mut self, pid: Pid) -> Result<()> {
        if stands_still(pid) {
            return Ok(());
        }
        let process = nix_pid(pid);
        kill(process, Signal::SIGSTOP)?;
        self.stopped.push(process);
        let begun = Instant::now();
        while !stands_still(pid) {
            if begun.elapsed() > PATIENCE {
                bail!("a thread hangs in the kernel");
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for seized in &self.seized {
            // One that is not stopped cannot be let go of; then it ended.
            let _ = ptrace::detach(seized.tid, seized.signal);
        }
        for process in &self.stopped {
            let _ = kill(*process, Signal::SIGCONT);
        }
    }
}

fn nix_pid(pid: Pid) -> NixPid {
    NixPid::from_raw(pid.0.cast_signed())
}

/// The threads of a process, the first one first; none of one that is gone.
fn threads(pid: Pid) -> Vec<NixPid> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut tids: Vec<i32> = entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_by_key(|tid| (*tid != pid.0.cast_signed(), *tid));
    tids.into_iter().map(NixPid::from_raw).collect()
}

/// The state's letter of a thread.
fn state(tid: NixPid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether no thread of the process runs.
pub fn stands_still(pid: Pid) -> bool {
    threads(pid).into_iter().all(is_stopped)
}

fn is_stopped(tid: NixPid) -> bool {
    has_ended(tid) || state(tid).is_none_or(|s| matches!(s, 'T' | 't'))
}

fn has_ended(tid: NixPid) -> bool {
    state(tid).is_none_or(|s| matches!(s, 'Z' | 'X'))
}

/// Whether a thread of memprof itself traces a thread.
fn is_traced_here(tid: NixPid) -> bool {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
    // The thread that traces, not its process; 0 for none.
    tracer.is_some_and(|tracer| Path::new("/proc/self/task").join(tracer.trim()).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().expect("sleep")
    }

    fn end(mut child: Child) {
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn a_process_stands_still_and_goes_on() {
        let child = sleeper();
        let pid = Pid(child.id());
        let frozen = Frozen::stop(&[pid]).unwrap();
        assert_eq!(state(nix_pid(pid)), Some('t'));
        frozen.release();
        assert_ne!(state(nix_pid(pid)), Some('t'));
        assert_ne!(state(nix_pid(pid)), Some('T'));
        end(child);
    }

    #[test]
    fn one_that_was_stopped_stays_so() {
        let child = sleeper();
        let pid = nix_pid(Pid(child.id()));
        kill(pid, Signal::SIGSTOP).unwrap();
        while state(pid) != Some('T') {
            std::thread::yield_now();
        }
        Frozen::stop(&[Pid(child.id())]).unwrap().release();
        // It goes back into its stop by itself, without having run.
        let start = Instant::now();
        while state(pid) != Some('T') {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{:?}",
                state(pid)
            );
            std::thread::yield_now();
        }
        end(child);
    }

    #[test]
    fn one_that_is_gone_is_no_error() {
        let mut child = sleeper();
        let pid = Pid(child.id());
        let _ = child.kill();
        // A zombie first.
        while state(nix_pid(pid)) != Some('Z') {
            std::thread::yield_now();
        }
        assert!(Frozen::stop(&[pid]).is_ok());
        let _ = child.wait();
        assert!(Frozen::stop(&[pid]).is_ok());
    }
}
