//! `memprof fork-guard`: makes copy-on-write children of processes for memprof, and cleans up after them.
//!
//! This is a process of its own because it must outlive memprof: if memprof is killed, its end of the pipe closes, and the
//! child is killed and reaped all the same. And memprof's threads may start no program once they have given up their
//! privileges, so it is started before. A child never runs. It shares the process's open files, so that a file
//! that the process closes is closed; it sends no signal when it ends; the kernel kills it if the guard is killed, and takes it first if memory
//! runs out.

use std::io::{self, BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid as NixPid, setsid};
use serde::{Deserialize, Serialize};

use super::counters;
use super::freezer::{Freezer, raise_priority};
use super::inject::{Call, Injector};
use super::now_ns;
use super::registers::Registers;
use super::threads::{has_ended, threads};
use super::tracees::Tracees;
use super::tracer::Tracer;
use crate::event::Pid;
use crate::privileges::{self, Role};

/// Time for which the guard tries to reap the child.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum time for which a thread is stopped to reap the child.
const MAX_REAP: Duration = Duration::from_millis(50);

/// What memprof asks of the guard, a line of JSON each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Asked {
    /// Make a child of a process, which is stopped for so many milliseconds at most before it forks, or, if it is to be held
    /// then, in all.
    Fork { pid: u32, max_ms: u64, hold: bool },
    /// Release the process that is held.
    Release,
    /// Remove the child.
    End,
}

/// What the guard answers, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// The child exists, and the process runs again, or is held.
    Forked {
        child: i32,
        /// Time for which the process was stopped, in seconds.
        stop: f64,
        /// Time for which it is held at most, in seconds.
        left: f64,
        /// Its anonymous memory, resident and swapped out, in bytes, if the kernel's counters are exact.
        anonymous: Option<[u64; 2]>,
        /// A moment at which it was stopped, in ns of `CLOCK_MONOTONIC`.
        at: u64,
        threads: Vec<Registers>,
    },
    /// The process runs again. Time for which it was stopped, in seconds, and whether it was still held.
    Released { stop: f64, in_time: bool },
    /// There is no child, and the process runs.
    Failed { reason: String },
    /// The child is gone, and so is all that the guard did for it. Time for which a thread was stopped for that, in seconds.
    Ended { stop: f64 },
}

/// Does what is asked on stdin, and answers on stdout, until stdin is closed. The last child is gone then.
///
/// # Errors
/// Nobody reads what it says; the child is gone.
pub fn run() -> io::Result<()> {
    let _ = nix::sys::prctl::set_name(c"memprof-guard");
    // What ends memprof is not to end the guard before it has cleaned up.
    let _ = setsid();
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
    ] {
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // A process is stopped until the guard has gone on.
    raise_priority();
    privileges::reduce(Role::Guard);
    serve()
}

/// Each child is made and held by a thread of its own: if a thread of the process cannot be stopped, it is released when that
/// thread ends. (Dropping the last one removes its child.)
fn serve() -> io::Result<()> {
    let mut holder = None;
    for line in io::stdin().lock().lines() {
        let said = match serde_json::from_str(&line?)? {
            Asked::End => Said::Ended {
                stop: holder.take().map_or(0.0, Holder::end),
            },
            Asked::Fork { .. } if holder.is_some() => Said::Failed {
                reason: "its guard still holds another child".to_owned(),
            },
            Asked::Release => match holder.as_ref().map(Holder::release) {
                Some(Ok(said)) => said,
                _ => Said::Failed {
                    reason: "its guard holds no process".to_owned(),
                },
            },
            Asked::Fork { pid, max_ms, hold } => {
                match Holder::fork(Pid(pid), Duration::from_millis(max_ms), hold) {
                    Ok((made, said)) => {
                        holder = Some(made);
                        said
                    }
                    Err(reason) => Said::Failed { reason },
                }
            }
        };
        say(&said)?;
    }
    Ok(())
}

/// The thread that made a child, which dies with it.
struct Holder {
    /// For the request to release the process; closed at the end.
    asks: SyncSender<()>,
    /// What it says when the process is released.
    told: Receiver<Result<Said, String>>,
    thread: Tracer<f64>,
}

impl Holder {
    fn fork(pid: Pid, max: Duration, hold: bool) -> Result<(Holder, Said), String> {
        let (asks, asked) = sync_channel(1);
        let (tell, told) = sync_channel(2);
        let run = move || match fork(pid, max, hold) {
            Ok((said, made, held)) => {
                let _ = tell.send(Ok(said));
                if let Some(freezer) = held {
                    // The process runs when its time is up, whatever memprof does.
                    let in_time = asked.recv_timeout(freezer.time_left()).is_ok();
                    let stop = freezer.release().duration.as_secs_f64();
                    let _ = tell.send(Ok(Said::Released { stop, in_time }));
                }
                // Until the other end is dropped.
                while asked.recv().is_ok() {}
                made.remove().as_secs_f64()
            }
            Err(reason) => {
                let _ = tell.send(Err(reason));
                0.0
            }
        };
        let thread = Tracer::start("memprof-fork", run);
        let thread = thread.map_err(|e| format!("its guard has no thread for it: {e}"))?;
        let said = told.recv().map_err(|e| e.to_string())??;
        let holder = Holder { asks, told, thread };
        Ok((holder, said))
    }

