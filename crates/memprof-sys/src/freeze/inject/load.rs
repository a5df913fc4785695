//! Makes a stopped thread of another process load a library.
//!
//! After its first injected call, the thread does the rest by itself and returns to its own code, even if memprof is killed. If
//! memprof lives, it reads the result and restores the thread, so that even the system call in which the thread was blocked is
//! unaffected. If memprof is killed, a wait with a time limit ends early, as if a signal had arrived (`EINTR`).

use std::io;
use std::time::{Duration, Instant};

use super::ptrace::{Stop, Waiting, ptrace, set_mask, write};
use super::remote_mapping::RemoteMapping;
use super::sigreturn::WayBack;
use super::{Call, Injector, NT_X86_XSTATE, SYSCALL, Stopped, settle, sleeps, unsafe_states};
use crate::freeze::registers::{self, NO_CALL, word};
use crate::freeze::watchdog::Watchdog;

/// Bits of EFLAGS that functions expect to be clear: TF (single step), DF (direction), AC (alignment check).
const CLEAR: u64 = 1 << 8 | 1 << 10 | 1 << 18;
/// Signals for faults of the thread itself: their mask stays unchanged.
const OWN_FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// Time for a thread to stop when memprof gives up.
const STOP: Duration = Duration::from_secs(1);

/// Functions of a process's C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Functions {
    /// `__errno_location`.
    pub errno: u64,
    /// `dlopen` or a function with the same arguments, and the second argument.
    pub load: u64,
    /// The flags for `dlopen`.
    pub flags: u32,
    /// `dlerror`; 0 if there is none.
    pub error: u64,
}

/// The library to load, and how.
#[derive(Debug)]
pub struct Loading<'a> {
    /// The functions that the thread calls.
    pub functions: Functions,
    /// The contents of the library's file.
    pub library: &'a [u8],
    /// Time for the loader before memprof releases the thread.
    pub patience: Duration,
}

/// The result of loading a library.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// The loader's result: `struct link_map *`.
    pub handle: u64,
    /// A signal that stopped the thread meanwhile and must be passed on; 0 for none.
    pub signal: i32,
}

/// The reason why nothing was loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The thread is in a state in which this is unsafe. The thread is unchanged.
    Refused(String),
    /// An attempt failed. The thread is unchanged.
    Failed(String),
    /// The loader takes longer than memprof waits. The thread returns to its own code by itself.
    Waits,
    /// The thread is blocked in a call before the loader's. It returns to its own code by itself, and loads nothing.
    Blocked,
}

fn failed(tid: i32, e: &io::Error) -> LoadError {
    match e.kind() {
        io::ErrorKind::TimedOut => LoadError::Blocked,
        _ => LoadError::Failed(format!("thread {tid}: {e}")),
    }
}

/// A thread that is ready to load a library.
struct Ready {
    thread: Stopped,
    room: RemoteMapping,
    /// The signal frames that the first call returns to, unless memprof makes the thread continue with the stub.
    way_back: WayBack,
    /// The stack pointer for the stub's last call, at the signal frame with the thread's own state.
    back: u64,
    /// The original bytes below the thread's stack.
    before: Vec<u8>,
    /// Whether memprof sleeps in place of the thread (`sleeps.rs`).
    sleeps: bool,
}

