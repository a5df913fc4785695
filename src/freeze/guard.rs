//! `memprof fork-guard`: makes a copy-on-write child of a stopped process for memprof, and cleans up after it.
//!
//! This is a process of its own because it must outlive memprof: if memprof is killed, its end of the pipe closes, and the
//! child is killed and reaped all the same. The child never runs. It shares the process's open files, so that a file
//! that the process closes is closed; it sends no signal when it ends; the kernel kills it if the guard is killed, and takes it first if memory
//! runs out.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::{Pid as NixPid, setsid};
use serde::{Deserialize, Serialize};

use super::freezer::{Freezer, raise_priority};
use super::inject::{Call, Injector};
use super::registers::Registers;
use super::threads::{has_ended, threads};
use super::tracees::Tracees;
use crate::event::Pid;

/// Time for which the guard tries to reap the child.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum time for which a thread is stopped to reap the child.
const MAX_REAP: Duration = Duration::from_millis(50);

/// What the guard says, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// The child exists, and the process runs again.
    Forked {
        child: i32,
        /// Time for which the process was stopped, in seconds.
        stop: f64,
        threads: Vec<Registers>,
    },
    /// There is no child, and the process runs.
    Failed { reason: String },
    /// The child is gone, and so is all that the guard did. Time for which a thread was stopped for that, in seconds.
    Ended { stop: f64 },
}

/// Makes the child, says so on stdout, and removes it when stdin is closed.
///
/// # Errors
/// Nobody reads what it says; the child is gone.
pub fn run(pid: Pid, max: Duration) -> io::Result<()> {
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
    // The process is stopped until the guard has gone on.
    raise_priority();
    let (said, made) = match fork(pid, max) {
        Ok((said, made)) => (said, Some(made)),
        Err(reason) => (Said::Failed { reason }, None),
    };
    let told = say(&said);
    let Some(made) = made else { return told };
    if told.is_ok() {
        let _ = io::stdin().read_to_end(&mut Vec::new());
    }
    let stop = made.remove().as_secs_f64();
    say(&Said::Ended { stop })
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

fn fork(pid: Pid, max: Duration) -> Result<(Said, Made), String> {
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
            args: [FLAGS.cast_unsigned().into(), Call::CHILD_STACK, 0, 0, 0],
        };
        let reap = reap(UNKNOWN);
        let called = freezer.tracees().call(&injector, &call, Some(&reap));
        Ok((registers, called?))
    });
    let stats = freezer.release();
    let (registers, returned) = done?;
    let Some(child) = returned.child else {
        let error = io::Error::from_raw_os_error(-(returned.value as i32));
        return Err(format!("it could not be forked: {error}"));
    };
    let said = Said::Forked {
        child,
        stop: stats.duration.as_secs_f64(),
        threads: registers,
    };
    let made = Made {
        pid,
        injector,
        child,
        own_id: returned.value,
    };
    Ok((said, made))
}

/// The call by which a process reaps its child.
fn reap(child: i64) -> Call {
    let flags = libc::__WALL | libc::WNOHANG;
    Call {
        number: libc::SYS_wait4,
        args: [child.cast_unsigned(), 0, flags as u64, 0, 0],
    }
}

impl Made {
    /// Kills the child and has the process reap it. Returns the time for which a thread of it was stopped.
    fn remove(self) -> Duration {
        let _ = kill(NixPid::from_raw(self.child), Signal::SIGKILL);
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
