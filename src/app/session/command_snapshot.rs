//! Runs a command for a heap snapshot: calls a function after a given time, or at the command's end while its memory is
//! still mapped. The command is profiled only if a collector follows it.

use std::ffi::OsString;
use std::pin::pin;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::kill;
use nix::unistd::Pid as NixPid;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::command::{self, ExitStatus, Launch, Stop, Traced};
use super::end::{
    COMMAND_GRACE, SILENT, sleep_until, tell_left, tell_not_ended, tell_wait, wait_until_executed,
};
use super::failure::Failure;
use super::signals::{Ending, Signals};
use super::start;
use crate::collect::CollectorHandle;
use memprof_heap::sampler::Library;
use memprof_heap::{At, Moment};
use memprof_sys::freeze::{self, Registers};
use memprof_sys::ids::Pid;
use memprof_sys::messages;
use memprof_sys::privileges::{self, ThreadRole};

/// How long the other threads of the process may take to end before the last one.
const OTHERS: Duration = Duration::from_secs(1);
/// How long the kernel may take until a command is no longer traced.
const RELEASE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Runs a command and calls `look` at the given moment. Returns the result, and the command's exit status if it has
/// ended.
///
/// # Errors
/// The command could not be started; it ended without reaching that moment, for example by `SIGKILL` before it ran; a
/// signal ended memprof; or `look` failed. In the last case the command has ended or continues to run.
pub fn run<T>(
    argv: &[OsString],
    at: At,
    look: impl FnOnce(Pid, Moment) -> Result<T>,
) -> Result<(T, Option<ExitStatus>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let launch = Launch {
        argv,
        ..Launch::default()
    };
    runtime.block_on(run_until(launch, None, at, async |pid, moment| {
        look(pid, moment)
    }))
}

/// Like [`run`], but a collector can follow the command from its first page.
pub(super) async fn run_until<T>(
    launch: Launch<'_>,
    follower: Option<&CollectorHandle>,
    at: At,
    look: impl AsyncFnOnce(Pid, Moment) -> Result<T>,
) -> Result<(T, Option<ExitStatus>)> {
    let mut signals = Signals::new()?;
    let (tell, mut exiting) = oneshot::channel();
    // Dropped when the command may continue.
    let (hold, held) = sync_channel::<()>(0);
    let mut tell = Some(tell);
    let mut traced = None;
    let sampler = launch.sampler.map(Library::preloaded);
    let at_exec = follower.cloned();
    let mut command = command::prepare(launch, move |pid, stop| {
        let thread = *traced.get_or_insert(pid);
        if stop == Stop::End && !freeze::has_ended(thread.0.cast_signed()) {
            match others(pid, thread) {
                Others::Ended => {
                    if let Some(tell) = tell.take()
                        && tell.send(Registers::of_stopped(thread)).is_ok()
                    {
                        let _ = held.recv();
                    }
                }
                Others::Live(next) => {
                    traced = Some(next);
                    return Traced::By(next);
                }
                Others::Leave => {}
            }
        }
        if stop == Stop::Exec {
            traced = Some(pid);
            if let Some(follower) = &at_exec {
                // The collector reads the command's memory while the command is traced.
                start::executed(follower, pid, sampler.as_ref());
            }
        }
        match at {
            At::After(time) => Traced::For(time),
            At::End => Traced::ToTheEnd,
        }
    })?;
    if let Some(follower) = follower {
        start::follow(follower, command.pid)?;
    }
    if let Some(signal) = signals.arrived() {
        return Err(Failure::NotStarted(signal).into());
    }
    command.release();
    let pid = command.pid;
    if follower.is_some() {
        // The collector and its helpers read the command's memory; this thread needs no privileges.
        privileges::reduce(ThreadRole::Server {
            writes_files: false,
        });
    }
    wait_until_executed(&mut command).await?;
    let mut time = pin!(async {
        match at {
            At::After(time) => sleep(time).await,
            At::End => std::future::pending().await,
        }
    });
    let mut signalled: Option<Ending> = None;
    let (mut tell_at, mut patience) = (None, None);
    loop {
        tokio::select! {
            biased;
            Ok(registers) = &mut exiting => {
                // The signal that ended the command may reach memprof a little later.
                signals.restore_later();
                if let At::After(time) = at {
                    messages::print(&format!(
                        "the command ended before --at {}: this is its heap at its end",
                        time.as_secs_f64()
                    ));
                }
                let looked = look(pid, Moment::Exiting(registers)).await;
                drop(hold);
                let status = (&mut command.ended).await;
                let status = status.context("the command's thread ended early")??;
                return Ok((looked?, Some(status)));
            }
            status = &mut command.ended => {
                let status = status.context("the command's thread ended early")??;
                bail!(
                    "the command ended (status {status}), and its memory was gone before memprof could read it: it was \
                     killed, another thread than its first one executed a program, or it may not be traced"
                );
            }
            () = &mut time => {
                match signalled {
                    Some(_) => signals.restore_later(),
                    None => signals.restore_now(),
                }
                let looked = match is_released(pid).await {
                    true => look(pid, Moment::Running).await,
                    false => Err(anyhow!("the command is still traced by memprof")),
                };
                return Ok((looked?, None));
            }
            ending = next(&mut signals, signalled.is_some()) => match signalled {
                None => {
                    signalled = Some(ending);
                    tell_at = Some(Instant::now() + SILENT);
                    patience = Some(Instant::now() + COMMAND_GRACE);
                    if let Some(signal) = ending.for_command() {
                        let _ = kill(NixPid::from_raw(pid.0.cast_signed()), signal);
                    }
                }
                Some(first) => return Err(left(pid, first)),
            },
            () = sleep_until(tell_at) => {
                tell_wait(pid);
                tell_at = None;
            }
            () = sleep_until(patience) => {
                tell_not_ended(pid);
                return match signalled {
                    Some(first) => Err(left(pid, first)),
                    None => Err(anyhow!("the command has not ended")),
                };
            }
        }
    }
}

