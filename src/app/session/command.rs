//! Starts a command so that memprof follows it from its first page and scans it at its very end.
//!
//! The child waits before `exec` until memprof follows it. A tracer stops the command's first thread after `exec`
//! until the unwind tables of the program and its libraries are built. Tracing ends soon after the last `exec`; a debugger can
//! attach from then on. At the end, the command stays a zombie until its memory is scanned; the collector retains the
//! memory for the scan ([`Kept`](memprof_sys::residency::ExitMemory)). If memprof cannot use `userfaultfd`, or if the scan
//! includes children, memprof traces the command for its whole run and scans it while it exits. The command itself is
//! not modified: if memprof dies, the kernel detaches the command, which continues to run. If tracing is refused, the
//! first stacks may be truncated.

use std::env;
use std::ffi::{CString, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid as NixPid, fork};
use tokio::sync::oneshot;

use crate::app::session::failure::Failure;
use crate::app::session::signals;
use memprof_heap::sampler::Library;
use memprof_sys::freeze;
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};

/// How a command ended, in the shell's terms: its exit status, or 128 plus the signal number.
pub type ExitStatus = u8;

/// A forked process that waits to become the command.
pub struct Prepared {
    /// The process that will run the command.
    pub pid: Pid,
    /// Releases the process.
    release: SyncSender<()>,
    /// Resolves when the command has executed its program, or fails if it ended before.
    pub executed: oneshot::Receiver<()>,
    /// The command's exit status, or the reason why it could not be started.
    pub ended: oneshot::Receiver<Result<ExitStatus>>,
}

impl Prepared {
    /// Lets the command start.
    pub fn release(&self) {
        // If the thread is gone, `ended` holds the reason.
        let _ = self.release.send(());
    }
}

/// Points at which the command waits for memprof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After `exec`: the program and the dynamic loader are mapped, but have not run yet.
    Exec,
    /// The command is about to exit and its memory is still mapped, or it is a zombie.
    End,
}

/// How long to trace a command. A traced command stops at its exit with its memory still mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// Until `SETTLED`: the command's memory will be available after its end.
    Briefly,
    /// For this long after the last `exec`.
    For(Duration),
    /// Until it ends.
    ToTheEnd,
    /// Until the command ends, by tracing this thread: the exiting thread is not the last.
    By(Pid),
}

impl Traced {
    fn time(self) -> Option<Duration> {
        match self {
            Traced::Briefly => Some(SETTLED),
            Traced::For(time) => Some(time),
            Traced::ToTheEnd | Traced::By(_) => None,
        }
    }
}

/// Tracing ends this long after the last `exec`: scripts that `exec` another program do so early.
const SETTLED: Duration = Duration::from_secs(1);
/// Events that stop a traced command, besides its signals.
pub(super) const STOPS: ptrace::Options =
    ptrace::Options::PTRACE_O_TRACEEXEC.union(ptrace::Options::PTRACE_O_TRACEEXIT);
/// Poll interval for stops of a traced command: `waitid` has no timeout.
const LOOK: Duration = Duration::from_micros(500);
/// Poll interval for the command's end while it is frozen for a report: the kernel then reports the stop, not the end.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How a command is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch<'a> {
    /// The program and its arguments.
    pub argv: &'a [OsString],
    /// Whether the command gets `/dev/null` for its standard streams.
    pub quiet: bool,
    /// The sampling library to preload, if any.
    pub sampler: Option<&'a Library>,
}

/// The environment variable that lists the libraries to preload.
const PRELOAD: &str = "LD_PRELOAD";

impl Launch<'_> {
    /// The command's environment: memprof's own, plus the sampling library.
    fn environment(&self) -> Result<Vec<CString>> {
        let preload = self.sampler.map(|sampler| {
            let value = sampler.preload(env::var_os(PRELOAD).as_deref());
            (OsString::from(PRELOAD), value)
        });
        let replaced = preload.is_some();
        env::vars_os()
            .filter(|(name, _)| !(replaced && name == PRELOAD))
            .chain(preload)
            .map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                CString::new(variable.into_vec()).context("a variable contains a NUL byte")
            })
            .collect()
    }
}