    /// Releases the process, which is held, or was until its time was up.
    fn release(&self) -> Result<Said, String> {
        let _ = self.asks.send(());
        self.told.recv().map_err(|e| e.to_string())?
    }

    /// Removes the child. Returns the time for which a thread of its process was stopped, in seconds.
    fn end(self) -> f64 {
        drop(self.asks);
        self.thread.end().unwrap_or_default()
    }
}

fn say(what: &Said) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    io::stdout().write_all(&line)?;
    io::stdout().flush()
}

/// A child that was made.
struct Made {
    pid: Pid,
    injector: Injector,
    child: i32,
    /// Its process id as the process sees it.
    own_id: i64,
}

/// Makes a child. Returns the freezer that holds the process as well, if it is to be held.
fn fork(pid: Pid, max: Duration, hold: bool) -> Result<(Said, Made, Option<Freezer>), String> {
    /// No signal is sent when the child ends. Its files are the process's.
    const FLAGS: libc::c_int =
        libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_IO | libc::CLONE_SYSVSEM;
    /// Stands for the child's id, of which no seccomp filter can know anything either.
    const UNKNOWN: i64 = i32::MAX as i64;
    let injector = Injector::prepare(pid)?;
    let mut freezer = Freezer::new(max);
    let stopped = freezer.stop(&[pid]).map_err(|e| e.to_string());
    let done = stopped.and_then(|()| {
        let registers = freezer.tracees().registers();
        let call = Call {
            number: libc::SYS_clone,
            args: [FLAGS.cast_unsigned().into(), Call::CHILD_STACK, 0, 0, 0, 0],
        };
        let reap = reap(UNKNOWN);
        let called = freezer.tracees().call(&injector, &call, Some(&reap));
        Ok((registers, now_ns(), called?))
    });
    let anonymous = counters::anonymous(pid);
    let held = hold
        && done
            .as_ref()
            .is_ok_and(|(_, _, called)| called.child.is_some());
    let (stop, held) = match held {
        true => (Duration::ZERO, Some(freezer)),
        false => (freezer.release().duration, None),
    };
    let (registers, at, returned) = done?;
    let Some(child) = returned.child else {
        let error = io::Error::from_raw_os_error(-(returned.value as i32));
        return Err(format!("it could not be forked: {error}"));
    };
    let said = Said::Forked {
        child,
        stop: stop.as_secs_f64(),
        left: held
            .as_ref()
            .map_or(0.0, |freezer| freezer.time_left().as_secs_f64()),
        anonymous,
        at,
        threads: registers,
    };
    let made = Made {
        pid,
        injector,
        child,
        own_id: returned.value,
    };
    Ok((said, made, held))
}

/// The call by which a process reaps its child.
fn reap(child: i64) -> Call {
    let flags = libc::__WALL | libc::WNOHANG;
    Call {
        number: libc::SYS_wait4,
        args: [child.cast_unsigned(), 0, flags as u64, 0, 0, 0],
    }
}

impl Made {
    /// Kills the child and has the process reap it. Returns the time for which a thread of it was stopped.
    fn remove(mut self) -> Duration {
        // As its tracer: to signal another user's process would take CAP_KILL.
        let _ = ptrace::kill(NixPid::from_raw(self.child));
        let mut status = 0;
        // SAFETY: `status` is valid for the write. Returns when the child has ended, because it is killed.
        while unsafe { libc::waitpid(self.child, &raw mut status, libc::__WALL) } > 0
            && libc::WIFSTOPPED(status)
        {}
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !has_ended(self.pid.0.cast_signed()) {
            for tid in threads(self.pid) {
                if let Some(stop) = self.reap_in(tid) {
                    return stop;
                }
            }
            thread::sleep(PAUSE);
            // It may have executed another program.
            if let Ok(injector) = Injector::prepare(self.pid) {
                self.injector = injector;
            }
        }
        Duration::ZERO
    }

    /// Has one thread reap the child; no other one is stopped.
    fn reap_in(&self, tid: i32) -> Option<Duration> {
        let mut tracees = Tracees::default();
        tracees.seize_some(vec![tid]).ok()?;
        let begun = Instant::now();
        let stopped = tracees.stop(&|_| begun.elapsed() > MAX_REAP);
        let call = reap(self.own_id);
        let returned = stopped
            .ok()
            .and_then(|()| tracees.call(&self.injector, &call, None).ok());
        tracees.release();
        // The process may have reaped it itself.
        let gone = [self.own_id, i64::from(-libc::ECHILD)];
        let done = returned.filter(|returned| gone.contains(&returned.value));
        done.map(|_| begun.elapsed())
    }
}
