//! A process of which all threads are stopped by the current thread of memprof, so that its code can be changed, and so that it can
//! be made to map a library that no loader loads.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Registers;
use super::freezer::MAX_ROUNDS;
use super::inject::{self, Call, Session, Waiting};
use super::loader::{HoldError, Loader};
use super::threads::state;
use super::tracees::{StopError, Tracees};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// Maximum time to wait for threads that did not stop in time, and interval at which they are polled.
const RELEASE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_micros(200);
/// Maximum time for a system call.
const CALL: Duration = Duration::from_millis(20);

/// A process that stands still, so that memprof can change its memory.
pub trait StillProcess {
    /// Makes the process make a system call.
    ///
    /// # Errors
    /// The call's own error, or the reason why it was not made.
    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64, String>;

    /// From the next call on, has the process make this one after it if memprof is killed, before it goes on by itself; or none.
    ///
    /// # Errors
    /// The process cannot be controlled.
    fn if_killed(&mut self, call: Option<(libc::c_long, [u64; 6])>) -> Result<(), String>;

    /// Whether no thread has run since the process was stopped. Threads that wait for a slow call are let go.
    fn is_still(&self) -> bool;

    /// Replaces at least eight bytes of the process's memory, also of its code; eight at once.
    ///
    /// # Errors
    /// The kernel does not let the memory be changed.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

/// The result of a system call, in the kernel's form.
pub(super) fn result(value: i64) -> Result<u64, String> {
    match value {
        -4095..0 => Err(io::Error::from_raw_os_error(-value as i32).to_string()),
        _ => Ok(value.cast_unsigned()),
    }
}

/// A process whose threads are all stopped. They resume when this is dropped, or when memprof ends.
#[derive(Debug)]
pub struct StoppedProcess<'a> {
    tracees: Tracees,
    watchdog: Watchdog,
    /// When the first thread was asked to stop.
    begun: Instant,
    by: Option<&'a Loader>,
    /// The thread that makes calls, from the first one on.
    session: Option<Session>,
}

impl<'a> StoppedProcess<'a> {
    /// Stops all threads of a process, if that takes at most `max`. The kernel kills this process if it does not let them go in
    /// twice that time. The process can make system calls if it was prepared for them: `by`.
    ///
    /// # Errors
    /// All threads run, or will run when this process ends: a thread may be blocked in the kernel.
    pub fn stop(
        pid: Pid,
        max: Duration,
        by: Option<&'a Loader>,
    ) -> Result<StoppedProcess<'a>, HoldError> {
        let mut watchdog = Watchdog::new().map_err(|e| HoldError::Refused(io::Error::other(e)))?;
        let mut tracees = Tracees::default();
        tracees.seize_patiently(pid).map_err(error)?;
        let begun = Instant::now();
        watchdog.set(max * 2);
        let mut stopped = StoppedProcess {
            tracees,
            watchdog,
            begun,
            by,
            session: None,
        };
        match stopped.stop_all(pid, max) {
            Ok(()) => Ok(stopped),
            Err(why) => {
                stopped.let_go();
                Err(why)
            }
        }
    }

    fn stop_all(&mut self, pid: Pid, max: Duration) -> Result<(), HoldError> {
        let begun = self.begun;
        for _ in 0..MAX_ROUNDS {
            let late = |_| begun.elapsed() > max;
            self.tracees.stop(&late).map_err(error)?;
            // Threads may have been created meanwhile.
            if !self.tracees.may_be_more(&[pid]) || self.tracees.seize(pid).map_err(error)? == 0 {
                return Ok(());
            }
        }
        Err(HoldError::Missed(format!(
            "process {pid} starts threads faster than they can be stopped"
        )))
    }

    /// Releases the threads, also those that have not stopped yet: a thread can be released only when it is stopped, and another
    /// attempt fails while this process traces it.
    fn let_go(&mut self) {
        let end = Instant::now() + RELEASE;
        self.tracees.release();
        self.tracees.interrupt();
        while self.tracees.has_any() && Instant::now() < end {
            self.watchdog.set(LOOK);
            sleep(LOOK);
            self.tracees.release();
        }
    }

    fn session(&mut self) -> Result<(&'a Loader, Session), String> {
        let by = self.by.ok_or("it was stopped for something else")?;
        if let Some(session) = self.session.take() {
            return Ok((by, session));
        }
        let free = self.tracees.free();
        let first = free.first().ok_or("no thread of it is stopped")?;
        by.injector().complete(*first)?;
        Ok((by, Session::begin(by.injector(), &free)?))
    }

    /// Restores the thread that has made calls.
    fn end_calls(&mut self) {
        if let Some(session) = self.session.take() {
            let (tid, signal) = session.end();
            self.tracees.set_signal(tid, signal);
        }
    }

    /// The registers of all threads, except those that were killed.
    pub fn registers(&self) -> Vec<Registers> {
        self.tracees.registers()
    }

    /// Resumes the threads. Returns the time for which they were stopped.
    pub fn release(mut self) -> Duration {
        self.end_calls();
        self.tracees.release();
        self.watchdog.clear();
        self.begun.elapsed()
    }
}

impl StillProcess for StoppedProcess<'_> {
    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64, String> {
        let call = Call { number, args };
        let end = Instant::now() + CALL;
        let (by, mut session) = self.session()?;
        let tracees = &mut self.tracees;
        let mut others = |tid| tracees.release_others(tid);
        let mut waiting = Waiting::new(end, &mut self.watchdog, &mut others);
        let value = session.call(by.injector(), &call, &mut waiting);
        self.session = Some(session);
        result(value?)
    }

    fn if_killed(&mut self, call: Option<(libc::c_long, [u64; 6])>) -> Result<(), String> {
        let (by, mut session) = self.session()?;
        let call = call.map(|(number, args)| Call { number, args });
        let set = session.if_killed(by.injector(), call.as_ref());
        self.session = Some(session);
        set.map_err(|e| e.to_string())
    }

    fn is_still(&self) -> bool {
        self.session
            .as_ref()
            .is_none_or(|session| !session.is_late())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let registers = self.tracees.registers();
        let thread = registers.first().ok_or(io::ErrorKind::NotFound)?;
        inject::write(thread.tid, at, bytes)
    }
}

impl Drop for StoppedProcess<'_> {
    fn drop(&mut self) {
        self.end_calls();
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
