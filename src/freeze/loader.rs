//! Has a process load a library, by one of its threads, which is stopped alone: the others run on, so that what it waits for
//! comes.

use std::io;
use std::time::{Duration, Instant};

use super::inject::{Injector, LoadError, Loaded, Loading};
use super::registers::word;
use super::tracees::{StopError, Tracees};
use crate::event::Pid;

/// A process that is to load a library.
#[derive(Debug)]
pub(crate) struct Loader(Injector);

impl Loader {
    /// Prepares for a process, which runs.
    ///
    /// # Errors
    /// Why none can be loaded.
    pub(crate) fn prepare(pid: Pid) -> Result<Loader, String> {
        Injector::prepare(pid).map(Loader)
    }
}

/// How long memprof waits for a thread that does not stop in time, as it is blocked in the kernel. If it does not stop then
/// either, the kernel lets it go when memprof ends.
const MOST: Duration = Duration::from_secs(5);

/// Why a thread was not stopped.
#[derive(Debug)]
pub(crate) enum HoldError {
    /// The kernel refuses to trace it.
    Refused(io::Error),
    /// It has ended, did not stop in time, or a signal is about to be delivered.
    Missed(String),
}

/// A stopped thread. It runs on when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    tid: i32,
    tracees: Tracees,
    /// When it was asked to stop.
    begun: Instant,
}

/// Where a stopped thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
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
    /// Stops a thread, for which this waits for `max` at most.
    ///
    /// # Errors
    /// It runs.
    pub(crate) fn stop(tid: i32, max: Duration) -> Result<Held, HoldError> {
        let missed = |why: &str| HoldError::Missed(format!("thread {tid} {why}"));
        let refused = |e| match e {
            StopError::Refused(_, e) => HoldError::Refused(e),
            StopError::TimedOut(_) => missed("did not stop in time"),
        };
        let mut tracees = Tracees::default();
        tracees.seize_some(vec![tid]).map_err(refused)?;
        if tracees.len() == 0 {
            return Err(missed("has ended"));
        }
        let begun = Instant::now();
        let mut held = Held {
            tid,
            tracees,
            begun,
        };
        if let Err(error) = held.tracees.stop(&|_| begun.elapsed() > max) {
            // It cannot be let go before it has stopped.
            let _ = held.tracees.stop(&|_| begun.elapsed() > MOST);
            return Err(refused(error));
        }
        if !held.tracees.is_free(tid) {
            return Err(missed("has a signal to handle"));
        }
        Ok(held)
    }

    /// Where it is; `None` if it was killed.
    pub(crate) fn state(&self) -> Option<State> {
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
    pub(crate) fn load(&mut self, by: &Loader, what: &Loading<'_>) -> Result<Loaded, LoadError> {
        self.tracees.load(&by.0, self.tid, what)
    }

    /// Lets it run on. Returns for how long it did not.
    pub(crate) fn release(mut self) -> Duration {
        self.tracees.release();
        self.begun.elapsed()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tracees.release();
    }
}
