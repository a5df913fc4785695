//! `memprof fork-guard`: stops processes for memprof, makes copy-on-write children of them, and cleans up after them.
//!
//! This is a process of its own because it must outlive memprof and must run when memprof does not: if memprof is stopped, the
//! guard keeps the deadline; if memprof is killed, its end of the pipe closes, and the guard lets go of what is stopped, and kills and
//! reaps the child. And memprof's threads may start no program once they have given up their privileges, so it is started before.
//!
//! It forks a process, the holder, that traces others. When the holder ends, in whatever way, the kernel lets go of
//! what it traced, and there is a new one. A timer of the kernel (`watchdog.rs`) kills it if it makes no progress while it holds others.

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
use crate::privileges::{self, Role};

/// The name of its processes, as the kernel shows it.
pub(super) const NAME: &CStr = c"memprof-guard";
/// How long a holder may take to clean up once memprof is gone.
const LAST: Duration = Duration::from_secs(30);

/// Does what is asked on stdin, and answers on stdout, until stdin is closed. Nothing is stopped then, and the last child is gone.
///
/// # Errors
/// Nobody reads what it says; the same holds.
pub fn run() -> io::Result<()> {
    let owner = Pid(getppid().as_raw().cast_unsigned());
    let _ = nix::sys::prctl::set_name(NAME);
    // What stops or ends memprof is not to stop the guard, nor to end it before it has cleaned up.
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
    // A process is stopped until the guard has gone on.
    raise_priority();
    raise_priority_of_session();
    privileges::reduce(Role::Guard);
    loop {
        // Those that reap what earlier ones have left.
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

/// Waits until memprof asks for something, or is gone.
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

/// Does what memprof asks, as the holder.
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
            // What this is about is over: memprof asked before it knew.
            Ok(Asked::More { .. } | Asked::Release | Asked::End) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(End::Memprof),
            Err(e) => return Err(e),
        }
    }
}

/// Has a process of its own reap what a holder has left.
fn reap_later(pid: Pid, begun: u64) {
    // SAFETY: this process has one thread, so that no lock is held by another.
    if let Ok(ForkResult::Child) = unsafe { fork() } {
        reap::later(pid, begun);
        process::exit(0);
    }
}

/// Why a holder was killed.
const LOST: &str = "memprof's guard made no progress while it held the process, because it was stopped, frozen or blocked in the \
                    kernel, or had no processor; the kernel has let the process go";

/// Why a holder ended; its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Memprof is gone.
    Memprof = 0,
    /// The kernel is to let go of what it could not.
    Holder = 3,
    /// The same, and a child is still to be reaped.
    Child = 4,
    /// It was killed.
    Killed,
}

/// Runs something in a process of its own, and waits for that. If memprof is gone, it is killed after a while. Returns how it ended, and
/// the process that it noted.
fn apart(work: impl FnOnce(&mut File) -> io::Result<End>) -> io::Result<(End, Option<Pid>)> {
    let (notes, note) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: as above.
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

/// Waits until the pipe is closed, or kills the process if memprof is gone and that takes too long.
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

/// Memprof, as the guard sees it: stdin and stdout, without buffers, which processes would share.
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
