//! Stops processes for a bounded time, and releases them.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;

use super::inject::{Call, CallError, Injector, Returned};
use super::tracees::{StopError, Tracees};
use super::watchdog::Watchdog;
use super::{FreezeError, FreezeStats, threads};
use crate::ids::Pid;

/// Time reserved for releasing one thread: released threads compete with the freezer for the CPU. The reserve shortens the time
/// available for stopping and scanning.
const RELEASE_TIME: Duration = Duration::from_micros(8);
/// Nice value of the freezer: the highest priority.
const NICE: libc::c_int = -20;
/// Polling interval for a process that was sent SIGSTOP.
const PAUSE: Duration = Duration::from_micros(100);
/// Maximum number of rounds that look for newly created threads.
pub(super) const MAX_ROUNDS: usize = 16;

/// Raises the freezer's priority, so that released threads do not preempt it before it has released the rest.
pub(super) fn raise_priority() {
    // SAFETY: a plain system call on the calling thread. If it is not permitted, freezes take longer.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Raises the priority of this process's session. With `sched_autogroup`, the kernel schedules sessions against each other, and the
/// nice value of a process counts only within its session.
pub(super) fn raise_priority_of_session() {
    // Some kernels are built without autogroups.
    let _ = std::fs::write("/proc/self/autogroup", NICE.to_string());
}

/// Processes that are stopped or about to be.
#[derive(Debug)]
pub(super) struct Freezer<'w> {
    max: Duration,
    /// memprof's process id, because memprof may trace its own command.
    owner: Option<Pid>,
    watchdog: &'w mut Watchdog,
    /// Time of the first stop request.
    begun_at: Option<Instant>,
    /// Time for stopping so far.
    overhead: Duration,
    tracees: Tracees,
    traced: Vec<Pid>,
    /// Processes that were sent SIGSTOP.
    signalled: Vec<Pid>,
    signalled_threads: usize,
}

