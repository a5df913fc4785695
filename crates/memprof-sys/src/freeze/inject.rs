//! Makes a system call in a stopped thread of another process, and restores the thread.
//!
//! The thread returns to its own code even if memprof is killed meanwhile, by means of the C library's code for signal handlers.
//! Before the call, memprof writes a signal frame with all of the thread's registers below the thread's stack. The call is made by
//! a `syscall` instruction followed by `ret`, which jumps to the code that ends signal handlers (`rt_sigreturn`). If memprof lives,
//! it restores the thread before that code runs. memprof makes no call in a process without these two pieces of code.

mod load;
mod ptrace;
mod remote_mapping;
mod seccomp;
mod session;
mod shellcode;
mod sigreturn;
mod sleeps;
mod unsafe_states;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub use self::load::{Functions, LoadError, Loaded, Loading};
use self::ptrace::{Stop, adopt, ptrace, set_mask};
pub(super) use self::ptrace::{Waiting, write};
use self::seccomp::Filters;
pub(super) use self::session::Session;
use self::sigreturn::{WayBack, signal_frame};
use super::registers::{self, NO_CALL, word};
use crate::ids::Pid;
use crate::proc_dir;
use crate::residency::{Classifier, proc_maps};

/// `syscall; ret`.
const CALL: [u8; 3] = [0x0f, 0x05, 0xc3];
/// Size of `syscall`, in bytes.
const SYSCALL: u64 = 2;
/// `mov $15, %rax; syscall`: `rt_sigreturn`.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Maximum number of bytes of code to search.
const MAX_CODE: u64 = 256 << 20;
/// Number of bytes of code to read at once.
const PIECE: usize = 1 << 20;

/// The registers with the arguments of a system call.
const ARGS: [usize; 6] = [
    word::RDI,
    word::RSI,
    word::RDX,
    word::R10,
    word::R8,
    word::R9,
];

/// The signal mask that blocks all signals.
const ALL_BLOCKED: u64 = u64::MAX;

/// The register set with the extended processor state (`XSAVE`).
const NT_X86_XSTATE: libc::c_int = 0x202;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;

/// A system call to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub number: libc::c_long,
    /// The arguments. [`Call::CHILD_STACK`] stands for the stack of a child that exits when it is resumed.
    pub args: [u64; 6],
}

impl Call {
    pub(super) const CHILD_STACK: u64 = u64::MAX - 1;
}

/// The result of a system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    /// The return value.
    pub value: i64,
    /// The child that the call made. It is stopped, and killed when the tracing thread of memprof exits.
    pub child: Option<i32>,
    /// A signal that stopped the thread meanwhile and must be passed on; 0 for none.
    pub signal: i32,
    /// Whether the call took longer than the other threads may be stopped, so that they run.
    pub late: bool,
}

/// The reason why a call was not made or not completed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The process has executed another program since [`Injector::prepare`].
    #[error("it has changed its code meanwhile")]
    Changed,
    /// No thread is in a state in which a call is safe, or the kernel refuses to trace them. All threads are as before.
    #[error("{0}")]
    NotMade(String),
    /// The process lacks code that calls need, possibly because it has not loaded it yet.
    #[error("{0}")]
    NotReady(String),
    /// A thread is still in the call or at its end. The other threads run, and the thread returns to its own code by itself.
    #[error(
        "thread {0} waits in the kernel in the system call that memprof has it make; it goes back by itself when that ends"
    )]
    Waits(i32),
}

/// The code and memory of a process that calls need.
#[derive(Debug)]
pub(super) struct Injector {
    mem: File,
    call: u64,
    sigreturn: u64,
    /// The stack of the first thread, start and end; `(0, 0)` if unknown.
    stack: (u64, u64),
    /// Whether the process lacks the code, and gets it before the first call.
    lacks_code: bool,
}

impl Injector {
    /// Prepares for calls in a process, which may run.
    ///
    /// # Errors
    /// The reason why no call can be made in the process.
    pub(super) fn prepare(pid: Pid) -> Result<Injector, String> {
        Injector::prepare_with_room(pid, None)
    }