impl Injector {
    /// Makes a thread load a library. The current thread of memprof must trace the thread, which must be stopped without a signal.
    ///
    /// # Errors
    /// The library was not loaded, or the outcome is not known yet.
    pub(in crate::freeze) fn load(
        &self,
        tid: i32,
        what: &Loading<'_>,
        watchdog: &mut Watchdog,
    ) -> Result<Loaded, LoadError> {
        // The other threads run all the time.
        let mut others = |_| ();
        let end = Instant::now() + what.patience;
        let waiting = &mut Waiting::new(end, watchdog, &mut others);
        let ready = self.ready(tid, what).map_err(LoadError::Refused)?;
        let failed = |e| failed(tid, &e);
        let below = ready.way_back.at;
        let done = match write(tid, below, &ready.way_back.bytes) {
            Ok(()) => ready.load(self, what, waiting),
            Err(e) => Err(failed(e)),
        };
        if matches!(done, Err(LoadError::Waits | LoadError::Blocked)) {
            return done;
        }
        let thread = &ready.thread;
        let restored = set_mask(tid, thread.mask)
            .and_then(|()| registers::write_bytes(tid, NT_X86_XSTATE, &thread.xstate))
            .and_then(|()| registers::write(tid, &thread.regs));
        let _ = ptrace(libc::PTRACE_SETOPTIONS, tid, 0, 0);
        restored.map_err(failed)?;
        let _ = write(tid, below, &ready.before);
        done
    }

    fn ready(&self, tid: i32, what: &Loading<'_>) -> Result<Ready, String> {
        let thread = Stopped::look(tid)?;
        let filters = unsafe_states::check(&thread, self)?;
        let room = RemoteMapping::choose(tid, what.library.len())?;
        let mut way_back = WayBack::for_thread(&thread, self)?;
        let back = way_back.frame;
        way_back.lead_by(thread.frame_for(self, &room.munmap(), back));
        let calls = calls(&room, what);
        unsafe_states::check_calls(&filters, &thread, self, calls.iter(), &way_back)?;
        let before = self.read(way_back.at, way_back.bytes.len());
        let before = before.map_err(|e| format!("below the stack of thread {tid}: {e}"))?;
        Ok(Ready {
            sleeps: sleeps::are_taken_over(&thread, &filters),
            thread,
            room,
            way_back,
            back,
            before,
        })
    }
}

/// The calls that the thread makes, including the loader's, with the arguments that can be known.
fn calls(room: &RemoteMapping, what: &Loading<'_>) -> Vec<Call> {
    /// A descriptor number that may be open.
    const FILE: u64 = 3;
    let call = |number, args| Call { number, args };
    let bytes = what.library.len() as u64;
    let (private, fixed) = (libc::MAP_PRIVATE as u64, libc::MAP_FIXED as u64);
    let at_cwd = i64::from(libc::AT_FDCWD).cast_unsigned();
    let (cloexec, empty_path) = (libc::O_CLOEXEC as u64, libc::AT_EMPTY_PATH as u64);
    let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let read_exec = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let (mapped, code) = (
        [0, bytes, read_write, private],
        [0, bytes, read_exec, private | fixed],
    );
    let of_file =
        |[at, bytes, protection, flags]: [u64; 4]| [at, bytes, protection, flags, FILE, 0];
    vec![
        room.mmap(),
        room.mprotect(),
        call(libc::SYS_memfd_create, [0, 9, 0, 0, 0, 0]),
        call(libc::SYS_write, [FILE, 0, bytes, 0, 0, 0]),
        call(libc::SYS_openat, [at_cwd, 0, cloexec, 0, 0, 0]),
        call(libc::SYS_read, [FILE, 0, 832, 0, 0, 0]),
        call(libc::SYS_pread64, [FILE, 0, 784, 64, 0, 0]),
        call(libc::SYS_futex, [0, libc::FUTEX_WAIT as u64, 2, 0, 0, 0]),
        call(libc::SYS_newfstatat, [FILE, 0, 0, empty_path, 0, 0]),
        call(libc::SYS_mmap, of_file(mapped)),
        call(libc::SYS_mmap, of_file(code)),
        call(libc::SYS_close, [FILE, 0, 0, 0, 0, 0]),
        room.munmap(),
    ]
}

