//! Makes a copy-on-write child of a process, and holds it.
//!
//! A child never runs. It shares the process's open files, so that a file that the process closes is closed; it sends no signal when it
//! ends; the kernel kills it if its holder ends, and takes it first if memory runs out.

use std::io;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::ptrace;
use nix::sys::time::TimeSpec;
use nix::unistd::Pid as NixPid;

use super::message::{Asked, Said, receive, send};
use super::{End, Memprof, Watchdog, reap, userfaults};
use crate::event::Pid;
use crate::freeze::counters;
use crate::freeze::freezer::Freezer;
use crate::freeze::inject::{Call, CallError, Injector, Returned};
use crate::freeze::now_ns;
use crate::freeze::registers::Registers;

/// The part of the permitted time that is kept for the removal, at most.
const FOR_REMOVAL: Duration = Duration::from_millis(50);
/// How long preparing for a call may take: the code of a process may be in a file of a server that does not answer.
const PREPARATION: Duration = Duration::from_secs(10);
/// How many programs that the process executes meanwhile are tried, and how long after each other: a program loads its C library first.
const PROGRAMS: usize = 3;
const LOADS: Duration = Duration::from_millis(20);

/// A child that was made.
struct Made {
    child: i32,
    at: u64,
    registers: Vec<Registers>,
    injector: Injector,
    /// Its process id as the process sees it.
    own_id: i64,
    /// Whether the process ran on before it was complete.
    late: bool,
    anonymous: Option<[u64; 2]>,
    /// Whether the process, if it was held, was so until memprof asked to release it.
    in_time: bool,
}

/// The stops of a process that is to be forked.
struct Forking {
    pid: Pid,
    /// The permitted time, and the part of it that making the child may take.
    max: Duration,
    for_making: Duration,
    /// Whether the process is held until memprof asks to release it.
    hold: bool,
    /// For how long it was stopped so far.
    stop: Duration,
    end: End,
}

/// Makes a child, and removes it once memprof asks for that or is gone.
pub(super) fn hold(pid: Pid, max: Duration, hold: bool) -> io::Result<End> {
    let mut forking = Forking {
        pid,
        max,
        for_making: max - FOR_REMOVAL.min(max / 4),
        hold,
        stop: Duration::ZERO,
        end: End::Holder,
    };
    let made = match forking.make() {
        Ok(made) => made,
        Err(reason) => {
            let stop = forking.stop.as_secs_f64();
            send(&mut Memprof, &Said::Failed { reason, stop })?;
            return Ok(forking.end);
        }
    };
    // It is removed also if nobody has an answer any more.
    let _ = forking.tell(&made);
    let before = forking.stop;
    let remains = forking.remove(made.child, made.own_id, made.injector);
    let stop = (forking.stop - before).as_secs_f64();
    // Also if memprof is gone.
    let _ = send(&mut Memprof, &Said::Ended { stop, remains });
    Ok(forking.end)
}

impl Forking {
    /// Tells memprof of the child, or that the process is not held any more, and waits until the child is to be removed.
    fn tell(&self, made: &Made) -> io::Result<()> {
        let stop = self.stop.as_secs_f64();
        if self.hold {
            if receive::<Asked>(&mut Memprof)? != Asked::Release {
                return Ok(());
            }
            let in_time = made.in_time;
            send(&mut Memprof, &Said::LetGo { stop, in_time })?;
        } else {
            send(&mut Memprof, &made.said(stop, Duration::ZERO))?;
        }
        receive::<Asked>(&mut Memprof).map(drop)
    }

    fn make(&mut self) -> Result<Made, String> {
        let mut watchdog = Watchdog::new()?;
        for left in (0..PROGRAMS).rev() {
            watchdog.set(PREPARATION);
            userfaults::check(self.pid)?;
            let injector = Injector::prepare(self.pid).map_err(CallError::NotReady);
            match injector.and_then(|it| self.try_make(it, &mut watchdog)) {
                Err(CallError::Changed | CallError::NotReady(_)) if left > 0 => sleep(LOADS),
                Err(e) => {
                    // It may come yet.
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

    fn try_make(&mut self, injector: Injector, watchdog: &mut Watchdog) -> Result<Made, CallError> {
        let left = self.for_making.saturating_sub(self.stop);
        let mut freezer = Freezer::new(left, None, watchdog);
        let done = match freezer.stop(&[self.pid]) {
            Ok(()) => {
                let (registers, at) = (freezer.tracees().registers(), now_ns());
                call(&mut freezer, &injector).map(|returned| (registers, at, returned))
            }
            Err(e) => Err(CallError::NotMade(e.to_string())),
        };
        let anonymous = counters::anonymous(self.pid);
        let made = done.and_then(|(registers, at, returned)| {
            let child = returned.child.ok_or_else(|| {
                let error = io::Error::from_raw_os_error(-(returned.value as i32));
                CallError::NotMade(format!("it could not be forked: {error}"))
            })?;
            Ok(Made {
                child,
                at,
                registers,
                injector,
                own_id: returned.value,
                late: returned.late,
                anonymous,
                in_time: true,
            })
        });
        let made = made.map(|made| match self.hold && !made.late {
            true => hold_beside(made, &freezer),
            false => made,
        });
        self.stop += freezer.release().duration;
        made
    }

    /// Says that the process ran on before the child was complete, so that this does not have its memory of one moment.
    fn too_late(&mut self, made: Made) -> String {
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

    /// Kills a child and has the process reap it. Returns what remains of it.
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

impl Made {
    fn said(&self, stop: f64, left: Duration) -> Said {
        Said::Forked {
            child: self.child,
            stop,
            left: left.as_secs_f64(),
            anonymous: self.anonymous,
            at: self.at,
            threads: self.registers.clone(),
        }
    }
}

/// Tells memprof of the child, and holds the process until memprof asks for something or the time is up.
fn hold_beside(made: Made, freezer: &Freezer<'_>) -> Made {
    let said = made.said(0.0, freezer.time_left());
    let in_time = send(&mut Memprof, &said).is_ok() && is_asked(freezer.time_left());
    Made { in_time, ..made }
}

/// Whether memprof asks for something, or is gone, within a time.
fn is_asked(within: Duration) -> bool {
    let mut polled = [PollFd::new(Memprof.as_fd(), PollFlags::POLLIN)];
    // No signal has a handler.
    matches!(ppoll(&mut polled, Some(TimeSpec::from(within)), None), Ok(ready) if ready > 0)
}

/// Kills a child, as its tracer: to signal another user's process would take CAP_KILL. Returns when it has ended.
fn end(child: i32) {
    let _ = ptrace::kill(NixPid::from_raw(child));
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    while unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } > 0
        && libc::WIFSTOPPED(status)
    {}
}

/// Has one of the stopped threads make a child.
fn call(freezer: &mut Freezer<'_>, injector: &Injector) -> Result<Returned, CallError> {
    /// No signal is sent when the child ends. Its files are the process's. Its working directory is not (CLONE_FS): as long as that
    /// is shared, a program with the set-user-ID bit gains no privileges, and the process cannot enter a mount namespace.
    const FLAGS: libc::c_int = libc::CLONE_FILES | libc::CLONE_IO | libc::CLONE_SYSVSEM;
    /// Stands for the child's id, of which no seccomp filter can know anything either.
    const UNKNOWN: i64 = i32::MAX as i64;
    let call = Call {
        number: libc::SYS_clone,
        args: [FLAGS.cast_unsigned().into(), Call::CHILD_STACK, 0, 0, 0, 0],
    };
    freezer.call(injector, &call, &reap::call(UNKNOWN))
}
