//! Several system calls of one stopped thread. It is not restored in between: if memprof is killed, the thread makes one more call,
//! which undoes what it has done so far, and returns to its own code.

use std::io;

use super::ptrace::{Waiting, ptrace, set_mask, write};
use super::seccomp::Filters;
use super::sigreturn::WayBack;
use super::{Call, Candidate, Injector, Stopped, unsafe_states};
use crate::freeze::registers;

/// A thread that makes calls.
#[derive(Debug)]
pub(in crate::freeze) struct Session {
    thread: Stopped,
    filters: Filters,
    way_back: WayBack,
    /// The address of the thread's own signal frame.
    own: u64,
    /// The original bytes below the thread's stack.
    before: Vec<u8>,
    /// A signal that stopped the thread meanwhile; 0 for none.
    signal: i32,
    /// Whether a call took so long that the other threads had to go on.
    late: bool,
}

impl Session {
    /// Begins with one of these threads. The current thread of memprof must trace the threads, and they must be stopped without a
    /// signal.
    ///
    /// # Errors
    /// The reason why none of them can make calls; all are as before.
    pub(in crate::freeze) fn begin(
        injector: &Injector,
        threads: &[i32],
    ) -> Result<Session, String> {
        let candidates = injector.candidates(threads, |_, _, _| Ok(()));
        let (candidates, why) = candidates.map_err(|e| e.to_string())?;
        let Candidate {
            thread,
            filters,
            way_back,
            ..
        } = candidates.into_iter().next().ok_or(why)?;
        let tid = thread.tid;
        let stack = |e: io::Error| format!("below the stack of thread {tid}: {e}");
        let before = injector.read(way_back.at, way_back.bytes.len());
        let session = Session {
            own: way_back.frame,
            before: before.map_err(stack)?,
            thread,
            filters,
            way_back,
            signal: 0,
            late: false,
        };
        if let Err(e) = write(tid, session.way_back.at, &session.way_back.bytes) {
            // A part of the bytes may have been written.
            let _ = write(tid, session.way_back.at, &session.before);
            return Err(stack(e));
        }
        Ok(session)
    }

    /// Makes a call.
    ///
    /// # Errors
    /// The call was not made, or the thread cannot be controlled.
    pub(in crate::freeze) fn call(
        &mut self,
        injector: &Injector,
        call: &Call,
        waiting: &mut Waiting<'_>,
    ) -> Result<i64, String> {
        let (thread, way_back) = (&self.thread, &self.way_back);
        let calls = std::iter::once(call);
        unsafe_states::check_calls(&self.filters, thread, injector, calls, way_back)?;
        let returned = thread.make(injector, call, way_back, waiting);
        let returned =
            returned.map_err(|e| format!("thread {} cannot be controlled: {e}", thread.tid))?;
        if returned.signal != 0 {
            self.signal = returned.signal;
        }
        if returned.late {
            self.late = true;
            // The other threads may have opened or closed descriptors, so that no call undoes anything safely.
            self.way_back.frame = self.own;
        }
        Ok(returned.value)
    }

    /// Whether a call took so long that the other threads had to go on.
    pub(in crate::freeze) fn is_late(&self) -> bool {
        self.late
    }

    /// From the next call on, has the thread make this one after it if memprof is killed, or none. So what the next call makes can be
    /// undone, and what it undoes is not undone twice.
    ///
    /// # Errors
    /// The memory below the thread's stack cannot be written.
    pub(in crate::freeze) fn if_killed(
        &mut self,
        injector: &Injector,
        call: Option<&Call>,
    ) -> io::Result<()> {
        let Some(call) = call else {
            self.way_back.frame = self.own;
            return Ok(());
        };
        let frame = self.thread.frame_for(injector, call, self.own);
        self.way_back.lead_by(frame);
        let bytes = &self.way_back.bytes[..size_of_val(&frame)];
        write(self.thread.tid, self.way_back.at, bytes)
    }

    /// Restores the thread, unless it is still in a call: then it returns by its signal frames, which stay. Returns the thread and a
    /// signal to pass on; 0 for none.
    pub(in crate::freeze) fn end(self) -> (i32, i32) {
        let thread = &self.thread;
        let tid = thread.tid;
        // The mask is restored first: restoring the registers ends the protection by the signal frame.
        let restored =
            set_mask(tid, thread.mask).and_then(|()| registers::write(tid, &thread.regs));
        if restored.is_ok() {
            let _ = ptrace(libc::PTRACE_SETOPTIONS, tid, 0, 0);
            let _ = write(tid, self.way_back.at, &self.before);
        }
        (tid, self.signal)
    }
}