/// Forks a process that waits to become the command. Another thread calls `at_stop` while the command is stopped;
/// `at_stop` returns how long to trace the command.
///
/// # Errors
/// The command line contains a NUL byte, or the process or its thread cannot be created.
pub fn prepare(
    launch: Launch<'_>,
    at_stop: impl FnMut(Pid, Stop) -> Traced + Send + 'static,
) -> Result<Prepared> {
    let Launch { argv, quiet, .. } = launch;
    let environment = launch.environment()?;
    let name = argv.first().context("no command was given")?;
    let name = name.to_string_lossy().into_owned();
    let argv: Vec<CString> = argv
        .iter()
        .map(|arg| CString::new(arg.as_bytes()).context("an argument contains a NUL byte"))
        .collect::<Result<_>>()?;
    let (pid_to, pid_from) = sync_channel(1);
    let (release, released) = sync_channel(1);
    let (done, ended) = oneshot::channel();
    let (running, executed) = oneshot::channel();
    // This thread forks the child and waits for its end; a second thread traces it.
    thread::Builder::new()
        .name("memprof-command".into())
        .spawn(move || {
            let told = (&pid_to, &released, running);
            let words = (&*argv, &*environment);
            let _ = done.send(live(&name, words, quiet, told, at_stop));
        })?;
    match pid_from.recv() {
        Ok(pid) => Ok(Prepared {
            pid,
            release,
            executed,
            ended,
        }),
        Err(_) => match ended.blocking_recv() {
            Ok(Err(e)) => Err(e),
            _ => bail!("cannot create a process for the command"),
        },
    }
}

fn live(
    name: &str,
    (argv, environment): (&[CString], &[CString]),
    quiet: bool,
    (pid_to, released, running): (&SyncSender<Pid>, &Receiver<()>, oneshot::Sender<()>),
    mut at_stop: impl FnMut(Pid, Stop) -> Traced + Send,
) -> Result<ExitStatus> {
    let (go_read, mut go_write) = io::pipe()?;
    let (mut failed_read, failed_write) = io::pipe()?;
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        let words = words.iter().map(|word| word.as_ptr());
        words.chain([std::ptr::null()]).collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    let mask = signals::hold()?;
    // SAFETY: the child calls nothing but async-signal-safe functions until it execs or exits.
    let child = match unsafe { fork() }.context("cannot fork")? {
        ForkResult::Child => {
            signals::release_in_child(&mask);
            let to_close = go_write.as_raw_fd();
            exec_when_told(
                &argv,
                &environment,
                quiet,
                &go_read,
                &failed_write,
                to_close,
            )
        }
        ForkResult::Parent { child } => child,
    };
    mask.thread_set_mask()?;
    drop((go_read, failed_write));
    privileges::reduce(ThreadRole::Command);
    let _ = pid_to.send(Pid(child.as_raw() as u32));
    if released.recv().is_err() {
        // The `Prepared` was dropped: closing the pipe ends the child.
        drop(go_write);
        let _ = waitpid(child, None);
        bail!("the command was not started");
    }
    let pid = Pid(child.as_raw() as u32);
    let mut running = Some(running);
    // A separate thread traces: when it ends, the kernel detaches the command without stopping it.
    thread::scope(|scope| {
        let tracer = thread::Builder::new().name("memprof-tracer".into());
        let trace = || {
            let traced = ptrace::seize(child, STOPS).is_ok();
            let _ = go_write.write_all(&[1]);
            if !traced {
                // Without tracing, memprof cannot see the `exec`.
                running.take().map(|to| to.send(()));
                return;
            }
            hold_at_stops(|stop| {
                if stop == Stop::Exec {
                    running.take().map(|to| to.send(()));
                }
                // A stop before `exec` belongs to memprof's child, not to the command.
                match running {
                    None => at_stop(pid, stop),
                    Some(_) => Traced::ToTheEnd,
                }
            });
        };
        tracer.spawn_scoped(scope, trace).map(drop)
    })?;
    let status = wait_for_end(child)?;
    if running.is_none() {
        at_stop(pid, Stop::End);
    }
    let _ = waitpid(child, None);
    // Read only after the command's end: a signal may stop the command before `exec`, and the read would block.
    let mut errno = [0; 4];
    if failed_read.read_exact(&mut errno).is_ok() {
        let e = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
        return Err(Failure::NotRun(name.to_owned(), e).into());
    }
    Ok(status)
}

/// Runs in the child: waits for the release, then calls `exec`.
fn exec_when_told(
    argv: &[*const libc::c_char],
    environment: &[*const libc::c_char],
    quiet: bool,
    go: &io::PipeReader,
    failed: &io::PipeWriter,
    go_write: i32,
) -> ! {
    // SAFETY: only async-signal-safe calls, on descriptors and pointers made before the fork; `argv` and `environment`
    // end with a null pointer and their strings live in the copied memory.
    unsafe {
        // Closes the child's copy: otherwise the read below would not see the end of the pipe when memprof dies.
        libc::close(go_write);
        // If memprof dies while it freezes the command for a report, SIGCONT resumes the command.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
        memprof_sys::priority::restore();
        // Rust ignores SIGPIPE; programs expect the default action.
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
            libc::execvpe(argv[0], argv.as_ptr(), environment.as_ptr());
            let errno = Errno::last_raw().to_ne_bytes();
            libc::write(failed.as_raw_fd(), errno.as_ptr().cast(), errno.len());
        }
        libc::_exit(127)
    }
}

