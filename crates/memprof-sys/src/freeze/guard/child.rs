//! Makes a copy-on-write child of a process, and holds the child.
//!
//! A child never runs. It shares the process's file table, so it keeps no file open that the process closes. It sends no signal
//! when it exits. The kernel kills it if its holder exits, and chooses it first if memory runs out.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::ptrace;
use nix::unistd::Pid as NixPid;

use super::message::{Asked, Said, receive, send};
use super::{End, Memprof, Watchdog, holder, reap, userfaults};
use crate::freeze::freezer::Freezer;
use crate::freeze::inject::{Call, CallError, Injector, Returned};
use crate::freeze::registers::Registers;
use crate::freeze::{counters, now_ns};
use crate::ids::Pid;

/// Maximum part of the permitted stop time to reserve for removing the child.
const FOR_REMOVAL: Duration = Duration::from_millis(50);
/// Maximum time to prepare for a system call: the process's code may be in a file on a server that does not answer.
const PREPARATION: Duration = Duration::from_secs(10);
/// Number of programs to try if the process calls `execve` meanwhile, and the time between attempts: a program first loads its C
/// library.
const PROGRAMS: usize = 3;
const LOADS: Duration = Duration::from_millis(20);

/// A child that was made.
struct ForkedChild {
    child: i32,
    at: u64,
    registers: Vec<Registers>,
    anonymous: Option<[u64; 2]>,
    injector: Injector,
    /// The child's process id in the process's pid namespace.
    own_id: i64,
    /// Whether the process resumed before the child was complete.
    late: bool,
    /// Whether memprof has requested the release of the held process.
    let_go: bool,
}

/// State of a process that is to be forked.
struct Forking {
    pid: Pid,
    /// The permitted stop time, and the part of it that making the child may take.
    max: Duration,
    for_making: Duration,
    /// memprof's process id if the process is to be held once the child exists.
    holds_for: Option<Pid>,
    /// The time for which the process was stopped so far.
    stop: Duration,
    end: End,
}

/// Makes a child, and removes it once memprof requests that or is gone.
pub(super) fn hold(pid: Pid, max: Duration, holds_for: Option<Pid>) -> io::Result<End> {
    let mut forking = Forking {
        pid,
        max,
        for_making: max - FOR_REMOVAL.min(max / 4),
        holds_for,
        stop: Duration::ZERO,
        end: End::Holder,
    };
    let mut made = match forking.make() {
        Ok(made) => made,
        Err(reason) => {
            let stop = forking.stop.as_secs_f64();
            send(&mut Memprof, &Said::Failed { reason, stop })?;
            return Ok(forking.end);
        }
    };
    let told = match holds_for {
        Some(_) => forking.tell_let_go(&made),
        None => send(&mut Memprof, &made.forked(forking.stop, Duration::ZERO)),
    };
    // Remove the child even if memprof no longer reads replies.
    let _ = told.and_then(|()| receive::<Asked>(&mut Memprof));
    let before = forking.stop;
    let remains = forking.remove(made.child, made.own_id, made.injector);
    let stop = (forking.stop - before).as_secs_f64();
    // This fails if memprof is gone.
    let _ = send(&mut Memprof, &Said::Ended { stop, remains });
    Ok(forking.end)
}

impl Forking {
    fn make(&mut self) -> Result<ForkedChild, String> {
        let mut watchdog = Watchdog::new()?;
        for left in (0..PROGRAMS).rev() {
            watchdog.set(PREPARATION);
            userfaults::check(self.pid)?;
            let injector = Injector::prepare(self.pid).map_err(CallError::NotReady);
            match injector.and_then(|it| self.try_make(it, &mut watchdog)) {
                Err(CallError::Changed | CallError::NotReady(_)) if left > 0 => sleep(LOADS),
                Err(e) => {
                    // The child may still appear.
                    if let CallError::Waits(_) = e {
                        self.end = End::Child;
                    }
                    return Err(e.to_string());
                }
                Ok(made) if made.late => return Err(self.too_late(made)),
                Ok(made) => return Ok(made),
            }
        }
        Err(CallError::Changed.to_string())
    }

