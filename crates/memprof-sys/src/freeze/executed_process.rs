//! The command, stopped after `execve` and before its first instruction, so that it can be made to map a library.

use std::io;
use std::time::{Duration, Instant};

use super::inject::{self, Call, Injector, Waiting};
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
    /// The tracer's options.
    options: libc::c_int,
    /// A signal that arrived meanwhile; 0 for none.
    signal: i32,
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
            options,
            signal: 0,
            end: Instant::now() + CALLS,
        };
        // The thread is inside `execve`, whose end would be taken for the beginning of another call.
        let left = executed.waiting(|_, waiting| inject::leave_call(tid, waiting));
        executed.signal = left.map_err(|e| format!("it cannot be controlled: {e}"))?;
        executed.injector.complete(tid)?;
        Ok(executed)
    }

    fn waiting<T>(&self, work: impl FnOnce(&ExecutedProcess, &mut Waiting<'_>) -> T) -> T {
        // There are no other threads, and the command may wait for as long as memprof does.
        let (mut watchdog, mut others) = (Watchdog::none(), |_| ());
        work(
            self,
            &mut Waiting::new(self.end, &mut watchdog, &mut others),
        )
    }
}

impl StillProcess for ExecutedProcess {
    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64, String> {
        let call = Call { number, args };
        let made = self.waiting(|this, waiting| {
            let made = this.injector.call(&[this.tid], &call, None, waiting);
            made.map_err(|e| e.to_string())
        });
        let (_, returned) = made?;
        if returned.signal != 0 {
            self.signal = returned.signal;
        }
        result(returned.value)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        inject::write(self.tid, at, bytes)
    }
}

impl Drop for ExecutedProcess {
    fn drop(&mut self) {
        let _ = inject::set_options(self.tid, self.options);
        if self.signal != 0 {
            // Sent again: the process has not seen it.
            // SAFETY: takes two numbers.
            unsafe { libc::kill(self.tid, self.signal) };
        }
    }
}
