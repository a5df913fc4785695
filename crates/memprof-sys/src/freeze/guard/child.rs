//! Makes a copy-on-write child of a process, and holds it.
//!
//! A child never runs. It shares the process's open files, so that a file that the process closes is closed; it sends no signal when it
//! ends; the kernel kills it if its holder ends, and takes it first if memory runs out.

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
    anonymous: Option<[u64; 2]>,
    injector: Injector,
    /// Its process id as the process sees it.
    own_id: i64,
    /// Whether the process ran on before it was complete.
    late: bool,
    /// Whether memprof has asked to let the process go that was held.
    let_go: bool,
}

/// The stops of a process that is to be forked.
struct Forking {
    pid: Pid,
    /// The permitted time, and the part of it that making the child may take.
    max: Duration,
    for_making: Duration,
    /// For whom it is held once the child exists, if it is to be.
    holds_for: Option<Pid>,
    /// For how long it was stopped so far.
    stop: Duration,
    end: End,
}

/// Makes a child, and removes it once memprof asks for that or is gone.
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
    // It is removed also if nobody has an answer any more.
    let _ = told.and_then(|()| receive::<Asked>(&mut Memprof));
    let before = forking.stop;
    let remains = forking.remove(made.child, made.own_id, made.injector);
    let stop = (forking.stop - before).as_secs_f64();
    // Also if memprof is gone.
    let _ = send(&mut Memprof, &Said::Ended { stop, remains });
    Ok(forking.end)
}

impl Forking {
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
        let mut done = match freezer.stop(&[self.pid]) {
            Ok(()) => {
                let (registers, at) = (freezer.tracees().registers(), now_ns());
                call(&mut freezer, &injector)
                    .and_then(|returned| Made::of(self.pid, injector, registers, at, returned))
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

    /// Tells that the process which was held runs, once memprof asks for that.
    fn tell_let_go(&self, made: &Made) -> io::Result<()> {
        if !made.let_go {
            receive::<Asked>(&mut Memprof)?;
        }
        let (stop, in_time) = (self.stop.as_secs_f64(), made.let_go);
        send(&mut Memprof, &Said::LetGo { stop, in_time })
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
    /// What came of the call, while the process is stopped.
    fn of(
        pid: Pid,
        injector: Injector,
        registers: Vec<Registers>,
        at: u64,
        returned: Returned,
    ) -> Result<Made, CallError> {
        let child = returned.child.ok_or_else(|| {
            let error = io::Error::from_raw_os_error(-(returned.value as i32));
            CallError::NotMade(format!("it could not be forked: {error}"))
        })?;
        Ok(Made {
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

    /// What memprof is told of it.
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
