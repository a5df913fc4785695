//! Runs a system call in a stopped thread of another process, and gives the thread back as it was.
//!
//! The thread finds its own way back if memprof is killed meanwhile. What the C library has for signal handlers is used
//! for that: before the call, a signal frame with all of the thread's registers is written below its stack, and the call is made
//! by an instruction that is followed by a return, to the code that ends signal handlers (`rt_sigreturn`). If memprof lives, it
//! restores the thread before that code runs. A process without these two pieces of code is left alone.

use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use super::registers::{self, NO_CALL, word};
use crate::event::Pid;
use crate::residency::{Classifier, proc_maps};

/// `syscall; ret`.
const CALL: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`: `rt_sigreturn`.
const SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// Maximum number of bytes of code that are searched.
const MOST_CODE: u64 = 256 << 20;
/// Size of one read of it.
const PIECE: usize = 1 << 20;
/// The code segment of 64-bit programs.
const USER_CODE: u64 = 0x33;
/// Bytes below the stack pointer that belong to the running function.
const RED_ZONE: u64 = 128;
/// Room for a signal frame, without the state of the floating-point unit. It is a multiple of its alignment.
const FRAME: u64 = 320;
/// Alignment of that state, in bytes.
const XSAVE_ALIGN: u64 = 64;
/// Where the kernel says in that state which parts of it there are: offset in bytes.
const SW_BYTES: usize = 464;
/// Size of the part of it that every processor has, with the header of the others.
const XSAVE_HEADER_END: u64 = 576;
/// Parts of it that a process must ask for: the tiles of AMX.
const BY_REQUEST: u64 = 3 << 17;
/// The mask that blocks all signals.
const ALL_BLOCKED: u64 = u64::MAX;

/// The register set with the floating-point unit's state.
const NT_X86_XSTATE: libc::c_int = 0x202;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Errors by which the kernel marks a system call that it starts again (`include/linux/errno.h`).
const ERESTARTSYS: i64 = -512;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// A system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub number: libc::c_long,
    /// Its arguments. [`Call::CHILD_STACK`] stands for the stack of a child that ends itself when it is resumed.
    pub args: [u64; 5],
}

impl Call {
    pub(super) const CHILD_STACK: u64 = u64::MAX - 1;
}

/// What a call returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    /// Its result.
    pub value: i64,
    /// The child that it made, which is stopped, and dies with the current thread of memprof.
    pub child: Option<i32>,
    /// A signal that stopped the thread meanwhile and is to be passed on; 0 for none.
    pub signal: i32,
}

/// What in a process's code and memory is needed for calls.
#[derive(Debug)]
pub(super) struct Injector {
    mem: File,
    call: u64,
    sigreturn: u64,
    /// The stack of its first thread.
    stack: (u64, u64),
}

impl Injector {
    /// Prepares for a process, which may run.
    ///
    /// # Errors
    /// Why no call can be made in it.
    pub(super) fn prepare(pid: Pid) -> Result<Injector, String> {
        let path = format!("/proc/{pid}/mem");
        let mem = File::options().read(true).write(true).open(&path);
        let mem = mem.map_err(|e| format!("{path} cannot be opened: {e}"))?;
        let vmas = proc_maps::read(pid, &mut Classifier::new()).map_err(|e| format!("{e:#}"))?;
        let code = || {
            let code = vmas.iter().filter(|vma| vma.perms.exec && vma.perms.read);
            code.map(|vma| (vma.start.0, vma.end.0))
        };
        let (call, sigreturn) = (find(&mem, code(), &CALL), find(&mem, code(), &SIGRETURN));
        let (Some(call), Some(sigreturn)) = (call, sigreturn) else {
            return Err("its code has no `syscall; ret`, or no end of signal handlers, as a C library has them".into());
        };
        let stack = vmas.iter().find(|vma| vma.name == "[stack]");
        Ok(Injector {
            mem,
            call,
            sigreturn,
            stack: stack.map_or((0, 0), |vma| (vma.start.0, vma.end.0)),
        })
    }

    /// Makes the call in one of these threads, which the current thread of memprof traces and which are stopped without
    /// a signal. Returns the thread as well.
    ///
    /// # Errors
    /// None of the threads is at a place where a call does no harm, or the kernel refuses to trace it; all are as they
    /// were.
    pub(super) fn call(&self, threads: &[i32], call: &Call) -> Result<(i32, Returned), String> {
        // The process ran on since they were found.
        let is_there = |addr, code: &[u8]| self.read(addr, code.len()).is_ok_and(|it| it == code);
        if !is_there(self.call, &CALL) || !is_there(self.sigreturn, &SIGRETURN) {
            return Err("it has changed its code meanwhile".to_owned());
        }
        let mut why = "no thread of it is stopped".to_owned();
        let mut stopped: Vec<(u8, Stopped)> = Vec::new();
        for tid in threads {
            match Stopped::look(*tid, self) {
                Ok(thread) => stopped.push((thread.rank(self), thread)),
                Err(reason) => why = reason,
            }
            // One that waits on the program's own stack is as good as it gets.
            if stopped.last().is_some_and(|(rank, _)| *rank == 0) {
                break;
            }
        }
        stopped.sort_by_key(|(rank, _)| *rank);
        for (_, thread) in stopped {
            let tid = thread.tid;
            match thread.call(self, call) {
                Ok(returned) => return Ok((tid, returned)),
                Err(reason) => why = reason,
            }
        }
        Err(why)
    }

    fn read(&self, addr: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mem.read_exact_at(&mut bytes, addr)?;
        Ok(bytes)
    }
}

/// Filters and shadow stacks may end a process that makes a call that it does not make itself. Each thread has its own.
fn refuse_if_filtered(tid: i32) -> Result<(), String> {
    let status = fs::read_to_string(format!("/proc/{tid}/status"));
    let status = status.map_err(|e| format!("/proc/{tid}/status cannot be read: {e}"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default()
    };
    if field("Seccomp:") != "0" {
        return Err(format!(
            "thread {tid} runs under a seccomp filter, which may forbid the call"
        ));
    }
    if field("x86_Thread_features:").contains("shstk") {
        return Err(format!("thread {tid} has a shadow stack"));
    }
    Ok(())
}

/// The first place where the code has these bytes.
fn find(mem: &File, code: impl Iterator<Item = (u64, u64)>, wanted: &[u8]) -> Option<u64> {
    let mut left = MOST_CODE;
    for (start, end) in code {
        let mut at = start;
        while at < end && left > 0 {
            let len = (end - at).min(PIECE as u64);
            let mut bytes = vec![0; len as usize];
            // Pages behind the end of a file cannot be read.
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

/// A thread before a call.
struct Stopped {
    tid: i32,
    regs: Vec<u64>,
    /// The signals that it blocks.
    mask: u64,
    xstate: Vec<u8>,
}

impl Stopped {
    /// Reads a thread's state.
    ///
    /// # Errors
    /// Why no call may be made in it.
    fn look(tid: i32, injector: &Injector) -> Result<Stopped, String> {
        refuse_if_filtered(tid)?;
        let gone = || format!("thread {tid} has ended");
        let regs = registers::set(tid, libc::NT_PRSTATUS).ok_or_else(gone)?;
        let xstate = registers::bytes(tid, NT_X86_XSTATE).ok_or_else(gone)?;
        if regs.len() <= word::SS || regs[word::CS] != USER_CODE {
            return Err(format!("thread {tid} runs 32-bit code"));
        }
        if dispatches_calls(tid) {
            return Err(format!("thread {tid} handles its system calls itself"));
        }
        // It would not be told that its sequence was interrupted (`rseq`): a blocked thread is in none.
        if regs[word::ORIG_RAX] == NO_CALL && injector.may_be_in_rseq(tid) {
            return Err(format!("thread {tid} is in a restartable sequence"));
        }
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

    /// How well it is suited, 0 for the best: blocked in a system call, and on a stack that is surely large enough.
    fn rank(&self, injector: &Injector) -> u8 {
        let (start, end) = injector.stack;
        let own_stack = (start..end).contains(&self.regs[word::RSP]);
        u8::from(self.regs[word::ORIG_RAX] == NO_CALL) + 2 * u8::from(!own_stack)
    }

    /// Makes the call.
    fn call(self, injector: &Injector, call: &Call) -> Result<Returned, String> {
        let tid = self.tid;
        let way_back = self.way_back(injector)?;
        let before = injector.read(way_back.at, way_back.bytes.len());
        let before = before.map_err(|e| format!("below the stack of thread {tid}: {e}"))?;
        let written = injector.mem.write_all_at(&way_back.bytes, way_back.at);
        if let Err(e) = written {
            // A part of it may be there.
            let _ = injector.mem.write_all_at(&before, way_back.at);
            return Err(format!("below the stack of thread {tid}: {e}"));
        }
        let failed = |e: io::Error| format!("thread {tid} cannot be controlled: {e}");
        let done = self.make(injector, call, &way_back);
        // Also where something failed. First the mask, because the registers' restoration ends what the frame protects.
        let restored = set_mask(tid, self.mask).and_then(|()| registers::write(tid, &self.regs));
        let _ = ptrace(libc::PTRACE_SETOPTIONS, tid, 0, 0);
        restored.map_err(failed)?;
        let _ = injector.mem.write_all_at(&before, way_back.at);
        done.map_err(failed)
    }

    fn make(&self, injector: &Injector, call: &Call, way_back: &WayBack) -> io::Result<Returned> {
        let tid = self.tid;
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
        ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options as u64)?;
        let mut regs = self.regs.clone();
        regs[word::RIP] = injector.call;
        regs[word::RSP] = way_back.frame;
        regs[word::RAX] = call.number.cast_unsigned();
        // The kernel must not take it for the interrupted call.
        regs[word::ORIG_RAX] = NO_CALL;
        let places = [word::RDI, word::RSI, word::RDX, word::R10, word::R8];
        for (place, arg) in places.into_iter().zip(call.args) {
            regs[place] = match arg {
                Call::CHILD_STACK => way_back.child_frame,
                arg => arg,
            };
        }
        registers::write(tid, &regs)?;
        // From here on the thread finds its way back by itself, which restores the mask, too.
        set_mask(tid, ALL_BLOCKED)?;
        let mut returned = Returned {
            value: 0,
            child: None,
            signal: 0,
        };
        let mut entered = false;
        loop {
            ptrace(libc::PTRACE_SYSCALL, tid, 0, 0)?;
            match wait(tid)? {
                Stop::Call if entered => break,
                Stop::Call => entered = true,
                Stop::Clone => {
                    let mut child = 0_u64;
                    ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut child) as u64)?;
                    // If it has been killed, it is to be reaped all the same.
                    let _ = adopt(child as i32);
                    returned.child = Some(child as i32);
                }
                Stop::Trap => {}
                Stop::Signal(signal) => returned.signal = signal,
            }
        }
        let regs = registers::set(tid, libc::NT_PRSTATUS).ok_or(io::ErrorKind::NotFound)?;
        returned.value = regs[word::RAX].cast_signed();
        // The kernel starts an interrupted system call again where it looks for signals, so the thread is stopped there once
        // more. It does not return to the program in between.
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        loop {
            ptrace(libc::PTRACE_CONT, tid, 0, 0)?;
            match wait(tid)? {
                Stop::Trap => return Ok(returned),
                Stop::Signal(signal) => returned.signal = signal,
                Stop::Call | Stop::Clone => {}
            }
        }
    }

    /// What leads the thread back to where it is, and a child to its end.
    fn way_back(&self, injector: &Injector) -> Result<WayBack, String> {
        let tid = self.tid;
        let size = xsave_size(&self.xstate).ok_or_else(|| {
            format!(
                "the floating-point state of thread {tid} has a form that memprof does not know"
            )
        })?;
        let top = self.regs[word::RSP].checked_sub(RED_ZONE + size + 2 * FRAME + 3 * XSAVE_ALIGN);
        // The lowest byte that is written, with room for alignment above.
        let at = top.ok_or("its stack pointer is none")? & !(XSAVE_ALIGN - 1);
        let child_frame = at;
        let frame = at + FRAME;
        let xsave = frame + FRAME;
        let mut bytes = vec![0; (xsave + size + 4 - at) as usize];
        let mut child = [0; word::SS + 1];
        child[word::RIP] = injector.call;
        child[word::RAX] = libc::SYS_exit_group.cast_unsigned();
        child[word::RSP] = child_frame;
        child[word::CS] = self.regs[word::CS];
        child[word::SS] = self.regs[word::SS];
        let end = signal_frame(injector.sigreturn, &child, ALL_BLOCKED, 0);
        let own = signal_frame(injector.sigreturn, &restarted(&self.regs), self.mask, xsave);
        for (offset, words) in [(0, end), (FRAME as usize, own)] {
            for (to, word) in bytes[offset..].chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
        }
        let (from, to) = ((xsave - at) as usize, size as usize);
        bytes[from..from + to].copy_from_slice(&self.xstate[..to]);
        let features = u64::from_le_bytes(
            self.xstate[SW_BYTES..SW_BYTES + 8]
                .try_into()
                .unwrap_or_default(),
        );
        let said = sw_bytes(size as u32, features & !BY_REQUEST);
        bytes[from + SW_BYTES..from + SW_BYTES + said.len()].copy_from_slice(&said);
        bytes[from + to..].copy_from_slice(&MAGIC2.to_le_bytes());
        Ok(WayBack {
            at,
            bytes,
            frame,
            child_frame,
        })
    }
}

/// What is written below a thread's stack.
struct WayBack {
    at: u64,
    bytes: Vec<u8>,
    /// The thread's signal frame.
    frame: u64,
    /// That of a child, which ends it.
    child_frame: u64,
}

/// The words of a signal frame (`struct rt_sigframe` of x86-64).
fn signal_frame(sigreturn: u64, regs: &[u64], mask: u64, xsave: u64) -> [u64; 39] {
    /// There is an extended state; the stack segment is valid, and to be restored.
    const FLAGS: u64 = 7;
    /// An impossible flag: the kernel leaves the signal stack as it is.
    const NO_SIGNAL_STACK: u64 = 7;
    const ORDER: [usize; 18] = [
        word::R8,
        word::R9,
        word::R10,
        word::R11,
        word::R12,
        word::R13,
        word::R14,
        word::R15,
        word::RDI,
        word::RSI,
        word::RBP,
        word::RBX,
        word::RDX,
        word::RAX,
        word::RCX,
        word::RSP,
        word::RIP,
        word::EFLAGS,
    ];
    let mut frame = [0; 39];
    frame[0] = sigreturn;
    frame[1] = FLAGS;
    frame[4] = NO_SIGNAL_STACK;
    for (to, from) in frame[6..24].iter_mut().zip(ORDER) {
        *to = regs[from];
    }
    frame[24] = regs[word::CS] | regs[word::SS] << 48;
    frame[29] = xsave;
    frame[38] = mask;
    frame
}

/// The registers with which the program goes on if the kernel does not start the interrupted system call again: at
/// the call, or behind it with the error that says that it was interrupted.
fn restarted(regs: &[u64]) -> Vec<u64> {
    /// Size of `syscall`, in bytes.
    const SYSCALL: u64 = 2;
    let mut regs = regs.to_vec();
    if regs[word::ORIG_RAX] != NO_CALL {
        match regs[word::RAX].cast_signed() {
            ERESTARTNOHAND..=ERESTARTSYS => {
                regs[word::RAX] = regs[word::ORIG_RAX];
                regs[word::RIP] -= SYSCALL;
            }
            ERESTART_RESTARTBLOCK => {
                regs[word::RAX] = i64::from(-libc::EINTR).cast_unsigned();
            }
            _ => {}
        }
    }
    regs
}

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;

/// What the kernel expects to read in a signal frame about the extended state (`struct _fpx_sw_bytes`).
fn sw_bytes(size: u32, features: u64) -> [u8; 24] {
    let mut said = [0; 24];
    said[..4].copy_from_slice(&MAGIC1.to_le_bytes());
    said[4..8].copy_from_slice(&(size + 4).to_le_bytes());
    said[8..16].copy_from_slice(&features.to_le_bytes());
    said[16..20].copy_from_slice(&size.to_le_bytes());
    said
}

/// The number of bytes of an extended state that a signal frame has. `None` for a state that it would lack a part of.
fn xsave_size(xstate: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(*xstate.get(at..)?.first_chunk()?));
    let (there, used) = (word(SW_BYTES)?, word(512)?);
    if used & BY_REQUEST != 0 || __get_cpuid_max(0).0 < 0xd {
        return None;
    }
    let mut size = XSAVE_HEADER_END;
    for part in (2..63).filter(|part| (there & !BY_REQUEST) >> part & 1 == 1) {
        let found = __cpuid_count(0xd, part);
        size = size.max(u64::from(found.eax) + u64::from(found.ebx));
    }
    (size <= xstate.len() as u64).then_some(size)
}

impl Injector {
    /// Whether a thread may be in a restartable sequence.
    fn may_be_in_rseq(&self, tid: i32) -> bool {
        /// Offset of the pointer to the running sequence.
        const SEQUENCE: u64 = 8;
        let mut words = [0_u64; 3];
        let at = (&raw mut words) as u64;
        let read = ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION,
            tid,
            size_of_val(&words) as u64,
            at,
        );
        match (read, words[0]) {
            (Ok(_), 0) => false,
            (Ok(_), area) => {
                let running = self.read(area + SEQUENCE, 8);
                running.map_or(true, |bytes| bytes != [0; 8])
            }
            // Without support for it in the kernel there are none.
            (Err(e), _) => e.raw_os_error() != Some(libc::EIO),
        }
    }
}

/// Whether a thread has its system calls handled in user space (`PR_SET_SYSCALL_USER_DISPATCH`).
fn dispatches_calls(tid: i32) -> bool {
    let mut words = [0_u64; 4];
    let at = (&raw mut words) as u64;
    let read = ptrace(
        PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
        tid,
        size_of_val(&words) as u64,
        at,
    );
    // Kernels before 6.4 cannot be asked.
    read.is_ok() && words[0] != 0
}

/// Waits for a new child, and has the kernel kill it when the current thread of memprof ends.
fn adopt(child: i32) -> io::Result<()> {
    wait(child)?;
    ptrace(
        libc::PTRACE_SETOPTIONS,
        child,
        0,
        libc::PTRACE_O_EXITKILL as u64,
    )?;
    // If memory runs out, it is to go first.
    let _ = fs::write(format!("/proc/{child}/oom_score_adj"), "1000");
    Ok(())
}

/// Why a thread stopped.
enum Stop {
    /// At the beginning or the end of a system call.
    Call,
    /// It made a child.
    Clone,
    /// It was interrupted, or its group stopped.
    Trap,
    Signal(i32),
}

fn wait(tid: i32) -> io::Result<Stop> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the write.
        match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::__WNOTHREAD) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => break,
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(match (libc::WSTOPSIG(status), status >> 16) {
        (_, libc::PTRACE_EVENT_CLONE) => Stop::Clone,
        (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        (signal, 0) => Stop::Signal(signal),
        _ => Stop::Trap,
    })
}

fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
    let at = (&raw const mask) as u64;
    ptrace(PTRACE_SETSIGMASK, tid, size_of::<u64>() as u64, at).map(drop)
}

fn ptrace(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> io::Result<i64> {
    // SAFETY: where the kernel writes to memprof's memory, `data` is the address of a local variable of the caller's that
    // has the size which `addr` says or which belongs to the request.
    match unsafe { libc::ptrace(request, tid, addr, data) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}
