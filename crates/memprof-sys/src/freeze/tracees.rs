//! Stops threads with ptrace, as a debugger does.
//!
//! `PTRACE_SEIZE` does not stop a thread, so threads are seized before the freeze begins; the freeze includes only interrupting and
//! waiting. A signal that arrives in between stops its thread until the signal is passed on. Signals are plain numbers here,
//! because real-time signals have no names.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use super::inject::{Call, CallError, Injector, Returned, Waiting};
#[cfg(target_arch = "x86_64")]
use super::inject::{LoadError, Loaded, Loading};

use super::registers::{self, Registers};
use super::threads::{self, has_ended, threads};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// Polling interval for a thread that has not stopped yet.
const PAUSE: Duration = Duration::from_micros(50);
/// A thread that executes another program kills the others, stopped or not, and goes on, or stops, only when each of them has been
/// waited for; and then it may have lost the request to stop. So every so many rounds of polling, the stopped threads are polled,
/// too, and the others are asked again.
const RARELY: u32 = 16;
/// Number of threads that are seized before signals are passed on.
const BATCH: usize = 256;
/// Time to wait for a thread that another guard traces: the guard of another memprof, or one that reaps the child of an earlier
/// holder.
const OTHERS: Duration = Duration::from_millis(200);

/// Threads that the current thread of memprof traces. The kernel releases any that remain when that thread exits.
#[derive(Debug, Default)]
pub(super) struct Tracees {
    threads: Vec<Tracee>,
    /// All threads seen so far.
    known: HashSet<i32>,
}

#[derive(Debug)]
struct Tracee {
    tid: i32,
    state: TraceeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceeState {
    /// Traced and running.
    Seized,
    /// Asked to stop.
    Interrupted,
    /// Stopped; the pending signal, or 0.
    Stopped(i32),
    /// Exiting, because it was killed. It remains traced, and its parent cannot reap it, until memprof waits for it.
    Exiting,
    /// No longer traced.
    Ended,
}

impl TraceeState {
    /// Whether the thread was asked to stop, and has neither stopped nor been seen to end.
    fn is_asked(self) -> bool {
        matches!(self, TraceeState::Interrupted | TraceeState::Exiting)
    }
}

/// The reason why threads were not stopped.
#[derive(Debug)]
pub(super) enum StopError {
    /// The kernel refused to trace this thread.
    Refused(i32, io::Error),
    /// The time ran out. Contains the thread that did not stop, if there is one.
    TimedOut(Option<i32>),
}

impl Tracees {
    /// Seizes the threads of a process, which continue to run. If another guard traces one of them, waits until it is released.
    pub(super) fn seize_patiently(&mut self, pid: Pid) -> Result<(), StopError> {
        let begun = Instant::now();
        // A guard may have released the thread since the kernel refused.
        let mut once_more = true;
        loop {
            match self.seize(pid) {
                Err(StopError::Refused(tid, e)) => {
                    let is_guarded = threads::is_traced_by_guard(tid);
                    if begun.elapsed() >= OTHERS || !is_guarded && !once_more {
                        return Err(StopError::Refused(tid, e));
                    }
                    once_more = is_guarded;
                    std::thread::sleep(PAUSE);
                    self.known.remove(&tid);
                }
                seized => return seized.map(drop),
            }
        }
    }

    /// Seizes the new threads of a process, which continue to run. Returns their number.
    pub(super) fn seize(&mut self, pid: Pid) -> Result<usize, StopError> {
        self.seize_some(threads(pid))
    }

    /// Seizes the new threads among these.
    pub(super) fn seize_some(&mut self, threads: Vec<i32>) -> Result<usize, StopError> {
        let mut fresh = 0;
        for tid in threads {
            if !self.known.insert(tid) {
                continue;
            }
            fresh += 1;
            match request(libc::PTRACE_SEIZE, tid, 0) {
                Ok(()) => self.threads.push(Tracee {
                    tid,
                    state: TraceeState::Seized,
                }),
                // The thread has ended.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                // The thread has ended but is not yet reaped.
                Err(_) if has_ended(tid) => {}
                Err(e) => return Err(StopError::Refused(tid, e)),
            }
            if self.threads.len().is_multiple_of(BATCH) {
                forward_signals();
            }
        }
        forward_signals();
        Ok(fresh)
    }

