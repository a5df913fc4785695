//! The command, stopped after `execve` and before its first instruction, so that it can be made to map a library.

use std::io;
use std::time::{Duration, Instant};

use super::inject::{self, Call, Injector, Session, Waiting};
use super::stopped_process::{StillProcess, result};
use super::watchdog::Watchdog;
use crate::ids::Pid;

/// Maximum time for all system calls.
const CALLS: Duration = Duration::from_secs(2);

/// A process that its tracer, the current thread, has found stopped after `execve`. It stays stopped.
#[derive(Debug)]
pub struct ExecutedProcess {
    tid: i32,
    injector: Injector,
    /// `None` once it has ended.
    session: Option<Session>,
    /// The tracer's options.
    options: libc::c_int,
    end: Instant,
}

impl ExecutedProcess {
    /// Takes over a process, which must be in the stop `PTRACE_EVENT_EXEC` of a tracer with these options. `room` is as for
    /// [`Loader::prepare_with_room`](super::Loader::prepare_with_room).
    ///
    /// # Errors
    /// The reason why the process cannot make system calls; it is stopped as before.
    pub fn take_over(
        pid: Pid,
        options: libc::c_int,
        room: Option<u64>,
    ) -> Result<ExecutedProcess, String> {
        let injector = Injector::prepare_with_room(pid, room)?;
        let tid = pid.0.cast_signed();
        let mut executed = ExecutedProcess {
            tid,
            injector,
            session: None,
            options,
            end: Instant::now() + CALLS,
        };
        // The thread is inside `execve`, whose end would be taken for the beginning of another call.
        let left = executed.waiting(|waiting| inject::leave_call(tid, waiting));
        match left.map_err(|e| format!("it cannot be controlled: {e}"))? {
            0 => {}
            signal => send(tid, signal),
        }
        executed.injector.complete(tid)?;
        executed.session = Some(Session::begin(&executed.injector, &[tid])?);
        Ok(executed)
    }

    fn waiting<T>(&self, work: impl FnOnce(&mut Waiting<'_>) -> T) -> T {
        // There are no other threads, and the command may wait for as long as memprof does.
        let (mut watchdog, mut others) = (Watchdog::none(), |_| ());
        work(&mut Waiting::new(self.end, &mut watchdog, &mut others))
    }
}

/// Sends a signal again that the process has not seen.
fn send(tid: i32, signal: i32) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(tid, signal) };
}

impl StillProcess for ExecutedProcess {
    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64, String> {
        let call = Call { number, args };
        let mut session = self.session.take().ok_or("it has ended")?;
        let value = self.waiting(|waiting| session.call(&self.injector, &call, waiting));
        self.session = Some(session);
        result(value?)
    }

    fn if_killed(&mut self, call: Option<(libc::c_long, [u64; 6])>) -> Result<(), String> {
        let call = call.map(|(number, args)| Call { number, args });
        let session = self.session.as_mut().ok_or("it has ended")?;
        let set = session.if_killed(&self.injector, call.as_ref());
        set.map_err(|e| e.to_string())
    }

    fn is_still(&self) -> bool {
        true
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        inject::write(self.tid, at, bytes)
    }
}

impl Drop for ExecutedProcess {
    fn drop(&mut self) {
        let signal = self.session.take().map_or(0, |session| session.end().1);
        let _ = inject::set_options(self.tid, self.options);
        if signal != 0 {
            send(self.tid, signal);
        }
    }
}
