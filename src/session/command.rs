//! Starting a command so that it is followed from its first page on, and scanned at its very end.
//!
//! The child waits before `exec` until it is followed. Its first thread is traced for these stops: after `exec`,
//! until the unwind tables of the program and its libraries are built, and on its way out, while its memory is
//! still there. Signals pass through unchanged. Nothing is changed in the command for that: should memprof die,
//! the kernel lets it go, and it runs on. Where tracing is refused the first stacks may be cut short, and the last
//! regular scan is the final profile.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid as NixPid, fork};
use tokio::sync::oneshot;

use crate::event::Pid;

/// How a command ended, as a shell would say it: its exit status, or 128 plus the signal.
pub type ExitStatus = u8;

/// A command that waits to be let go.
pub struct Prepared {
    /// The process it will run in.
    pub pid: Pid,
    /// Lets it go.
    release: SyncSender<()>,
    /// How it ended, or why it could not be started.
    pub ended: oneshot::Receiver<Result<ExitStatus>>,
}

impl Prepared {
    /// Lets the command start.
    pub fn release(&self) {
        // A thread that is gone has said why through `ended`.
        let _ = self.release.send(());
    }
}

/// Where the command stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After `exec`: its program and the dynamic loader are in place, and have not run yet.
    Exec,
    /// At its end, with its memory still in place.
    Exit,
}

/// Forks a process for the command, which waits. `at_stop` is called, on another thread, while the
/// command is stopped. A `quiet` command has `/dev/null` for its standard streams.
///
/// # Errors
/// The command line holds a NUL byte, or no process or thread could be made.
pub fn prepare(
    argv: &[String],
    quiet: bool,
    at_stop: impl FnMut(Pid, Stop) + Send + 'static,
) -> Result<Prepared> {
    let name = argv.first().context("no command was given")?.clone();
    let argv: Vec<CString> = argv
        .iter()
        .map(|arg| CString::new(arg.as_bytes()).context("an argument holds a NUL byte"))
        .collect::<Result<_>>()?;
    let (pid_to, pid_from) = sync_channel(1);
    let (release, released) = sync_channel(1);
    let (done, ended) = oneshot::channel();
    // One thread forks, traces and waits: the kernel ties a tracee to the thread that traces it.
    thread::Builder::new()
        .name("memprof-command".into())
        .spawn(move || {
            let _ = done.send(live(&name, &argv, quiet, &pid_to, &released, at_stop));
        })?;
    match pid_from.recv() {
        Ok(pid) => Ok(Prepared {
            pid,
            release,
            ended,
        }),
        Err(_) => match ended.blocking_recv() {
            Ok(Err(e)) => Err(e),
            _ => bail!("no process could be made for the command"),
        },
    }
}

fn live(
    name: &str,
    argv: &[CString],
    quiet: bool,
    pid_to: &SyncSender<Pid>,
    released: &Receiver<()>,
    at_stop: impl FnMut(Pid, Stop),
) -> Result<ExitStatus> {
    let (go_read, mut go_write) = io::pipe()?;
    let (mut failed_read, failed_write) = io::pipe()?;
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: the child calls nothing but async-signal-safe functions until it execs or exits.
    let child = match unsafe { fork() }.context("cannot fork")? {
        ForkResult::Child => exec_when_told(
            &pointers,
            quiet,
            &go_read,
            &failed_write,
            go_write.as_raw_fd(),
        ),
        ForkResult::Parent { child } => child,
    };
    drop((go_read, failed_write));
    let _ = pid_to.send(Pid(child.as_raw() as u32));
    if released.recv().is_err() {
        // Nobody wants it any more: the closed pipe ends it.
        drop(go_write);
        let _ = waitpid(child, None);
        bail!("the command was not started");
    }
    let stops = ptrace::Options::PTRACE_O_TRACEEXEC | ptrace::Options::PTRACE_O_TRACEEXIT;
    let traced = ptrace::seize(child, stops).is_ok();
    let _ = go_write.write_all(&[1]);
    // Not read before it has ended: a signal may stop it on its way to `exec`, and it is for us to let
    // it go on.
    let status = wait_for_end(child, traced, at_stop)?;
    let mut errno = [0; 4];
    if failed_read.read_exact(&mut errno).is_ok() {
        let e = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
        return Err(e).with_context(|| format!("cannot run `{name}`"));
    }
    Ok(status)
}

/// The child's part.
fn exec_when_told(
    argv: &[*const libc::c_char],
    quiet: bool,
    go: &io::PipeReader,
    failed: &io::PipeWriter,
    go_write: i32,
) -> ! {
    // SAFETY: only async-signal-safe calls, on descriptors and pointers made before the fork; `argv`
    // ends with a null pointer and its strings live in the copied memory.
    unsafe {
        // Else the read below would never see the end of the pipe when memprof dies.
        libc::close(go_write);
        // Should memprof die while it holds the command still for a report, the command goes on.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
        crate::priority::restore();
        // Rust ignores SIGPIPE; programs expect it not to be.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut byte = 0u8;
        let told = libc::read(go.as_raw_fd(), (&raw mut byte).cast(), 1);
        if told == 1 {
            if quiet {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                (0..3).for_each(|stream| {
                    libc::dup2(null, stream);
                });
            }
            libc::execvp(argv[0], argv.as_ptr());
            let errno = Errno::last_raw().to_ne_bytes();
            libc::write(failed.as_raw_fd(), errno.as_ptr().cast(), errno.len());
        }
        libc::_exit(127)
    }
}

/// Waits until the child has ended, passing its signals on.
fn wait_for_end(
    child: NixPid,
    traced: bool,
    mut at_stop: impl FnMut(Pid, Stop),
) -> Result<ExitStatus> {
    let pid = Pid(child.as_raw() as u32);
    loop {
        let status = match waitpid(child, Some(WaitPidFlag::__WALL)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e).context("cannot wait for the command"),
        };
        match status {
            WaitStatus::Exited(_, code) => return Ok(code as u8),
            WaitStatus::Signaled(_, signal, _) => return Ok(128 + signal as i32 as u8),
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                at_stop(pid, Stop::Exec);
                let _ = ptrace::cont(child, None);
            }
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT) => {
                at_stop(pid, Stop::Exit);
                let _ = ptrace::cont(child, None);
            }
            WaitStatus::PtraceEvent(_, signal, libc::PTRACE_EVENT_STOP) => {
                stay_stopped(child, signal)
            }
            WaitStatus::PtraceEvent(..) => {
                let _ = ptrace::cont(child, None);
            }
            WaitStatus::Stopped(_, signal) if traced => {
                let _ = ptrace::cont(child, signal);
            }
            _ => {}
        }
    }
}

/// A stop by SIGSTOP, SIGTSTP, … is a stop: the tracee stays so until SIGCONT.
fn stay_stopped(child: NixPid, signal: Signal) {
    let stops = [
        Signal::SIGSTOP,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
    ];
    if stops.contains(&signal) {
        // SAFETY: PTRACE_LISTEN takes no address and no data.
        unsafe { libc::ptrace(libc::PTRACE_LISTEN, child.as_raw(), 0, 0) };
    } else {
        let _ = ptrace::cont(child, None);
    }
}
