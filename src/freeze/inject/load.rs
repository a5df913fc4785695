//! Has a stopped thread of another process load a library.
//!
//! Once it is started, the thread does the rest by itself and goes back to where it was, also if memprof is killed. If
//! memprof lives, it looks at what became of it, and restores the thread such that even the system call in which it waited
//! notices nothing. That differs otherwise: a wait with a time limit ends early then, as if a signal had come (`EINTR`).

use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::control::{Stop, ptrace, set_mask, wait_until};
use super::stub::{Job, PREFIX, code};
use super::way_back::{WayBack, signal_frame};
use super::{ALL_BLOCKED, Call, Injector, NT_X86_XSTATE, SYSCALL, Stopped, harm, settle};
use crate::freeze::registers::{self, NO_CALL, word};

/// Room for the loader's stack, in bytes: it needs less than 16 KiB.
const STACK: u64 = 128 << 10;
/// Room for the code, in bytes: a page on every x86-64.
const CODE: u64 = 4096;
/// Where the parts of the data are, in bytes.
const NAME_AT: u64 = 512;
const PREFIX_AT: u64 = 1024;
const PATH_END_AT: u64 = 2047;
const LIBRARY_AT: u64 = 4096;
/// The name of the library in `/proc/PID/maps`, after `/memfd:`.
const NAME: &[u8] = b"libmemprof_heap.so\0";
/// Flags of the processor that functions expect to be clear: a single step, the direction, checks of alignment.
const CLEAR: u64 = 1 << 8 | 1 << 10 | 1 << 18;
/// Signals that tell a thread what it has done itself: they stay as they are.
const OWN_FAULTS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// Maximum length of a message of the loader.
const MOST_TEXT: usize = 512;
/// How long a thread may take to stop when memprof gives up.
const STOP: Duration = Duration::from_secs(1);

/// Functions of a process's C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Functions {
    /// `__errno_location`.
    pub errno: u64,
    /// `dlopen`, or one that takes the same arguments, and its second argument.
    pub load: u64,
    pub flags: u32,
    /// `dlerror`; 0: none.
    pub error: u64,
}

/// What is to be loaded.
#[derive(Debug)]
pub(crate) struct Loading<'a> {
    pub functions: Functions,
    /// The library's file.
    pub library: &'a [u8],
    /// How long the loader may take before memprof lets the thread go.
    pub patience: Duration,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    /// What the loader returned: `struct link_map *`.
    pub handle: u64,
    /// A signal that stopped the thread meanwhile and is to be passed on; 0 for none.
    pub signal: i32,
}

/// Why nothing was loaded.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// The thread is at a place, or in a state, where this would do harm. It is as it was.
    Refused(String),
    /// It did not work. The thread is as it was.
    Failed(String),
    /// The loader takes longer than memprof waits. The thread goes back by itself.
    Waits,
}

impl Injector {
    /// Has a thread, which the current thread of memprof traces and which is stopped without a signal, load a library.
    ///
    /// # Errors
    /// It was not loaded, or that is not known yet.
    pub(in crate::freeze) fn load(
        &self,
        tid: i32,
        what: &Loading<'_>,
    ) -> Result<Loaded, LoadError> {
        let ready = self.ready(tid, what);
        let (thread, way_back, before) = ready.map_err(LoadError::Refused)?;
        let failed = |e: io::Error| LoadError::Failed(format!("thread {tid}: {e}"));
        let written = self.mem.write_all_at(&way_back.bytes, way_back.at);
        let done = match written {
            Ok(()) => thread.load(self, &way_back, what),
            Err(e) => Err(failed(e)),
        };
        if matches!(done, Err(LoadError::Waits)) {
            return done;
        }
        let restored = set_mask(tid, thread.mask)
            .and_then(|()| registers::write_bytes(tid, NT_X86_XSTATE, &thread.xstate))
            .and_then(|()| registers::write(tid, &thread.regs));
        let _ = ptrace(libc::PTRACE_SETOPTIONS, tid, 0, 0);
        restored.map_err(failed)?;
        let _ = self.mem.write_all_at(&before, way_back.at);
        done
    }

    fn ready(&self, tid: i32, what: &Loading<'_>) -> Result<(Stopped, WayBack, Vec<u8>), String> {
        let thread = Stopped::look(tid)?;
        let filters = harm::check(&thread, self)?;
        let way_back = WayBack::of(&thread, self)?;
        harm::check_calls(&filters, &thread, self, calls(what).iter(), &way_back)?;
        let before = self.read(way_back.at, way_back.bytes.len());
        let before = before.map_err(|e| format!("below the stack of thread {tid}: {e}"))?;
        Ok((thread, way_back, before))
    }
}

/// The size of the memory that the code needs, in bytes.
fn region_bytes(what: &Loading<'_>) -> u64 {
    CODE + data_bytes(what)
}

fn data_bytes(what: &Loading<'_>) -> u64 {
    LIBRARY_AT + (what.library.len() as u64).next_multiple_of(4096) + STACK
}

