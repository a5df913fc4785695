//! Makes one stopped thread of a process load a library. The other threads keep running, so that the loader cannot deadlock on
//! them.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::inject::{Injector, LoadError, Loaded, Loading};
use super::registers::word;
use super::threads::state;
use super::tracees::{StopError, Tracees};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// A process that is to load a library, or to map one.
#[derive(Debug)]
pub struct Loader(Injector);

impl Loader {
    /// Prepares for loading into a process, which may run.
    ///
    /// # Errors
    /// The reason why no library can be loaded.
    pub fn prepare(pid: Pid) -> Result<Loader, String> {
        Injector::prepare(pid).map(Loader)
    }

    /// As [`Loader::prepare`], but also for a process without the code of a C library that calls need. It gets that at `room`, where
    /// it has mapped [`Loader::ROOM`] bytes that are executable and not the program's.
    ///
    /// # Errors
    /// The reason why no library can be mapped.
    pub fn prepare_with_room(pid: Pid, room: Option<u64>) -> Result<Loader, String> {
        Injector::prepare_with_room(pid, room).map(Loader)
    }

    /// Size of that code, in bytes.
    pub const ROOM: u64 = Injector::ROOM;

    pub(super) fn injector(&self) -> &Injector {
        &self.0
    }
}

/// Polling interval for a thread that is blocked in the kernel.
const LOOK: Duration = Duration::from_micros(200);
/// Minimum time to wait for such a thread.
const LEAST: Duration = Duration::from_secs(5);
/// Maximum time for the other work on a stopped thread, such as reading its stack.
const WORK: Duration = Duration::from_secs(1);

/// The reason why a thread was not stopped.
#[derive(Debug)]
pub enum HoldError {
    /// The kernel refuses to trace the thread, or refuses a timer.
    Refused(io::Error),
    /// The thread was asked to stop and has been blocked in the kernel since. The kernel releases it when this process exits.
    Blocked(String),
    /// The thread has ended, did not stop in time, or has a signal to handle.
    Missed(String),
}

/// A stopped thread. It resumes when this is dropped.
#[derive(Debug)]
pub struct StoppedThread {
    tid: i32,
    tracees: Tracees,
    watchdog: Watchdog,
    /// When the thread was asked to stop.
    begun: Instant,
}

/// The position of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPosition {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// `rbp`.
    pub fp: u64,
    /// `rbx`.
    pub bx: u64,
    /// The number of the system call that the thread is in, -1 for none.
    pub call: i64,
    /// The result of that system call so far.
    pub result: i64,
}

impl StoppedThread {
    /// Stops a thread if it stops within `max`. A thread that proves to be blocked in the kernel is waited for until `end`, because
    /// it cannot be released before it stops.
    ///
    /// # Errors
    /// The thread runs, or is blocked.
    pub fn stop(tid: i32, max: Duration, end: Instant) -> Result<StoppedThread, HoldError> {
        let missed = |why: &str| HoldError::Missed(format!("thread {tid} {why}"));
        let refused = |e| match e {
            StopError::Refused(_, e) => HoldError::Refused(e),
            StopError::TimedOut(_) => missed("did not stop in time"),
        };
        // A blocked thread stops only when it unblocks.
        if state(tid) == Some('D') {
            return Err(missed("is blocked in the kernel"));
        }
        let mut watchdog = Watchdog::new().map_err(|e| HoldError::Refused(io::Error::other(e)))?;
        let mut tracees = Tracees::default();
        tracees.seize_some(vec![tid]).map_err(refused)?;
        if tracees.len() == 0 {
            return Err(missed("has ended"));
        }
        let begun = Instant::now();
        watchdog.set(max);
        if let Err(error) = tracees.stop(&|_| begun.elapsed() > max) {
            let end = end.max(begun + LEAST);
            while tracees.is_waiting() && Instant::now() < end {
                watchdog.set(LOOK);
                sleep(LOOK);
                tracees.poll();
            }
            if tracees.is_waiting() {
                watchdog.clear();
                let blocked = "is blocked in the kernel, and does not stop";
                return Err(HoldError::Blocked(format!("thread {tid} {blocked}")));
            }
            tracees.release();
            return Err(refused(error));
        }
        watchdog.set(WORK);
        let held = StoppedThread {
            tid,
            tracees,
            watchdog,
            begun,
        };
        if !held.tracees.is_free(tid) {
            return Err(missed("has a signal to handle"));
        }
        Ok(held)
    }

    /// The thread's position; `None` if it was killed.
    pub fn state(&self) -> Option<ThreadPosition> {
        let registers = self.tracees.registers();
        let words = &registers.first()?.words;
        let word = |place: usize| words.get(place).copied();
        Some(ThreadPosition {
            ip: word(word::RIP)?,
            sp: word(word::RSP)?,
            fp: word(word::RBP)?,
            bx: word(word::RBX)?,
            call: word(word::ORIG_RAX)?.cast_signed(),
            result: word(word::RAX)?.cast_signed(),
        })
    }

    /// Makes the thread load a library.
    ///
    /// # Errors
    /// The library was not loaded, or the outcome is not known yet.
    pub fn load(&mut self, by: &Loader, what: &Loading<'_>) -> Result<Loaded, LoadError> {
        let loaded = self.tracees.load(&by.0, self.tid, what, &mut self.watchdog);
        self.watchdog.set(WORK);
        loaded
    }

    /// Resumes the thread. Returns the time for which it was stopped.
    pub fn release(mut self) -> Duration {
        self.tracees.release();
        self.watchdog.clear();
        self.begun.elapsed()
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        self.tracees.release();
    }
}
