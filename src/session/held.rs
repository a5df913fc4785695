//! Runs a command without profiling it, and does something with it after a time, or at its end while its memory is
//! still there.

use std::pin::pin;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::kill;
use nix::unistd::Pid as NixPid;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::command::{self, ExitStatus, Stop, Traced};
use super::end::wait_until_executed;
use super::failure::Failure;
use super::signals::{Ending, Signals};
use crate::console;
use crate::event::Pid;
use crate::freeze::{self, Registers};

/// When something is done with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// This long after it has executed its program; if it ends before, at its end.
    After(Duration),
    /// At its end.
    End,
}

/// A command at the moment that was asked for.
#[derive(Debug)]
pub enum Moment {
    /// It runs.
    Running,
    /// It is about to exit, and stopped. The registers of its first thread; the others have ended.
    Exiting(Option<Registers>),
}

/// How long its other threads may take to end before the first one.
const OTHERS: Duration = Duration::from_secs(1);
/// How long it may take until a command is not traced any more.
const RELEASE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Runs a command and calls `look` at that moment. Returns its result, and the command's exit status if it has ended.
///
/// # Errors
/// The command could not be started; it ended without that moment, as by `SIGKILL` before it ran; a signal ended
/// memprof. Or the error of `look`; the command has ended or runs on.
pub fn run<T>(
    argv: &[String],
    at: At,
    look: impl FnOnce(Pid, Moment) -> Result<T>,
) -> Result<(T, Option<ExitStatus>)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run_until(argv, at, look))
}

async fn run_until<T>(
    argv: &[String],
    at: At,
    look: impl FnOnce(Pid, Moment) -> Result<T>,
) -> Result<(T, Option<ExitStatus>)> {
    let mut signals = Signals::new()?;
    let (tell, mut exiting) = oneshot::channel();
    // Dropped when the command may go on.
    let (hold, held) = sync_channel::<()>(0);
    let mut tell = Some(tell);
    let mut command = command::prepare(argv, false, move |pid, stop| {
        if stop == Stop::End
            && !freeze::has_ended(pid.0.cast_signed())
            && others_end(pid)
            && let Some(tell) = tell.take()
            && tell.send(Registers::of_stopped(pid)).is_ok()
        {
            let _ = held.recv();
        }
        match at {
            At::After(time) => Traced::For(time),
            At::End => Traced::ToTheEnd,
        }
    })?;
    if let Some(signal) = signals.arrived() {
        return Err(Failure::NotStarted(signal).into());
    }
    command.release();
    let pid = command.pid;
    wait_until_executed(&mut command).await?;
    let mut time = pin!(async {
        match at {
            At::After(time) => sleep(time).await,
            At::End => std::future::pending().await,
        }
    });
    let mut signalled: Option<Ending> = None;
    loop {
        tokio::select! {
            biased;
            Ok(registers) = &mut exiting => {
                if let At::After(time) = at {
                    console::print(&format!(
                        "the command ended before --at {}: this is its heap at its end",
                        time.as_secs_f64()
                    ));
                }
                let looked = look(pid, Moment::Exiting(registers));
                drop(hold);
                let status = (&mut command.ended).await;
                let status = status.context("the command's thread ended early")??;
                return Ok((looked?, Some(status)));
            }
            status = &mut command.ended => {
                let status = status.context("the command's thread ended early")??;
                bail!(
                    "the command ended (status {status}), and its memory was gone before memprof could read it: it was \
                     killed, its first thread ended before others, or it may not be traced"
                );
            }
            () = &mut time => {
                let looked = match is_released(pid).await {
                    true => look(pid, Moment::Running),
                    false => Err(anyhow!("the command is still traced by memprof")),
                };
                return Ok((looked?, None));
            }
            ending = next(&mut signals, signalled.is_some()) => match signalled {
                None => {
                    signalled = Some(ending);
                    if let Some(signal) = ending.for_command() {
                        let _ = kill(NixPid::from_raw(pid.0.cast_signed()), signal);
                    }
                }
                Some(first) => {
                    console::print(&format!("memprof ends; the command (pid {pid}) runs on"));
                    return Err(Failure::Interrupted(first.signal).into());
                }
            },
        }
    }
}

/// The next signal; after the first one, the next that does not repeat it.
async fn next(signals: &mut Signals, again: bool) -> Ending {
    match again {
        false => signals.next().await,
        true => signals.another().await,
    }
}

/// Waits for the other threads of an exiting process, which end by themselves. If only its first thread ends, they go on.
fn others_end(pid: Pid) -> bool {
    let first = pid.0.cast_signed();
    let end = Instant::now() + OTHERS;
    loop {
        let mut others = freeze::threads(pid).into_iter().filter(|tid| *tid != first);
        if others.all(freeze::has_ended) {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until the kernel has let go of a process that a thread of memprof traced.
async fn is_released(pid: Pid) -> bool {
    let end = Instant::now() + RELEASE;
    while freeze::is_traced_here(pid) {
        if Instant::now() >= end {
            return false;
        }
        sleep(PAUSE).await;
    }
    true
}