    /// As [`Injector::prepare`], but also for a process that lacks the code. It gets it at `room`, where it has mapped
    /// [`Injector::ROOM`] bytes that are executable and not the program's.
    ///
    /// # Errors
    /// The reason why no call can be made in the process.
    pub(super) fn prepare_with_room(pid: Pid, room: Option<u64>) -> Result<Injector, String> {
        let mem = proc_dir::open(pid, "mem");
        let mem =
            mem.map_err(|e| format!("{} cannot be opened: {e}", proc_dir::shown(pid, "mem")))?;
        let vmas = proc_maps::read(pid, &mut Classifier::new()).map_err(|e| format!("{e:#}"))?;
        let code = || {
            let code = vmas.iter().filter(|vma| vma.perms.exec && vma.perms.read);
            code.map(|vma| (vma.start.0, vma.end.0))
        };
        let (call, sigreturn) = (find(&mem, code(), &CALL), find(&mem, code(), &SIGRETURN));
        let (call, sigreturn, lacks_code) = match (call, sigreturn, room) {
            (Some(call), Some(sigreturn), _) => (call, sigreturn, false),
            (_, _, Some(room)) => (room, room + CALL.len() as u64, true),
            _ => return Err("its code has no `syscall; ret`, or no end of signal handlers, as a C library has them".into()),
        };
        let stack = vmas.iter().find(|vma| vma.name == "[stack]");
        Ok(Injector {
            mem,
            call,
            sigreturn,
            stack: stack.map_or((0, 0), |vma| (vma.start.0, vma.end.0)),
            lacks_code,
        })
    }

    /// Size of the code for calls, in bytes.
    pub(super) const ROOM: u64 = (CALL.len() + SIGRETURN.len()) as u64;

    /// Writes the code for calls if the process of this stopped thread lacks it.
    pub(super) fn complete(&self, tid: i32) -> Result<(), String> {
        if !self.lacks_code {
            return Ok(());
        }
        let code = [&CALL[..], &SIGRETURN].concat();
        let written = write(tid, self.call, &code);
        written.map_err(|e| format!("its code cannot be changed: {e}"))
    }

    /// Makes the call in one of these threads, and returns the thread and the result. The current thread of memprof must trace the
    /// threads, and they must be stopped without a signal. The chosen thread may also make the call `later`, if there is one.
    ///
    /// # Errors
    /// The reason why the call was not made or is not completed.
    pub(super) fn call(
        &self,
        threads: &[i32],
        call: &Call,
        later: Option<&Call>,
        waiting: &mut Waiting<'_>,
    ) -> Result<(i32, Returned), CallError> {
        let (candidates, mut why) = self.candidates(threads, |thread, filters, way_back| {
            if call.args.contains(&Call::CHILD_STACK) {
                unsafe_states::check_child(thread)?;
            }
            let calls = [Some(call), later];
            let calls = calls.into_iter().flatten();
            unsafe_states::check_calls(filters, thread, self, calls, way_back)
        })?;
        for Candidate {
            thread, way_back, ..
        } in candidates
        {
            let tid = thread.tid;
            match thread.call(self, call, &way_back, waiting) {
                Ok(returned) => return Ok((tid, returned)),
                Err(CallError::NotMade(reason)) => why = reason,
                Err(e) => return Err(e),
            }
        }
        Err(CallError::NotMade(why))
    }

    /// The threads among these that can make calls, the best first, and why the last of the others cannot.
    ///
    /// # Errors
    /// The code for calls is not there.
    fn candidates(
        &self,
        threads: &[i32],
        check: impl Fn(&Stopped, &Filters, &WayBack) -> Result<(), String>,
    ) -> Result<(Vec<Candidate>, String), CallError> {
        // The process may have run since `prepare` found these instructions.
        let is_there = |addr, code: &[u8]| self.read(addr, code.len()).is_ok_and(|it| it == code);
        if !is_there(self.call, &CALL) || !is_there(self.sigreturn, &SIGRETURN) {
            return Err(CallError::Changed);
        }
        let mut why = "no thread of it is stopped".to_owned();
        let mut all: Vec<Candidate> = Vec::new();
        for tid in threads {
            let ready = Stopped::look(*tid).and_then(|thread| {
                let filters = unsafe_states::check(&thread, self)?;
                let way_back = WayBack::for_thread(&thread, self)?;
                check(&thread, &filters, &way_back)?;
                Ok(Candidate {
                    rank: thread.rank(self),
                    thread,
                    filters,
                    way_back,
                })
            });
            match ready {
                Ok(ready) => all.push(ready),
                Err(reason) => why = reason,
            }
            // A thread that is blocked in a system call and on the main stack is the best choice.
            if all.last().is_some_and(|ready| ready.rank == 0) {
                break;
            }
        }
        all.sort_by_key(|ready| ready.rank);
        Ok((all, why))
    }

