//! Control of a traced thread.

use std::fs;
use std::io::{self, IoSlice};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use crate::freeze::threads;
use crate::freeze::watchdog::Watchdog;
use crate::privileges;

const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;

/// How much longer than its limit a call is waited for, once the other threads of the process run.
const LONGEST: Duration = Duration::from_secs(5);
/// Time between two signs of life meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for a new child, and has the kernel kill it when the current thread of memprof ends.
pub(super) fn adopt(child: i32) -> io::Result<()> {
    wait_until(child, Instant::now() + LOOK)?;
    ptrace(
        libc::PTRACE_SETOPTIONS,
        child,
        0,
        libc::PTRACE_O_EXITKILL as u64,
    )?;
    // If memory runs out, it is to go first. The file belongs to the user of the process.
    let file = format!("/proc/{child}/oom_score_adj");
    let _ = privileges::writing_files(|| fs::write(file, "1000"));
    Ok(())
}

/// Why a thread stopped.
pub(super) enum Stop {
    /// At the beginning or the end of a system call.
    Call,
    /// It made a child.
    Clone,
    /// It was interrupted, or its group stopped.
    Trap,
    Signal(i32),
}

/// How long is waited for a thread that makes a call.
pub(in crate::freeze) struct Waiting<'a> {
    end: Instant,
    watchdog: &'a mut Watchdog,
    /// Lets the other threads run.
    others: &'a mut dyn FnMut(i32),
    /// Whether they do.
    pub(super) late: bool,
}

impl<'a> Waiting<'a> {
    /// Until `end`, and longer once the other threads run, which the call may be waiting for.
    pub(in crate::freeze) fn new(
        end: Instant,
        watchdog: &'a mut Watchdog,
        others: &'a mut dyn FnMut(i32),
    ) -> Waiting<'a> {
        Waiting {
            end,
            watchdog,
            others,
            late: false,
        }
    }

    /// Waits for a thread.
    ///
    /// # Errors
    /// It has ended, or does not stop (`TimedOut`).
    pub(super) fn wait(&mut self, tid: i32) -> io::Result<Stop> {
        if !self.late {
            if let Some(stop) = self.wait_until(tid, self.end)? {
                return Ok(stop);
            }
            self.late = true;
            (self.others)(tid);
        }
        let stop = self.wait_until(tid, self.end + LONGEST)?;
        stop.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    /// Waits for a thread as long as agreed; `None` if it has not stopped.
    pub(super) fn before_end(&mut self, tid: i32) -> io::Result<Option<Stop>> {
        self.wait_until(tid, self.end)
    }

    /// Waits for a time that is over before the end; otherwise not at all. Returns whether it has.
    pub(super) fn pause(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        if until >= self.end {
            return false;
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.watchdog.set(LOOK);
            thread::sleep(left.min(LOOK));
        }
    }

    /// Waits for a thread until `end`; `None` if it has not stopped.
    pub(super) fn wait_until(&mut self, tid: i32, end: Instant) -> io::Result<Option<Stop>> {
        loop {
            self.watchdog.set(LOOK);
            let until = end.min(Instant::now() + LOOK);
            let stop = wait_until(tid, until)?;
            if stop.is_some() || until == end {
                return Ok(stop);
            }
        }
    }
}

/// Waits for a thread until this time; `None` if it has not stopped.
fn wait_until(tid: i32, end: Instant) -> io::Result<Option<Stop>> {
    let begun = Instant::now();
    loop {
        if let Some(stop) = waited(tid, libc::WNOHANG)? {
            return Ok(Some(stop));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        threads::pause(begun);
    }
}

fn waited(tid: i32, more: libc::c_int) -> io::Result<Option<Stop>> {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | more;
    loop {
        // SAFETY: `status` is valid for the write.
        match unsafe { libc::waitpid(tid, &raw mut status, flags) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            0 => return Ok(None),
            _ => break,
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(Some(match (libc::WSTOPSIG(status), status >> 16) {
        (_, libc::PTRACE_EVENT_CLONE) => Stop::Clone,
        (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        (signal, 0) => Stop::Signal(signal),
        _ => Stop::Trap,
    }))
}

pub(super) fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
    let at = (&raw const mask) as u64;
    ptrace(PTRACE_SETSIGMASK, tid, size_of::<u64>() as u64, at).map(drop)
}

/// Writes at least a word to the memory of a stopped thread's process.
///
/// Not by `/proc/PID/mem`: its user alone may open that for writing, others only with CAP_DAC_OVERRIDE. The guard has given that up,
/// and a memprof without root lacks it.
pub(super) fn write(tid: i32, at: u64, bytes: &[u8]) -> io::Result<()> {
    let to = RemoteIoVec {
        base: at as usize,
        len: bytes.len(),
    };
    let written = process_vm_writev(Pid::from_raw(tid), &[IoSlice::new(bytes)], &[to]);
    if written == Ok(bytes.len()) {
        return Ok(());
    }
    // What the process itself may not write, as its code, or a stack that has yet to grow. This takes about 1 us for each word.
    const WORD: usize = size_of::<u64>();
    let last = bytes.len().checked_sub(WORD);
    let last = last.ok_or(io::ErrorKind::InvalidInput)?;
    for from in (0..last).step_by(WORD).chain([last]) {
        let word = bytes[from..].first_chunk().copied().unwrap_or_default();
        ptrace(
            libc::PTRACE_POKEDATA,
            tid,
            at + from as u64,
            u64::from_ne_bytes(word),
        )?;
    }
    Ok(())
}

pub(super) fn ptrace(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> io::Result<i64> {
    // SAFETY: where the kernel writes to memprof's memory, `data` is the address of memory of the caller's that has the
    // size which `addr` says or which belongs to the request.
    match unsafe { libc::ptrace(request, tid, addr, data) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}
