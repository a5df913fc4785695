//! Has a process load a library, by one of its threads, which is stopped alone: the others run on, so that what it waits for
//! comes.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::inject::{Injector, LoadError, Loaded, Loading};
use super::registers::word;
use super::threads::state;
use super::tracees::{StopError, Tracees};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// A process that is to load a library.
#[derive(Debug)]
pub struct Loader(Injector);

impl Loader {
    /// Prepares for a process, which runs.
    ///
    /// # Errors
    /// Why none can be loaded.
    pub fn prepare(pid: Pid) -> Result<Loader, String> {
        Injector::prepare(pid).map(Loader)
    }
}

/// Time between two looks at a thread that is blocked in the kernel.
const LOOK: Duration = Duration::from_micros(200);
/// The least time for which such a thread is waited for.
const LEAST: Duration = Duration::from_secs(5);
/// How long what is done with a stopped thread may take, apart from its loading a library: its stack is read.
const WORK: Duration = Duration::from_secs(1);

/// Why a thread was not stopped.
#[derive(Debug)]
pub enum HoldError {
    /// The kernel refuses to trace it, or has no timer for memprof.
    Refused(io::Error),
    /// It was asked to stop and is blocked in the kernel since. It is let go when this process ends.
    Blocked(String),
    /// It has ended, did not stop in time, or a signal is about to be delivered.
    Missed(String),
}

/// A stopped thread. It runs on when this is dropped.
#[derive(Debug)]
pub struct Held {
    tid: i32,
    tracees: Tracees,
    watchdog: Watchdog,
    /// When it was asked to stop.
    begun: Instant,
}

/// Where a stopped thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// `rbp`.
    pub fp: u64,
    /// `rbx`.
    pub bx: u64,
    /// The number of the system call that it is in, -1 for none.
    pub call: i64,
    /// That call's result so far.
    pub result: i64,
}

impl Held {
    /// Stops a thread that does so within `max`; one that turns out to be blocked in the kernel is waited for until `end`, as it
    /// cannot be let go before.
    ///
    /// # Errors
    /// It runs, or is blocked.
    pub fn stop(tid: i32, max: Duration, end: Instant) -> Result<Held, HoldError> {
        let missed = |why: &str| HoldError::Missed(format!("thread {tid} {why}"));
        let refused = |e| match e {
            StopError::Refused(_, e) => HoldError::Refused(e),
            StopError::TimedOut(_) => missed("did not stop in time"),
        };
        // It would stop only when that ends.
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
        let held = Held {
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

    /// Where it is; `None` if it was killed.
    pub fn state(&self) -> Option<State> {
        let registers = self.tracees.registers();
        let words = &registers.first()?.words;
        let word = |place: usize| words.get(place).copied();
        Some(State {
            ip: word(word::RIP)?,
            sp: word(word::RSP)?,
            fp: word(word::RBP)?,
            bx: word(word::RBX)?,
            call: word(word::ORIG_RAX)?.cast_signed(),
            result: word(word::RAX)?.cast_signed(),
        })
    }

    /// Has it load a library.
    ///
    /// # Errors
    /// It was not loaded, or that is not known yet.
    pub fn load(&mut self, by: &Loader, what: &Loading<'_>) -> Result<Loaded, LoadError> {
        let loaded = self.tracees.load(&by.0, self.tid, what, &mut self.watchdog);
        self.watchdog.set(WORK);
        loaded
    }

    /// Lets it run on. Returns for how long it did not.
    pub fn release(mut self) -> Duration {
        self.tracees.release();
        self.watchdog.clear();
        self.begun.elapsed()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tracees.release();
    }
}