    /// Stops the running threads. `late` gets the number of stop requests and returns whether the time is up.
    pub(super) fn stop(&mut self, late: &impl Fn(usize) -> bool) -> Result<(), StopError> {
        let mut interrupted = self.requested();
        for thread in &mut self.threads {
            if thread.state != TraceeState::Seized {
                continue;
            }
            thread.interrupt();
            interrupted += 1;
            if late(interrupted) {
                return Err(StopError::TimedOut(None));
            }
        }
        for round in 1_u32.. {
            // There may be thousands of stopped ones.
            let rarely = round.is_multiple_of(RARELY);
            for thread in &mut self.threads {
                if thread.state.is_asked() || rarely && thread.is_stopped() {
                    thread.poll();
                }
                if rarely && thread.state == TraceeState::Interrupted {
                    thread.interrupt();
                }
                if late(interrupted) {
                    let runs = thread.state == TraceeState::Interrupted;
                    return Err(StopError::TimedOut(runs.then_some(thread.tid)));
                }
            }
            if !self.is_waiting() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Whether the kernel counts more threads of these processes than have stopped.
    pub(super) fn may_be_more(&self, pids: &[Pid]) -> bool {
        pids.iter().map(|pid| threads::count(*pid)).sum::<usize>() > self.stopped()
    }

    pub(super) fn stopped(&self) -> usize {
        self.threads.iter().filter(|t| t.is_stopped()).count()
    }

    /// The registers of the stopped threads, except those that were killed meanwhile.
    pub(super) fn registers(&self) -> Vec<Registers> {
        let threads = self.threads.iter().filter(|t| t.is_stopped());
        threads.filter_map(|t| registers::read(t.tid)).collect()
    }

    /// Makes a system call in one of the stopped threads, one that may also make the call `later`, if there is one. If the call
    /// takes until `end`, the other threads resume.
    ///
    /// # Errors
    /// The reason why no thread could make the call.
    pub(super) fn call(
        &mut self,
        injector: &Injector,
        call: &Call,
        later: Option<&Call>,
        end: Instant,
        watchdog: &mut Watchdog,
    ) -> Result<Returned, CallError> {
        let free = self.free();
        let mut others = |tid| self.release_others(tid);
        let mut waiting = Waiting::new(end, watchdog, &mut others);
        let (tid, returned) = injector.call(&free, call, later, &mut waiting)?;
        self.set_signal(tid, returned.signal);
        Ok(returned)
    }

    /// The threads that are stopped without a pending signal.
    pub(super) fn free(&self) -> Vec<i32> {
        let free = self
            .threads
            .iter()
            .filter(|t| t.state == TraceeState::Stopped(0));
        free.map(|t| t.tid).collect()
    }

    /// Resumes all threads except one.
    pub(super) fn release_others(&mut self, tid: i32) {
        let others = self.threads.iter_mut().filter(|t| t.tid != tid);
        others.for_each(Tracee::release);
    }

    /// Notes the signal that a stopped thread gets when it is resumed.
    pub(super) fn set_signal(&mut self, tid: i32, signal: i32) {
        for thread in self.threads.iter_mut().filter(|t| t.tid == tid) {
            thread.state = TraceeState::Stopped(signal);
        }
    }

    /// Whether a thread is stopped without a pending signal.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_free(&self, tid: i32) -> bool {
        self.free().contains(&tid)
    }

    /// Makes a stopped thread load a library.
    ///
    /// # Errors
    /// The library was not loaded, or the outcome is not known yet.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn load(
        &mut self,
        injector: &Injector,
        tid: i32,
        what: &Loading<'_>,
        watchdog: &mut Watchdog,
    ) -> Result<Loaded, LoadError> {
        let loaded = injector.load(tid, what, watchdog)?;
        self.set_signal(tid, loaded.signal);
        Ok(loaded)
    }

    /// The number of threads that were asked to stop, whether or not they have stopped.
    pub(super) fn requested(&self) -> usize {
        let requested = |t: &&Tracee| t.state == TraceeState::Interrupted || t.is_stopped();
        self.threads.iter().filter(requested).count()
    }

    /// The number of seized threads.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Releases the stopped threads. The kernel releases the others when this thread of memprof exits.
    pub(super) fn release(&mut self) {
        self.threads.iter_mut().for_each(Tracee::release);
    }

    /// Asks the running threads to stop.
    pub(super) fn interrupt(&mut self) {
        let running = |t: &&mut Tracee| t.state == TraceeState::Seized;
        self.threads
            .iter_mut()
            .filter(running)
            .for_each(Tracee::interrupt);
    }

