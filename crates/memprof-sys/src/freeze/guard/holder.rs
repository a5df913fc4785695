//! Holds processes that are stopped.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::message::{Asked, Said, receive, send};
use super::{Memprof, Watchdog};
use crate::freeze::freezer::Freezer;
use crate::freeze::registers::Registers;
use crate::freeze::threads::state;
use crate::freeze::{FreezeError, now_ns};
use crate::ids::Pid;

/// Stops processes until memprof asks to let them run, or is gone or stopped itself, or the time is up. Returns whether none of
/// their threads is traced any more.
pub(super) fn hold(owner: Pid, pids: &[u32], max: Duration, registers: bool) -> io::Result<bool> {
    let mut watchdog = match Watchdog::new() {
        Ok(watchdog) => watchdog,
        Err(why) => {
            send(&mut Memprof, &Said::NotStopped(FreezeError::new(why)))?;
            return Ok(true);
        }
    };
    let mut freezer = Freezer::new(max, Some(owner), &mut watchdog);
    let mut read = Vec::new();
    let mut failed = stop(&mut freezer, pids, registers.then_some(&mut read))?;
    while failed.is_none() {
        match next(&freezer, owner) {
            Ok(Some(Asked::More { pids })) => failed = stop(&mut freezer, &pids, None)?,
            Ok(Some(_)) => break,
            Ok(None) => {
                // Before they run: memprof relies on that.
                send(&mut Memprof, &Said::TimeUp)?;
                let stats = freezer.release();
                // Whatever memprof asks for now has this answer.
                receive::<Asked>(&mut Memprof)?;
                let registers = read;
                send(&mut Memprof, &Said::Released { stats, registers })?;
                return Ok(freezer.has_let_go());
            }
            Err(e) => return Err(e),
        }
    }
    let threads = freezer.threads();
    let stats = freezer.release();
    let registers = read;
    let said = match failed {
        None => Said::Released { stats, registers },
        Some(error) => Said::NotStopped(FreezeError {
            stats,
            threads,
            ..error
        }),
    };
    send(&mut Memprof, &said)?;
    Ok(freezer.has_let_go())
}

/// Stops processes, and reads their registers.
fn stop(
    freezer: &mut Freezer<'_>,
    pids: &[u32],
    registers: Option<&mut Vec<Registers>>,
) -> io::Result<Option<FreezeError>> {
    let pids: Vec<Pid> = pids.iter().copied().map(Pid).collect();
    if let Err(error) = freezer.stop(&pids) {
        return Ok(Some(error));
    }
    if let Some(registers) = registers {
        *registers = freezer.tracees().registers();
    }
    let left = u64::try_from(freezer.time_left().as_nanos()).unwrap_or(u64::MAX);
    let until = now_ns().saturating_add(left);
    send(&mut Memprof, &Said::Stopped { until }).map(|()| None)
}

/// Time between two looks whether memprof is stopped.
const LOOK: Duration = Duration::from_millis(50);

/// What memprof asks for, `None` if the time is up, or if memprof is stopped (SIGSTOP) and would not use it.
pub(super) fn next(freezer: &Freezer<'_>, owner: Pid) -> io::Result<Option<Asked>> {
    let mut was_stopped = false;
    loop {
        let left = freezer.time_left();
        let time = left.min(LOOK);
        let mut polled = [PollFd::new(Memprof.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(TimeSpec::from(time)), None) {
            Ok(0) => {
                // Twice: it may go on at once.
                let is_stopped = state(owner.0.cast_signed()) == Some('T');
                if time == left || is_stopped && was_stopped {
                    return Ok(None);
                }
                was_stopped = is_stopped;
            }
            Ok(_) => return receive(&mut Memprof).map(Some),
            // No signal has a handler.
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
