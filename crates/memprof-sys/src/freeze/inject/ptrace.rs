//! Controls a traced thread with ptrace.

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

/// Additional time to wait for a call, once the other threads of the process run.
const LONGEST: Duration = Duration::from_secs(5);
/// Interval at which the watchdog is reset while waiting.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for a new child, and makes the kernel kill it when the current thread of memprof exits.
pub(super) fn adopt(child: i32) -> io::Result<()> {
    wait_until(child, Instant::now() + LOOK)?;
    ptrace(
        libc::PTRACE_SETOPTIONS,
        child,
        0,
        libc::PTRACE_O_EXITKILL as u64,
    )?;
    // The child is the first choice of the OOM killer. The file belongs to the user of the process.
    let file = format!("/proc/{child}/oom_score_adj");
    let _ = privileges::writing_files(|| fs::write(file, "1000"));
    Ok(())
}

/// The reason why a thread stopped.
pub(super) enum Stop {
    /// Entry or exit of a system call.
    Call,
    /// The thread made a child.
    Clone,
    /// The thread was interrupted, or its thread group stopped.
    Trap,
    Signal(i32),
}

/// The time limit for a thread that makes a call.
pub(in crate::freeze) struct Waiting<'a> {
    end: Instant,
    watchdog: &'a mut Watchdog,
    /// Releases the other threads.
    others: &'a mut dyn FnMut(i32),
    /// Whether the other threads were released.
    pub(super) late: bool,
}

impl<'a> Waiting<'a> {
    /// Waits until `end`, and for [`LONGEST`] more once the other threads run, because the call may be waiting for them.
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

    /// Waits for a thread to stop.
    ///
    /// # Errors
    /// The thread has ended, or does not stop (`TimedOut`).
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

    /// Waits for a thread until `end`, without releasing the others; `None` if it has not stopped.
    pub(super) fn before_end(&mut self, tid: i32) -> io::Result<Option<Stop>> {
        self.wait_until(tid, self.end)
    }

    /// Sleeps for `time` if that is over before `end`. Otherwise returns false at once.
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

/// Waits for a thread until `end`; `None` if it has not stopped.
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

/// Writes at least 8 bytes to the memory of a stopped thread's process.
///
/// This does not write to `/proc/PID/mem`: only the process's user may open that for writing, other users need CAP_DAC_OVERRIDE.
/// The guard has dropped that capability, and memprof without root lacks it.
pub(in crate::freeze) fn write(tid: i32, at: u64, bytes: &[u8]) -> io::Result<()> {
    let to = RemoteIoVec {
        base: at as usize,
        len: bytes.len(),
    };
    let written = process_vm_writev(Pid::from_raw(tid), &[IoSlice::new(bytes)], &[to]);
    if written == Ok(bytes.len()) {
        return Ok(());
    }
    // The process itself may not write there, as to its code or to a stack that has not grown yet. Writing through ptrace takes
    // about 1 us for each word.
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
    // SAFETY: where the kernel writes to memprof's memory, `data` points to memory of the caller with the size that `addr` gives or
    // that the request implies.
    match unsafe { libc::ptrace(request, tid, addr, data) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}