impl Ready {
    fn load(
        &self,
        injector: &Injector,
        what: &Loading<'_>,
        waiting: &mut Waiting<'_>,
    ) -> Result<Loaded, LoadError> {
        let (tid, room) = (self.thread.tid, &self.room);
        let failed = |e| failed(tid, &e);
        let mmap = room.mmap();
        let mapped = self.thread.enter(injector, &mmap, &self.way_back, waiting);
        let mapped = mapped.map_err(failed)?.value;
        if mapped != room.at.cast_signed() {
            settle(tid, 0, waiting).map_err(failed)?;
            let error = io::Error::from_raw_os_error(-(mapped as i32));
            let why = format!("it cannot map memory for code: {error}");
            return Err(LoadError::Failed(why));
        }
        if let Err(e) = self.start(injector, what, waiting) {
            if e.kind() != io::ErrorKind::TimedOut {
                // The thread is still stopped at the exit of a call.
                let munmap = room.munmap();
                let removed = self
                    .thread
                    .enter(injector, &munmap, &self.way_back, waiting);
                let removed = removed.and_then(|_| settle(tid, 0, waiting));
                removed.map_err(failed)?;
            }
            return Err(failed(e));
        }
        self.await_end(injector, room, waiting)
    }

    /// Writes the stub and its data, and makes the thread continue with the stub.
    fn start(
        &self,
        injector: &Injector,
        what: &Loading<'_>,
        waiting: &mut Waiting<'_>,
    ) -> io::Result<()> {
        let thread = &self.thread;
        let mprotect = self.room.mprotect();
        let protected = thread.enter(injector, &mprotect, &self.way_back, waiting)?;
        if protected.value != 0 {
            return Err(io::Error::from_raw_os_error(-(protected.value as i32)));
        }
        self.room.fill(thread.tid, injector.call, self.back, what)?;
        let faults = OWN_FAULTS.iter();
        let faults = faults.fold(0, |all, signal| all | 1_u64 << (signal - 1));
        let mut regs = thread.regs.clone();
        regs[word::RIP] = self.room.at;
        regs[word::RBX] = self.room.data();
        regs[word::RSP] = self.room.stack();
        regs[word::ORIG_RAX] = NO_CALL;
        regs[word::EFLAGS] &= !CLEAR;
        set_mask(thread.tid, !faults | thread.mask)?;
        registers::write(thread.tid, &regs)
    }

    /// Follows the thread until its last call is done.
    fn await_end(
        &self,
        injector: &Injector,
        room: &RemoteMapping,
        waiting: &mut Waiting<'_>,
    ) -> Result<Loaded, LoadError> {
        let tid = self.thread.tid;
        let failed = |e| failed(tid, &e);
        let (mut is_in_call, mut signal, mut ended) = (false, 0_i32, None);
        loop {
            let pass = u64::from(signal.cast_unsigned());
            ptrace(libc::PTRACE_SYSCALL, tid, 0, pass).map_err(failed)?;
            signal = 0;
            match waiting.before_end(tid).map_err(failed)? {
                None => {
                    // A thread can be released only when it is stopped. The loader's own system call is restarted.
                    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(failed)?;
                    let _ = waiting.wait_until(tid, Instant::now() + STOP);
                    return Err(LoadError::Waits);
                }
                Some(Stop::Call) if is_in_call => {
                    is_in_call = false;
                    if ended.is_some() {
                        break;
                    }
                }
                Some(Stop::Call) => {
                    is_in_call = true;
                    let regs = registers::set(tid, libc::NT_PRSTATUS);
                    let regs = regs.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
                    let is_last = regs[word::ORIG_RAX] == libc::SYS_munmap.cast_unsigned()
                        && regs[word::RIP] == injector.call + SYSCALL
                        && regs[word::RDI] == room.at;
                    if is_last {
                        ended = Some(room.result(injector));
                    } else if self.sleeps {
                        sleeps::take_over(injector, tid, &regs, waiting);
                    }
                }
                Some(Stop::Signal(came)) => signal = came,
                Some(Stop::Trap | Stop::Clone) => {}
            }
        }
        let signal = settle(tid, 0, waiting).map_err(failed)?;
        let handle = ended.unwrap_or_else(|| Err("it did not end".to_owned()));
        let handle = handle.map_err(LoadError::Failed)?;
        Ok(Loaded { handle, signal })
    }
}