    /// Polls the threads that were asked to stop. Returns whether any thread is stopped.
    pub(super) fn poll(&mut self) -> bool {
        let asked = self.threads.iter_mut().filter(|t| t.state.is_asked());
        asked.for_each(Tracee::poll);
        self.stopped() > 0
    }

    /// Whether a thread that was asked to stop has not stopped yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.threads
            .iter()
            .any(|t| t.state == TraceeState::Interrupted)
    }

    /// Whether any thread is traced. The kernel releases a thread that has not stopped, or that exits, only when the current thread
    /// of memprof exits.
    pub(super) fn has_any(&self) -> bool {
        self.threads.iter().any(|t| t.state != TraceeState::Ended)
    }

    /// Whether a thread was seized and not forgotten since.
    pub(super) fn knows(&self, tid: i32) -> bool {
        self.known.contains(&tid)
    }

    /// Forgets threads that have ended or were released, so that they can be seized again.
    pub(super) fn forget_released(&mut self) {
        self.threads.retain(|t| t.state != TraceeState::Ended);
        self.known = self.threads.iter().map(|t| t.tid).collect();
    }
}

impl Tracee {
    fn is_stopped(&self) -> bool {
        matches!(self.state, TraceeState::Stopped(_))
    }

    fn interrupt(&mut self) {
        self.state = match request(libc::PTRACE_INTERRUPT, self.tid, 0) {
            Ok(()) => TraceeState::Interrupted,
            Err(_) => TraceeState::Exiting,
        };
    }

    fn release(&mut self) {
        // Wait for the thread first: otherwise a signal that stopped it would be lost.
        if matches!(self.state, TraceeState::Seized | TraceeState::Interrupted) {
            self.poll();
        }
        if let TraceeState::Stopped(signal) = self.state {
            self.state = match request(libc::PTRACE_DETACH, self.tid, signal) {
                Ok(()) => TraceeState::Ended,
                Err(_) => TraceeState::Exiting,
            };
        }
        if self.state == TraceeState::Exiting {
            self.poll();
        }
    }

    /// Updates the state: whether the thread has stopped or ended.
    fn poll(&mut self) {
        match wait(self.tid) {
            Waited::Nothing => {}
            Waited::Stopped { signal, .. } => self.state = TraceeState::Stopped(signal),
            Waited::Trapped { .. } => self.state = TraceeState::Stopped(0),
            Waited::Ended => self.state = TraceeState::Ended,
        }
    }
}

/// The result of waiting for a thread.
enum Waited {
    Nothing,
    /// The thread stopped for the delivery of this signal.
    Stopped {
        tid: i32,
        signal: i32,
    },
    /// The thread was interrupted, or is in a group-stop.
    Trapped {
        tid: i32,
        in_stop: bool,
    },
    Ended,
}

/// Resumes threads that a signal stopped since they were seized, and delivers the signal.
fn forward_signals() {
    loop {
        match wait(-1) {
            Waited::Nothing => return,
            Waited::Stopped { tid, signal } => drop(request(libc::PTRACE_CONT, tid, signal)),
            // The thread stays in the group-stop, and SIGCONT resumes it.
            Waited::Trapped { tid, in_stop: true } => drop(request(libc::PTRACE_LISTEN, tid, 0)),
            Waited::Trapped { tid, .. } => drop(request(libc::PTRACE_CONT, tid, 0)),
            Waited::Ended => {}
        }
    }
}

/// Polls a thread that the current thread of memprof traces; -1 for any.
fn wait(tid: i32) -> Waited {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    let found = loop {
        // SAFETY: `status` is valid for the write.
        match unsafe { libc::waitpid(tid, &raw mut status, flags) } {
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            found => break found,
        }
    };
    match found {
        0 => Waited::Nothing,
        // No tracee is left, or this thread is gone.
        -1 if tid == -1 => Waited::Nothing,
        -1 => Waited::Ended,
        tid if libc::WIFSTOPPED(status) => {
            let signal = libc::WSTOPSIG(status);
            if status >> 16 == 0 {
                return Waited::Stopped { tid, signal };
            }
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
            let in_stop = stops.contains(&signal);
            Waited::Trapped { tid, in_stop }
        }
        _ => Waited::Ended,
    }
}

/// Makes a ptrace request without an address.
fn request(what: libc::c_uint, tid: i32, data: i32) -> io::Result<()> {
    // SAFETY: none of the requests used here reads or writes memprof's memory.
    match unsafe { libc::ptrace(what, tid, 0, libc::c_long::from(data)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