/// The first call, which makes room for the code.
fn mmap(what: &Loading<'_>) -> Call {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let words = [protection, flags].map(|word| u64::from(word.cast_unsigned()));
    Call {
        number: libc::SYS_mmap,
        args: [
            0,
            region_bytes(what),
            words[0],
            words[1],
            u64::from(u32::MAX),
            0,
        ],
    }
}

/// The calls that the thread makes, the loader's included, as far as their arguments can be known.
fn calls(what: &Loading<'_>) -> Vec<Call> {
    /// A file that may be open.
    const FILE: u64 = 3;
    let call = |number, args| Call { number, args };
    let bytes = what.library.len() as u64;
    let (private, fixed) = (libc::MAP_PRIVATE as u64, libc::MAP_FIXED as u64);
    let at_cwd = i64::from(libc::AT_FDCWD).cast_unsigned();
    let read_write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let read_exec = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    vec![
        mmap(what),
        call(libc::SYS_mprotect, [0, CODE, read_write, 0, 0, 0]),
        call(libc::SYS_memfd_create, [0, 9, 0, 0, 0, 0]),
        call(libc::SYS_write, [FILE, 0, bytes, 0, 0, 0]),
        call(
            libc::SYS_openat,
            [at_cwd, 0, libc::O_CLOEXEC as u64, 0, 0, 0],
        ),
        call(libc::SYS_read, [FILE, 0, 832, 0, 0, 0]),
        call(libc::SYS_pread64, [FILE, 0, 784, 64, 0, 0]),
        call(libc::SYS_futex, [0, libc::FUTEX_WAIT as u64, 2, 0, 0, 0]),
        call(
            libc::SYS_newfstatat,
            [FILE, 0, 0, libc::AT_EMPTY_PATH as u64, 0, 0],
        ),
        call(libc::SYS_mmap, [0, bytes, read_write, private, FILE, 0]),
        call(
            libc::SYS_mmap,
            [0, bytes, read_exec, private | fixed, FILE, 0],
        ),
        call(libc::SYS_close, [FILE, 0, 0, 0, 0, 0]),
        call(libc::SYS_munmap, [0, region_bytes(what), 0, 0, 0, 0]),
    ]
}

impl Stopped {
    fn load(
        &self,
        injector: &Injector,
        way_back: &WayBack,
        what: &Loading<'_>,
    ) -> Result<Loaded, LoadError> {
        let failed = |e: io::Error| LoadError::Failed(format!("thread {}: {e}", self.tid));
        let returned = self
            .enter(injector, &mmap(what), way_back)
            .map_err(failed)?;
        let region = match returned.value {
            error @ -4095..0 => {
                settle(self.tid, 0).map_err(failed)?;
                let error = io::Error::from_raw_os_error(-(error as i32));
                return Err(LoadError::Failed(format!(
                    "it cannot map memory for code: {error}"
                )));
            }
            region => region.cast_unsigned(),
        };
        let job = job(region, injector, way_back, what);
        let started = self
            .remove_later(injector, region, way_back, what)
            .and_then(|()| write(injector, region, &job, what))
            .and_then(|()| self.start(region, what));
        if let Err(e) = started {
            // The thread still stands at the end of the first call.
            self.remove(injector, region, way_back, what)
                .map_err(failed)?;
            return Err(failed(e));
        }
        self.await_end(injector, region, what)
    }

    /// Has it remove the memory on its way back, should memprof be killed from here on.
    fn remove_later(
        &self,
        injector: &Injector,
        region: u64,
        way_back: &WayBack,
        what: &Loading<'_>,
    ) -> io::Result<()> {
        let mut removes = [0; word::SS + 1];
        removes[word::RIP] = injector.call;
        removes[word::RAX] = libc::SYS_munmap.cast_unsigned();
        removes[word::RDI] = region;
        removes[word::RSI] = region_bytes(what);
        removes[word::RSP] = way_back.frame;
        removes[word::CS] = self.regs[word::CS];
        removes[word::SS] = self.regs[word::SS];
        // There is no child, whose frame would be there.
        let frame = signal_frame(injector.sigreturn, &removes, ALL_BLOCKED, 0);
        let frame: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
        injector.mem.write_all_at(&frame, way_back.child_frame)?;
        let mut regs = self.regs.clone();
        // The `ret` behind the call.
        regs[word::RIP] = injector.call + SYSCALL;
        regs[word::RSP] = way_back.child_frame;
        regs[word::ORIG_RAX] = NO_CALL;
        registers::write(self.tid, &regs)
    }

    /// Has it remove the memory again.
    fn remove(
        &self,
        injector: &Injector,
        region: u64,
        way_back: &WayBack,
        what: &Loading<'_>,
    ) -> io::Result<()> {
        let call = Call {
            number: libc::SYS_munmap,
            args: [region, region_bytes(what), 0, 0, 0, 0],
        };
        self.enter(injector, &call, way_back)?;
        settle(self.tid, 0).map(drop)
    }