    fn read(&self, addr: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mem.read_exact_at(&mut bytes, addr)?;
        Ok(bytes)
    }
}

/// The first address at which the code contains these bytes.
fn find(mem: &File, code: impl Iterator<Item = (u64, u64)>, wanted: &[u8]) -> Option<u64> {
    let mut left = MAX_CODE;
    for (start, end) in code {
        let mut at = start;
        while at < end && left > 0 {
            let len = (end - at).min(PIECE as u64);
            let mut bytes = vec![0; len as usize];
            // Pages beyond the end of a file cannot be read.
            let read = mem.read_at(&mut bytes, at).unwrap_or(0);
            if let Some(found) = memchr::memmem::find(&bytes[..read], wanted) {
                return Some(at + found as u64);
            }
            if read <= wanted.len() {
                break;
            }
            left = left.saturating_sub(read as u64);
            at += (read - wanted.len()) as u64;
        }
    }
    None
}

/// A thread that can make a call.
struct Candidate {
    /// See [`Stopped::rank`].
    rank: u8,
    thread: Stopped,
    filters: Filters,
    way_back: WayBack,
}

/// The state of a thread before a call.
#[derive(Debug)]
struct Stopped {
    tid: i32,
    regs: Vec<u64>,
    /// The thread's signal mask.
    mask: u64,
    xstate: Vec<u8>,
}

impl Stopped {
    /// Reads a thread's state.
    ///
    /// # Errors
    /// The state cannot be read.
    fn look(tid: i32) -> Result<Stopped, String> {
        let gone = || format!("thread {tid} has ended");
        let regs = registers::set(tid, libc::NT_PRSTATUS).ok_or_else(gone)?;
        let xstate = registers::bytes(tid, NT_X86_XSTATE).ok_or_else(gone)?;
        let mut mask = 0_u64;
        ptrace(
            PTRACE_GETSIGMASK,
            tid,
            size_of::<u64>() as u64,
            (&raw mut mask) as u64,
        )
        .map_err(|e| format!("the signal mask of thread {tid} cannot be read: {e}"))?;
        Ok(Stopped {
            tid,
            regs,
            mask,
            xstate,
        })
    }

    /// Suitability for a call, 0 for the best: blocked in a system call, and on a stack that is certainly large enough.
    fn rank(&self, injector: &Injector) -> u8 {
        let (start, end) = injector.stack;
        let own_stack = (start..end).contains(&self.regs[word::RSP]);
        u8::from(self.regs[word::ORIG_RAX] == NO_CALL) + 2 * u8::from(!own_stack)
    }

    /// Makes the call, and restores the thread.
    fn call(
        self,
        injector: &Injector,
        call: &Call,
        way_back: &WayBack,
        waiting: &mut Waiting<'_>,
    ) -> Result<Returned, CallError> {
        let tid = self.tid;
        let stack = |e| CallError::NotMade(format!("below the stack of thread {tid}: {e}"));
        let before = injector.read(way_back.at, way_back.bytes.len());
        let before = before.map_err(stack)?;
        let written = write(tid, way_back.at, &way_back.bytes);
        if let Err(e) = written {
            // A part of the bytes may have been written.
            let _ = write(tid, way_back.at, &before);
            return Err(stack(e));
        }
        let failed =
            |e: io::Error| CallError::NotMade(format!("thread {tid} cannot be controlled: {e}"));
        let done = self.make(injector, call, way_back, waiting);
        if matches!(&done, Err(e) if e.kind() == io::ErrorKind::TimedOut) {
            return Err(CallError::Waits(tid));
        }
        // This runs even if the call failed. The mask is restored first: restoring the registers ends the protection by the signal
        // frame.
        let restored = set_mask(tid, self.mask).and_then(|()| registers::write(tid, &self.regs));
        let _ = ptrace(libc::PTRACE_SETOPTIONS, tid, 0, 0);
        restored.map_err(failed)?;
        let _ = write(tid, way_back.at, &before);
        done.map_err(failed)
    }