/// A child's state change, as `waitid` reports it.
struct Change {
    /// The child, or its traced thread.
    id: NixPid,
    /// `CLD_EXITED`, `CLD_TRAPPED`, …
    code: i32,
    /// The exit status or signal; for a trap, the bits above hold the ptrace event.
    status: i32,
}

impl Change {
    /// The child's state change; `None` if the state has not changed.
    fn poll(child: NixPid, options: i32) -> io::Result<Option<Change>> {
        Change::wait(libc::P_PID, child.as_raw() as libc::id_t, options)
    }

    /// The state change of the thread that the current thread traces. The thread's id may change during the wait: a
    /// thread that calls `execve` takes over the id of its process.
    fn of_traced(options: i32) -> io::Result<Option<Change>> {
        Change::wait(libc::P_ALL, 0, options | libc::__WNOTHREAD)
    }

    fn wait(whom: libc::idtype_t, id: libc::id_t, options: i32) -> io::Result<Option<Change>> {
        // SAFETY: all zeroes is a valid value of the structure, which the kernel fills in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` lives throughout the call.
        let done = unsafe { libc::waitid(whom, id, &raw mut info, options | libc::__WALL) };
        match done {
            0 => {}
            _ => return Err(io::Error::last_os_error()),
        }
        // SAFETY: the kernel has filled in the fields for a child, or left zeroes.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        let code = info.si_code;
        let id = NixPid::from_raw(pid);
        Ok((pid != 0).then_some(Change { id, code, status }))
    }

    fn is_end(&self) -> bool {
        matches!(
            self.code,
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
        )
    }
}

/// Stops the child, which this thread traces, after each `exec`, and also while it exits unless its memory will be
/// retained. Returns when tracing should end or the child has ended. Signals to the child pass through unchanged.
fn hold_at_stops(mut at_stop: impl FnMut(Stop) -> Traced) {
    let (mut since, mut traced) = (Instant::now(), Traced::ToTheEnd);
    while traced.time().is_none_or(|time| since.elapsed() < time) {
        // With no time limit, `waitid` may block.
        let wait = traced.time().map_or(0, |_| libc::WNOHANG);
        match Change::of_traced(libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | wait) {
            Ok(None) => thread::sleep(LOOK),
            Ok(Some(change)) if change.is_end() => return,
            Ok(Some(_)) => {
                let Ok(Some(stop)) = Change::of_traced(libc::WSTOPPED | libc::WNOHANG) else {
                    continue;
                };
                match stop.status >> 8 {
                    libc::PTRACE_EVENT_EXEC => {
                        traced = at_stop(Stop::Exec);
                        since = Instant::now();
                    }
                    libc::PTRACE_EVENT_EXIT
                        if traced != Traced::Briefly && trace_next(&mut at_stop) =>
                    {
                        let _ = ptrace::detach(stop.id, None);
                        continue;
                    }
                    _ => {}
                }
                go_on(&stop);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Calls `at_stop` while a thread exits. Returns whether another thread is now traced instead.
fn trace_next(at_stop: &mut impl FnMut(Stop) -> Traced) -> bool {
    while let Traced::By(next) = at_stop(Stop::End) {
        let next = next.0.cast_signed();
        match ptrace::seize(NixPid::from_raw(next), STOPS) {
            Ok(()) => return true,
            // The next thread has ended as well; perhaps the exiting thread is the last one now.
            Err(_) if freeze::has_ended(next) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Resumes the stopped child.
fn go_on(stop: &Change) {
    let (event, signal) = (stop.status >> 8, stop.status & 0xff);
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let (request, signal) = match event {
        // A group stop: the child stays stopped until SIGCONT.
        libc::PTRACE_EVENT_STOP if stops.contains(&signal) => (libc::PTRACE_LISTEN, 0),
        // A signal to be delivered.
        0 => (libc::PTRACE_CONT, signal),
        _ => (libc::PTRACE_CONT, 0),
    };
    // SAFETY: neither request uses the address; the data of `PTRACE_CONT` is a signal number.
    unsafe { libc::ptrace(request, stop.id.as_raw(), 0, libc::c_long::from(signal)) };
}

/// Waits until the child is a zombie.
fn wait_for_end(child: NixPid) -> Result<ExitStatus> {
    loop {
        match Change::poll(child, libc::WEXITED | libc::WNOWAIT) {
            Ok(Some(end)) if end.code == libc::CLD_EXITED => return Ok(end.status as u8),
            Ok(Some(end)) if end.is_end() => return Ok(128 + end.status as u8),
            Ok(_) => thread::sleep(LOOK_AGAIN),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("cannot wait for the command"),
        }
    }
}
