//! `memprof fork-guard`: stops processes for memprof, makes copy-on-write children of them, and cleans up after them.
//!
//! The guard is a separate process because it must outlive memprof and must run when memprof does not. If memprof is stopped, the
//! guard keeps the deadline. If memprof is killed, its end of the pipe closes, and the guard releases the stopped processes, and
//! kills and reaps the child. The guard is started early, because memprof's threads may not start programs after they have reduced
//! their privileges.
//!
//! The guard forks a process, the holder, that traces other processes. When the holder exits, for whatever reason, the kernel
//! releases its tracees, and the guard forks a new holder. A kernel timer (`watchdog.rs`) kills a holder that makes no progress
//! while it holds processes.

mod child;
mod holder;
pub(super) mod message;
mod reap;
mod userfaults;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid as NixPid, fork, getppid, pipe2, setsid};

use self::message::{Asked, Said, receive, send};
use super::freezer::{raise_priority, raise_priority_of_session};
use super::watchdog::Watchdog;
use crate::ids::Pid;
use crate::privileges::{self, ThreadRole};

/// Name (`comm`) of the guard's processes.
pub(super) const NAME: &CStr = c"memprof-guard";
/// Maximum time for a holder to clean up once memprof is gone.
const LAST: Duration = Duration::from_secs(30);

/// Serves requests on stdin, with replies on stdout, until stdin is closed. By then no process is stopped, and the last child is
/// gone.
///
/// # Errors
/// memprof no longer reads stdout. No process is stopped, and the last child is gone.
pub fn run() -> io::Result<()> {
    let owner = Pid(getppid().as_raw().cast_unsigned());
    let _ = nix::sys::prctl::set_name(NAME);
    // Signals that stop or end memprof must not stop the guard, nor end it before it has cleaned up.
    let _ = setsid();
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // A process is stopped until the guard has continued it.
    raise_priority();
    raise_priority_of_session();
    privileges::reduce(ThreadRole::Guard);
    loop {
        // Reap the processes of `reap_later` that have finished.
        while matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(status) if status.pid().is_some())
        {
        }
        await_request()?;
        let begun = reap::now();
        let (end, forked) = apart(|note| serve(owner, note))?;
        match end {
            End::Memprof => return Ok(()),
            End::Holder => {}
            End::Child | End::Killed => {
                if end == End::Killed {
                    send(&mut Memprof, &Said::Lost(LOST.to_owned()))?;
                }
                if let Some(pid) = forked {
                    reap_later(pid, begun);
                }
            }
        }
    }
}

/// Waits for a request, or for memprof to close its end.
fn await_request() -> io::Result<()> {
    loop {
        match poll(
            &mut [PollFd::new(Memprof.as_fd(), PollFlags::POLLIN)],
            PollTimeout::NONE,
        ) {
            Ok(_) => return Ok(()),
            // No signal has a handler.
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Serves requests, as the holder. Writes the id of a process to fork to `note`.
fn serve(owner: Pid, note: &mut File) -> io::Result<End> {
    loop {
        match receive(&mut Memprof) {
            Ok(Asked::Stop {
                pids,
                max_us,
                registers,
            }) => {
                let max = Duration::from_micros(max_us);
                if !holder::hold(owner, &pids, max, registers)? {
                    return Ok(End::Holder);
                }
            }
            Ok(Asked::Fork { pid, max_us, hold }) => {
                note.write_all(&pid.to_ne_bytes())?;
                let holds_for = hold.then_some(owner);
                return child::hold(Pid(pid), Duration::from_micros(max_us), holds_for);
            }
            // A request about processes that were already released: memprof sent it before it knew.
            Ok(Asked::More { .. } | Asked::Release | Asked::End) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(End::Memprof),
            Err(e) => return Err(e),
        }
    }
}

/// Starts a process that reaps the child that a holder left unreaped.
fn reap_later(pid: Pid, begun: u64) {
    // SAFETY: this process has one thread, so no other thread holds a lock.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        reap::later(pid, begun);
        process::exit(0);
    }
}

/// The message that a holder was killed.
const LOST: &str = "memprof's guard made no progress while it held the process, because it was stopped, frozen or blocked in the \
                    kernel, or had no processor; the kernel has let the process go";

/// The reason why a holder exited, and its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// memprof is gone.
    Memprof = 0,
    /// The kernel is to release threads that the holder could not.
    Holder = 3,
    /// Like `Holder`, and a child remains to be reaped.
    Child = 4,
    /// The holder was killed.
    Killed,
}

/// Forks a process that runs `work`, and waits for its exit. Kills the process if it takes longer than [`LAST`] after memprof is
/// gone. Returns why the process ended, and the process id that it wrote to its `note`.
fn apart(work: impl FnOnce(&mut File) -> io::Result<End>) -> io::Result<(End, Option<Pid>)> {
    let (notes, note) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: this process has one thread, so no other thread holds a lock.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop(notes);
            process::exit(work(&mut note.into()).unwrap_or(End::Memprof) as i32)
        }
        ForkResult::Parent { child } => child,
    };
    drop(note);
    await_end(child, &notes);
    let end = loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => {
                let ends = [End::Holder, End::Child].into_iter();
                break ends
                    .clone()
                    .find(|end| *end as i32 == status)
                    .unwrap_or(End::Memprof);
            }
            Ok(WaitStatus::Signaled(..)) | Err(nix::Error::ECHILD) => break End::Killed,
            _ => {}
        }
    };
    let mut noted = Vec::new();
    File::from(notes).read_to_end(&mut noted)?;
    let pid = noted.first_chunk().map(|pid| Pid(u32::from_ne_bytes(*pid)));
    Ok((end, pid))
}

/// Waits until the pipe is closed. Kills the process if that takes longer than [`LAST`] after memprof is gone.
fn await_end(child: NixPid, notes: &OwnedFd) {
    let mut limit = PollTimeout::NONE;
    loop {
        let stdin = Memprof;
        let mut polled = vec![PollFd::new(notes.as_fd(), PollFlags::empty())];
        if limit.is_none() {
            polled.push(PollFd::new(stdin.as_fd(), PollFlags::empty()));
        }
        match poll(&mut polled, limit) {
            Ok(0) => drop(kill(child, Signal::SIGKILL)),
            Err(nix::Error::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if polled[0].any() != Some(false) {
            return;
        }
        limit = PollTimeout::try_from(LAST).unwrap_or(PollTimeout::MAX);
    }
}

/// The guard's connection to memprof: stdin and stdout, without buffers, because forked processes would share buffered data.
struct Memprof;

impl AsFd for Memprof {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: stdin is never closed.
        unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
    }
}

impl Read for Memprof {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(io::stdin(), bytes)?)
    }
}

impl Write for Memprof {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
