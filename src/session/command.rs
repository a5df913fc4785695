//! Starting a command so that it is followed from its first page on, and scanned at its very end.
//!
//! The child waits before `exec` until it is followed. Its first thread is traced at its start: it stops after
//! `exec`, until the unwind tables of the program and its libraries are there. That is over soon after the last
//! `exec`; then a debugger may have it. At its end it stays a zombie until its memory, which the
//! collector keeps for that ([`Kept`](crate::residency::Kept)), has been scanned. (Where the kernel has no
//! `userfaultfd` for memprof, or children are in that scan, it is traced for as long as it runs, and scanned on its
//! way out.) Nothing is changed in the command: should memprof die, the kernel lets it go, and it runs on. Where
//! tracing is refused the first stacks may be cut short.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid as NixPid, fork};
use tokio::sync::oneshot;

use crate::event::Pid;
use crate::privileges::{self, Role};

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

/// Where the command waits for memprof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After `exec`: its program and the dynamic loader are in place, and have not run yet.
    Exec,
    /// It is about to end, with its memory still in place, or it has ended and is a zombie.
    End,
}

/// How long after its last `exec` the command is no longer traced: scripts that start programs in their own
/// place do so early.
const SETTLED: Duration = Duration::from_secs(1);
/// How often it is looked whether a traced command has stopped. (There is no way to wait for that with a limit.)
const LOOK: Duration = Duration::from_micros(500);
/// The same for its end, while it is stopped for a report: the kernel reports that stop in place of the end.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Forks a process for the command, which waits. `at_stop` is called, on another thread, while the
/// command is stopped; it says whether the command's memory will be there when it has ended. A `quiet`
/// command has `/dev/null` for its standard streams.
///
/// # Errors
/// The command line holds a NUL byte, or no process or thread could be made.
pub fn prepare(
    argv: &[String],
    quiet: bool,
    at_stop: impl FnMut(Pid, Stop) -> bool + Send + 'static,
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
    mut at_stop: impl FnMut(Pid, Stop) -> bool + Send,
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
    privileges::reduce(Role::Command);
    let _ = pid_to.send(Pid(child.as_raw() as u32));
    if released.recv().is_err() {
        // Nobody wants it any more: the closed pipe ends it.
        drop(go_write);
        let _ = waitpid(child, None);
        bail!("the command was not started");
    }
    let pid = Pid(child.as_raw() as u32);
    // By a thread of its own: when that ends, the kernel lets go of the command without stopping it.
    thread::scope(|scope| {
        let tracer = thread::Builder::new().name("memprof-tracer".into());
        let trace = || {
            let stops = ptrace::Options::PTRACE_O_TRACEEXEC | ptrace::Options::PTRACE_O_TRACEEXIT;
            let traced = ptrace::seize(child, stops).is_ok();
            let _ = go_write.write_all(&[1]);
            if traced {
                hold_at_stops(child, |stop| at_stop(pid, stop));
            }
        };
        tracer.spawn_scoped(scope, trace).map(drop)
    })?;
    let status = wait_for_end(child)?;
    at_stop(pid, Stop::End);
    let _ = waitpid(child, None);
    // Not read before it has ended: a signal may stop it on its way to `exec`.
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

/// What a child does, as `waitid` says it.
struct Change {
    /// `CLD_EXITED`, `CLD_TRAPPED`, …
    code: i32,
    /// Its exit status, or a signal; of a trap with what stopped it in the bits above.
    status: i32,
}

impl Change {
    /// `None` if nothing has happened to the child.
    fn of(child: NixPid, options: i32) -> io::Result<Option<Change>> {
        let id = child.as_raw() as libc::id_t;
        // SAFETY: all zeroes is a valid value of the structure, which the kernel fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` lives throughout the call.
        let done = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, options | libc::__WALL) };
        match done {
            0 => {}
            _ => return Err(io::Error::last_os_error()),
        }
        // SAFETY: the kernel has filled in what belongs to a child, or left zeroes.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let code = info.si_code;
        Ok((pid != 0).then_some(Change { code, status }))
    }

    fn is_end(&self) -> bool {
        matches!(
            self.code,
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
        )
    }
}

/// Holds the child, which this thread traces, each time it has called `exec`; returns when it has not done so
/// for a while, or has ended. Where its memory will not be there after its end, it is traced until then, and held
/// on its way out. Its signals pass through unchanged.
fn hold_at_stops(child: NixPid, mut at_stop: impl FnMut(Stop) -> bool) {
    let (mut since, mut kept) = (Instant::now(), false);
    while !kept || since.elapsed() < SETTLED {
        // Without a limit it can be waited for: each child that ends is a signal, and a stop.
        let wait = if kept { libc::WNOHANG } else { 0 };
        match Change::of(child, libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | wait) {
            Ok(None) => thread::sleep(LOOK),
            Ok(Some(change)) if change.is_end() => return,
            Ok(Some(_)) => {
                let Ok(Some(stop)) = Change::of(child, libc::WSTOPPED | libc::WNOHANG) else {
                    continue;
                };
                match stop.status >> 8 {
                    libc::PTRACE_EVENT_EXEC => {
                        kept = at_stop(Stop::Exec);
                        since = Instant::now();
                    }
                    libc::PTRACE_EVENT_EXIT if !kept => drop(at_stop(Stop::End)),
                    _ => {}
                }
                go_on(child, &stop);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Lets a stopped child go on.
fn go_on(child: NixPid, stop: &Change) {
    let (event, signal) = (stop.status >> 8, stop.status & 0xff);
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let (request, signal) = match event {
        // A stop by one of these is a stop: it stays so until SIGCONT.
        libc::PTRACE_EVENT_STOP if stops.contains(&signal) => (libc::PTRACE_LISTEN, 0),
        // On its way to it.
        0 => (libc::PTRACE_CONT, signal),
        _ => (libc::PTRACE_CONT, 0),
    };
    // SAFETY: neither request takes an address; the data of the second is a signal's number.
    unsafe { libc::ptrace(request, child.as_raw(), 0, libc::c_long::from(signal)) };
}

/// Waits until the child is a zombie.
fn wait_for_end(child: NixPid) -> Result<ExitStatus> {
    loop {
        match Change::of(child, libc::WEXITED | libc::WNOWAIT) {
            Ok(Some(end)) if end.code == libc::CLD_EXITED => return Ok(end.status as u8),
            Ok(Some(end)) if end.is_end() => return Ok(128 + end.status as u8),
            Ok(_) => thread::sleep(LOOK_AGAIN),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("cannot wait for the command"),
        }
    }
}