    /// From here on the thread does everything by itself.
    fn start(&self, region: u64, what: &Loading<'_>) -> io::Result<()> {
        let faults = OWN_FAULTS
            .iter()
            .fold(0, |all, signal| all | 1_u64 << (signal - 1));
        let mut regs = self.regs.clone();
        regs[word::RIP] = region;
        regs[word::RBX] = region + CODE;
        regs[word::RSP] = region + region_bytes(what);
        regs[word::ORIG_RAX] = NO_CALL;
        regs[word::EFLAGS] &= !CLEAR;
        set_mask(self.tid, !faults | self.mask)?;
        registers::write(self.tid, &regs)
    }

    /// Follows the thread until its last call is done.
    fn await_end(
        &self,
        injector: &Injector,
        region: u64,
        what: &Loading<'_>,
    ) -> Result<Loaded, LoadError> {
        let tid = self.tid;
        let failed = |e: io::Error| LoadError::Failed(format!("thread {tid}: {e}"));
        let end = Instant::now() + what.patience;
        let (mut is_in_call, mut signal, mut ended) = (false, 0_i32, None);
        loop {
            let pass = u64::from(signal.cast_unsigned());
            ptrace(libc::PTRACE_SYSCALL, tid, 0, pass).map_err(failed)?;
            signal = 0;
            match wait_until(tid, end).map_err(failed)? {
                None => {
                    // It can be let go only when it is stopped. The loader's own call starts again.
                    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(failed)?;
                    let _ = wait_until(tid, Instant::now() + STOP);
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
                        && regs[word::RDI] == region;
                    if is_last {
                        ended = Some(result(injector, region));
                    }
                }
                Some(Stop::Signal(came)) => signal = came,
                Some(Stop::Trap | Stop::Clone) => {}
            }
        }
        let signal = settle(tid, 0).map_err(failed)?;
        let handle = ended.unwrap_or_else(|| Err("it did not end".to_owned()));
        let handle = handle.map_err(LoadError::Failed)?;
        Ok(Loaded { handle, signal })
    }
}

/// The words of the job.
fn job(
    region: u64,
    injector: &Injector,
    way_back: &WayBack,
    what: &Loading<'_>,
) -> [u64; Job::WORDS] {
    let data = region + CODE;
    let mut job = [0; Job::WORDS];
    let mut set = |word: Job, value: u64| job[word as usize] = value;
    set(Job::Region, region);
    set(Job::RegionBytes, region_bytes(what));
    set(Job::Data, data);
    set(Job::DataBytes, data_bytes(what));
    set(Job::Errno, what.functions.errno);
    set(Job::Load, what.functions.load);
    set(Job::Error, what.functions.error);
    set(Job::Flags, what.functions.flags.into());
    set(Job::Library, data + LIBRARY_AT);
    set(Job::LibraryBytes, what.library.len() as u64);
    set(Job::Name, data + NAME_AT);
    set(Job::PrefixEnd, data + PREFIX_AT + PREFIX.len() as u64);
    set(Job::PathEnd, data + PATH_END_AT);
    set(Job::Call, injector.call);
    set(Job::Back, way_back.frame);
    job
}

fn write(
    injector: &Injector,
    region: u64,
    job: &[u64; Job::WORDS],
    what: &Loading<'_>,
) -> io::Result<()> {
    let data = region + CODE;
    let job: Vec<u8> = job.iter().flat_map(|word| word.to_le_bytes()).collect();
    let parts: [(&[u8], u64); 5] = [
        (code(), region),
        (&job, data),
        (NAME, data + NAME_AT),
        (PREFIX, data + PREFIX_AT),
        (what.library, data + LIBRARY_AT),
    ];
    parts
        .iter()
        .try_for_each(|(bytes, at)| injector.mem.write_all_at(bytes, *at))
}

/// What the thread's job says before its memory is removed: the handle of the library, or why there is none.
fn result(injector: &Injector, region: u64) -> Result<u64, String> {
    let bytes = injector.read(region + CODE, Job::WORDS * 8);
    let bytes = bytes.map_err(|e| e.to_string())?;
    let (words, _) = bytes.as_chunks::<8>();
    let word = |word: Job| u64::from_le_bytes(words[word as usize]);
    let error = |result: u64| io::Error::from_raw_os_error(-(result.cast_signed() as i32));
    let (file, written, handle) = (word(Job::File), word(Job::Written), word(Job::Handle));
    match () {
        () if handle != 0 => Ok(handle),
        () if file == 0 => Err("its memory cannot be made writable".to_owned()),
        () if file.cast_signed() < 0 => {
            Err(format!("it cannot make a file in memory: {}", error(file)))
        }
        () if written.cast_signed() < 0 => Err(format!(
            "it cannot write the library to memory: {}",
            error(written)
        )),
        () if written != word(Job::LibraryBytes) => {
            Err("there is no room for the library in memory".to_owned())
        }
        () => Err(message(injector, word(Job::Text))),
    }
}

/// The loader's message.
fn message(injector: &Injector, at: u64) -> String {
    let mut text = [0; MOST_TEXT];
    let read = match at {
        0 => 0,
        at => injector.mem.read_at(&mut text, at).unwrap_or(0),
    };
    let end = text[..read]
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(read);
    match &text[..end] {
        [] => "its loader does not say why".to_owned(),
        text => format!("its loader says: {}", String::from_utf8_lossy(text)),
    }
}
