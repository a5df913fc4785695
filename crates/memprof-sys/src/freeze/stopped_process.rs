//! A process of which all threads are stopped by the current thread of memprof, so that its code can be changed.

use std::io;
use std::time::{Duration, Instant};

use super::Registers;
use super::freezer::MAX_ROUNDS;
use super::inject;
use super::loader::HoldError;
use super::threads::state;
use super::tracees::{StopError, Tracees};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// A process whose threads are all stopped. They resume when this is dropped, or when memprof ends.
#[derive(Debug)]
pub struct StoppedProcess {
    tracees: Tracees,
    watchdog: Watchdog,
    /// When the first thread was asked to stop.
    begun: Instant,
}

impl StoppedProcess {
    /// Stops all threads of a process, if that takes at most `max`. The kernel kills this process if it does not let them go in
    /// twice that time.
    ///
    /// # Errors
    /// All threads run, or will run when this process ends: a thread may be blocked in the kernel.
    pub fn stop(pid: Pid, max: Duration) -> Result<StoppedProcess, HoldError> {
        let mut watchdog = Watchdog::new().map_err(|e| HoldError::Refused(io::Error::other(e)))?;
        let mut tracees = Tracees::default();
        tracees.seize_patiently(pid).map_err(error)?;
        let begun = Instant::now();
        watchdog.set(max * 2);
        let mut stopped = StoppedProcess {
            tracees,
            watchdog,
            begun,
        };
        for _ in 0..MAX_ROUNDS {
            let late = |_| begun.elapsed() > max;
            stopped.tracees.stop(&late).map_err(error)?;
            // Threads may have been created meanwhile.
            if !stopped.tracees.may_be_more(&[pid])
                || stopped.tracees.seize(pid).map_err(error)? == 0
            {
                return Ok(stopped);
            }
        }
        Err(HoldError::Missed(format!(
            "process {pid} starts threads faster than they can be stopped"
        )))
    }

    /// The registers of all threads, except those that were killed.
    pub fn registers(&self) -> Vec<Registers> {
        self.tracees.registers()
    }

    /// Replaces eight bytes of the process's memory at once, also of its code.
    ///
    /// # Errors
    /// The kernel does not let the memory be changed; it is unchanged.
    pub fn write(&self, at: u64, bytes: [u8; 8]) -> io::Result<()> {
        let registers = self.tracees.registers();
        let thread = registers.first().ok_or(io::ErrorKind::NotFound)?;
        inject::write(thread.tid, at, &bytes)
    }

    /// Resumes the threads. Returns the time for which they were stopped.
    pub fn release(mut self) -> Duration {
        self.tracees.release();
        self.watchdog.clear();
        self.begun.elapsed()
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        self.tracees.release();
        self.watchdog.clear();
    }
}

fn error(error: StopError) -> HoldError {
    match error {
        StopError::Refused(_, e) => HoldError::Refused(e),
        StopError::TimedOut(Some(tid)) if state(tid) == Some('D') => {
            HoldError::Missed(format!("thread {tid} is blocked in the kernel"))
        }
        StopError::TimedOut(_) => HoldError::Missed("its threads did not stop in time".to_owned()),
    }
}