    /// A signal frame that makes a call, and then continues at the stack pointer `back`.
    fn frame_for(&self, injector: &Injector, call: &Call, back: u64) -> [u64; 39] {
        let mut regs = [0; word::SS + 1];
        regs[word::RIP] = injector.call;
        regs[word::RAX] = call.number.cast_unsigned();
        for (place, arg) in ARGS.into_iter().zip(call.args) {
            regs[place] = arg;
        }
        regs[word::RSP] = back;
        regs[word::CS] = self.regs[word::CS];
        regs[word::SS] = self.regs[word::SS];
        signal_frame(injector.sigreturn, &regs, ALL_BLOCKED, 0)
    }

    /// The registers with which the thread makes the call.
    fn registers_for(&self, injector: &Injector, call: &Call, way_back: &WayBack) -> Vec<u64> {
        let mut regs = self.regs.clone();
        regs[word::RIP] = injector.call;
        regs[word::RSP] = way_back.frame;
        regs[word::RAX] = call.number.cast_unsigned();
        // The kernel must not treat this as the system call that was interrupted.
        regs[word::ORIG_RAX] = NO_CALL;
        for (place, arg) in ARGS.into_iter().zip(call.args) {
            regs[place] = match arg {
                Call::CHILD_STACK => way_back.child_frame,
                arg => arg,
            };
        }
        regs
    }

    fn make(
        &self,
        injector: &Injector,
        call: &Call,
        way_back: &WayBack,
        waiting: &mut Waiting<'_>,
    ) -> io::Result<Returned> {
        let mut returned = self.enter(injector, call, way_back, waiting)?;
        returned.signal = settle(self.tid, returned.signal, waiting)?;
        returned.late = waiting.late;
        Ok(returned)
    }

    /// Makes the call, and stops the thread at the call's exit.
    fn enter(
        &self,
        injector: &Injector,
        call: &Call,
        way_back: &WayBack,
        waiting: &mut Waiting<'_>,
    ) -> io::Result<Returned> {
        let tid = self.tid;
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
        ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as u64)?;
        registers::write(tid, &self.registers_for(injector, call, way_back))?;
        // From here on, the thread returns to its own code by itself, which also restores the mask.
        set_mask(tid, ALL_BLOCKED)?;
        let mut returned = Returned {
            value: 0,
            child: None,
            signal: 0,
            late: false,
        };
        let mut entered = false;
        loop {
            ptrace(libc::PTRACE_SYSCALL, tid, 0, 0)?;
            match waiting.wait(tid)? {
                Stop::Call if entered => break,
                Stop::Call => entered = true,
                Stop::Clone => {
                    let mut child = 0_u64;
                    ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut child) as u64)?;
                    // If the child has been killed, it must be reaped nevertheless.
                    let _ = adopt(child as i32);
                    returned.child = Some(child as i32);
                }
                Stop::Trap => {}
                Stop::Signal(signal) => returned.signal = signal,
            }
        }
        let regs = registers::set(tid, libc::NT_PRSTATUS).ok_or(io::ErrorKind::NotFound)?;
        returned.value = regs[word::RAX].cast_signed();
        Ok(returned)
    }
}

/// Moves a thread that its tracer has stopped inside a system call to a stop after it. Returns the signal to pass on; 0 for none.
pub(super) fn leave_call(tid: i32, waiting: &mut Waiting<'_>) -> io::Result<i32> {
    set_options(tid, 0)?;
    settle(tid, 0, waiting)
}

/// Sets the options of a thread's tracer.
pub(super) fn set_options(tid: i32, options: libc::c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as u64).map(drop)
}

/// Moves a thread from the exit of a system call to a stop where its state can be restored. Returns the signal to pass on: a new
/// one, or else `pending`.
fn settle(tid: i32, mut pending: i32, waiting: &mut Waiting<'_>) -> io::Result<i32> {
    // The kernel restarts an interrupted system call when it checks for signals, so the thread is stopped there once more. It does
    // not return to user space in between.
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
    loop {
        ptrace(libc::PTRACE_CONT, tid, 0, 0)?;
        match waiting.wait(tid)? {
            Stop::Trap => return Ok(pending),
            Stop::Signal(signal) => pending = signal,
            Stop::Call | Stop::Clone => {}
        }
    }
}