impl Freezer<'_> {
    /// A freezer without processes. It arms the watchdog from the first stop request until the release.
    pub(super) fn new(max: Duration, owner: Option<Pid>, watchdog: &mut Watchdog) -> Freezer<'_> {
        Freezer {
            max,
            owner,
            watchdog,
            begun_at: None,
            overhead: Duration::ZERO,
            tracees: Tracees::default(),
            traced: Vec::new(),
            signalled: Vec::new(),
            signalled_threads: 0,
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.tracees.len() + self.signalled_threads
    }

    /// The time at which the release of this number of threads must begin.
    fn deadline_with(&self, threads: usize) -> Instant {
        let reserve = RELEASE_TIME.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX));
        self.begun_at.unwrap_or_else(Instant::now) + self.max.saturating_sub(reserve)
    }

    fn deadline(&self) -> Instant {
        self.deadline_with(self.tracees.stopped())
    }

    pub(super) fn time_left(&self) -> Duration {
        match self.begun_at {
            Some(_) => self.deadline().saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    /// The threads that this freezer traces.
    pub(super) fn tracees(&mut self) -> &mut Tracees {
        &mut self.tracees
    }

    /// Makes a system call in one of the stopped threads, one that may also make the call `later`. If the call takes longer than
    /// the threads may be stopped, the other threads resume.
    ///
    /// # Errors
    /// The reason why no thread could make the call.
    pub(super) fn call(
        &mut self,
        injector: &Injector,
        call: &Call,
        later: &Call,
    ) -> Result<Returned, CallError> {
        let end = self.deadline();
        let returned = self
            .tracees
            .call(injector, call, Some(later), end, self.watchdog);
        self.watchdog.set(self.time_left());
        returned
    }

    /// Stops more processes. If this fails, processes that were stopped before stay stopped.
    pub(super) fn stop(&mut self, pids: &[Pid]) -> Result<(), FreezeError> {
        // First the work that can be done while the processes run.
        let mut signalled = Vec::new();
        for pid in pids {
            let own = self
                .owner
                .is_some_and(|owner| threads::is_traced_by(*pid, &owner));
            match own {
                true if threads::stands_still(*pid) => {}
                true => signalled.push(*pid),
                false => {
                    let seized = match self.begun_at {
                        None => self.tracees.seize_patiently(*pid),
                        // Other processes are already stopped, so do not wait.
                        Some(_) => self.tracees.seize(*pid).map(drop),
                    };
                    seized.map_err(|error| self.error(*pid, &error))?;
                    self.traced.push(*pid);
                }
            }
        }
        let begun = Instant::now();
        self.begun_at.get_or_insert(begun);
        self.watchdog.set(self.time_left());
        let stopped = self.stop_all(&signalled);
        self.overhead += begun.elapsed();
        stopped
    }

    fn stop_all(&mut self, signalled: &[Pid]) -> Result<(), FreezeError> {
        let first = self.traced.first().copied().unwrap_or(Pid(0));
        for pid in signalled {
            kill(nix_pid(*pid), Signal::SIGSTOP).map_err(|e| {
                FreezeError::new(format!("cannot send SIGSTOP to process {pid}: {e}"))
            })?;
            self.signalled.push(*pid);
        }
        for _ in 0..MAX_ROUNDS {
            let (begun_at, max) = (self.begun_at, self.max);
            let late = |requested: usize| {
                let reserve =
                    RELEASE_TIME.saturating_mul(u32::try_from(requested).unwrap_or(u32::MAX));
                begun_at.is_some_and(|begun_at| begun_at.elapsed() + reserve >= max)
            };
            let stopped = self.tracees.stop(&late);
            stopped.map_err(|error| self.error(first, &error))?;
            // Threads may have been created meanwhile.
            if !self.tracees.may_be_more(&self.traced) {
                break;
            }
            let mut fresh = 0;
            for pid in self.traced.clone() {
                let seized = self.tracees.seize(pid);
                fresh += seized.map_err(|error| self.error(pid, &error))?;
            }
            if fresh == 0 {
                break;
            }
        }
        for pid in signalled {
            self.await_signalled(*pid)?;
        }
        Ok(())
    }

    /// Waits until SIGSTOP has stopped every thread of a process.
    fn await_signalled(&mut self, pid: Pid) -> Result<(), FreezeError> {
        let mut stopped = std::collections::HashSet::new();
        loop {
            let before = stopped.len();
            for tid in threads::threads(pid) {
                while stopped.insert(tid) && !threads::is_stopped(tid) {
                    stopped.remove(&tid);
                    if Instant::now() >= self.deadline_with(stopped.len()) {
                        return Err(self.error(pid, &StopError::TimedOut(Some(tid))));
                    }
                    thread::sleep(PAUSE);
                }
            }
            // Once all threads are stopped, no new ones appear.
            if stopped.len() == before {
                self.signalled_threads += before;
                return Ok(());
            }
        }
    }

    fn error(&self, pid: Pid, error: &StopError) -> FreezeError {
        let stopped = self.tracees.stopped() + self.signalled_threads;
        match error {
            StopError::Refused(tid, e) => {
                let why = threads::not_traceable(*tid, e);
                FreezeError::new(format!("cannot stop process {pid}: {why}"))
            }
            StopError::TimedOut(waited) => {
                let waited = match waited {
                    Some(tid) if threads::state(*tid) == Some('D') => {
                        format!("; thread {tid} is blocked in the kernel (state D)")
                    }
                    _ => String::new(),
                };
                let ms = self
                    .begun_at
                    .map_or(0.0, |s| s.elapsed().as_secs_f64() * 1e3);
                FreezeError {
                    timed_out: true,
                    ..FreezeError::new(format!(
                        "{stopped} of {} threads had stopped after {ms:.1} ms{waited}",
                        self.threads().max(stopped)
                    ))
                }
            }
        }
    }

    /// Whether none of the threads is traced any longer.
    pub(super) fn has_let_go(&self) -> bool {
        !self.tracees.has_any()
    }

    /// Releases all processes.
    pub(super) fn release(&mut self) -> FreezeStats {
        let begun = Instant::now();
        self.watchdog.set(Duration::ZERO);
        let threads = self.tracees.requested() + self.signalled_threads;
        self.tracees.release();
        for pid in &self.signalled {
            let _ = kill(nix_pid(*pid), Signal::SIGCONT);
        }
        self.watchdog.clear();
        FreezeStats {
            duration: self.begun_at.map(|s| s.elapsed()).unwrap_or_default(),
            threads,
            overhead: self.overhead + begun.elapsed(),
        }
    }
}

pub(super) fn nix_pid(pid: Pid) -> NixPid {
    NixPid::from_raw(pid.0.cast_signed())
}