    fn try_make(
        &mut self,
        injector: Injector,
        watchdog: &mut Watchdog,
    ) -> Result<ForkedChild, CallError> {
        let left = self.for_making.saturating_sub(self.stop);
        let mut freezer = Freezer::new(left, None, watchdog);
        let mut done = match freezer.stop(&[self.pid]) {
            Ok(()) => {
                let (registers, at) = (freezer.tracees().registers(), now_ns());
                call(&mut freezer, &injector).and_then(|returned| {
                    ForkedChild::collect(self.pid, injector, registers, at, returned)
                })
            }
            Err(e) => Err(CallError::NotMade(e.to_string())),
        };
        if let (Some(owner), Ok(made)) = (self.holds_for, &mut done)
            && !made.late
        {
            let said = made.forked(Duration::ZERO, freezer.time_left());
            let asked = send(&mut Memprof, &said).and_then(|()| holder::next(&freezer, owner));
            made.let_go = matches!(asked, Ok(Some(_)));
        }
        self.stop += freezer.release().duration;
        done
    }

    /// Reports, once memprof requests the release, that the held process runs.
    fn tell_let_go(&self, made: &ForkedChild) -> io::Result<()> {
        if !made.let_go {
            receive::<Asked>(&mut Memprof)?;
        }
        let (stop, in_time) = (self.stop.as_secs_f64(), made.let_go);
        send(&mut Memprof, &Said::LetGo { stop, in_time })
    }

    /// Removes the child, and returns the message that the process resumed before the child was complete: such a child does not
    /// contain the memory of one moment.
    fn too_late(&mut self, made: ForkedChild) -> String {
        let stop = self.stop;
        let remains = self.remove(made.child, made.own_id, made.injector);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let reason = format!(
            "making its copy-on-write child took {:.1} ms; after {:.0} ms its other threads ran on",
            ms(stop),
            ms(self.for_making)
        );
        match remains {
            Some(remains) => format!("{reason}; {remains}"),
            None => reason,
        }
    }

    /// Kills a child and makes the process reap it. Returns a message if the child remains as a zombie.
    fn remove(&mut self, child: i32, own_id: i64, injector: Injector) -> Option<String> {
        end(child);
        let left = self.max.saturating_sub(self.stop).max(reap::LEAST);
        let reaped = reap::reap(self.pid, own_id, Some(injector), left, reap::SOON);
        self.stop += reaped.stop;
        if reaped.is_gone {
            return None;
        }
        self.end = End::Child;
        Some(format!(
            "its copy-on-write child {child} has ended but stays in the list of processes (a zombie) until one of its threads \
             can be stopped for a moment, which memprof's guard tries for {} s more, or until it ends",
            reap::LATER.as_secs()
        ))
    }
}

impl ForkedChild {
    /// Collects the result of the call, while the process is stopped.
    fn collect(
        pid: Pid,
        injector: Injector,
        registers: Vec<Registers>,
        at: u64,
        returned: Returned,
    ) -> Result<ForkedChild, CallError> {
        let child = returned.child.ok_or_else(|| {
            let error = io::Error::from_raw_os_error(-(returned.value as i32));
            CallError::NotMade(format!("it could not be forked: {error}"))
        })?;
        Ok(ForkedChild {
            child,
            at,
            registers,
            anonymous: counters::anonymous(pid),
            injector,
            own_id: returned.value,
            late: returned.late,
            let_go: false,
        })
    }

    /// The message that reports the child to memprof.
    fn forked(&mut self, stop: Duration, left: Duration) -> Said {
        Said::Forked {
            child: self.child,
            stop: stop.as_secs_f64(),
            left: left.as_secs_f64(),
            at: self.at,
            threads: std::mem::take(&mut self.registers),
            anonymous: self.anonymous,
        }
    }
}

/// Kills a child, as its tracer: signalling another user's process would require CAP_KILL. Returns when the child has ended.
fn end(child: i32) {
    let _ = ptrace::kill(NixPid::from_raw(child));
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    while unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } > 0
        && libc::WIFSTOPPED(status)
    {}
}

/// Makes one of the stopped threads create a child.
fn call(freezer: &mut Freezer<'_>, injector: &Injector) -> Result<Returned, CallError> {
    /// The child sends no signal when it exits, and shares the process's file table. It does not share the working directory
    /// (CLONE_FS): while that is shared, a set-user-ID program that the process executes gains no privileges, and the process
    /// cannot enter a mount namespace.
    const FLAGS: libc::c_int = libc::CLONE_FILES | libc::CLONE_IO | libc::CLONE_SYSVSEM;
    /// Placeholder for the child's id in the later `wait4`. A seccomp filter cannot know the id either.
    const UNKNOWN: i64 = i32::MAX as i64;
    let call = Call {
        number: libc::SYS_clone,
        args: [FLAGS.cast_unsigned().into(), Call::CHILD_STACK, 0, 0, 0, 0],
    };
    freezer.call(injector, &call, &reap::call(UNKNOWN))
}