/// Prints that memprof ends before the command; returns the reason why there is no snapshot.
fn left(pid: Pid, first: Ending) -> anyhow::Error {
    tell_left(pid);
    Failure::Interrupted(first.signal).into()
}

/// The next signal; with `again`, the next one that does not repeat the previous signal.
async fn next(signals: &mut Signals, again: bool) -> Ending {
    match again {
        false => signals.next().await,
        true => signals.another().await,
    }
}

/// State of the other threads of a process while the tracer holds one exiting thread.
enum Others {
    /// All have ended: the process exits.
    Ended,
    /// At least one continues to run; this is its id.
    Live(Pid),
    /// There is nothing to wait for.
    Leave,
}

/// Determines the state of the other threads. If the process is exiting, waits for them to end.
fn others(pid: Pid, exiting: Pid) -> Others {
    let exiting = exiting.0.cast_signed();
    let end = Instant::now() + OTHERS;
    let mut alive = None;
    loop {
        let mut others = freeze::threads(pid);
        others.retain(|tid| *tid != exiting && !freeze::has_ended(*tid));
        if others.is_empty() {
            return Others::Ended;
        }
        let before = alive;
        alive = others.into_iter().find(|tid| !freeze::is_killed(*tid));
        // Require two sightings: between two instructions, a thread that is being killed shows no sign of it.
        if let Some(tid) = alive.filter(|_| alive == before) {
            // A thread that survives the others is in `execve`. It waits for the exiting thread, so tracing the
            // survivor would deadlock.
            return match freeze::is_killed(exiting) {
                true => Others::Leave,
                false => Others::Live(Pid(tid.cast_unsigned())),
            };
        }
        if Instant::now() >= end {
            return Others::Leave;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until the kernel has detached a process from memprof's tracing thread; false after [`RELEASE`].
async fn is_released(pid: Pid) -> bool {
    let end = Instant::now() + RELEASE;
    let traced = || {
        let mut threads = freeze::threads(pid).into_iter();
        threads.any(|tid| freeze::is_traced_here(Pid(tid.cast_unsigned())))
    };
    while traced() {
        if Instant::now() >= end {
            return false;
        }
        sleep(PAUSE).await;
    }
    true
}
