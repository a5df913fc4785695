//! Decides from the stack of a stopped thread whether the thread may call the loader. It must hold no lock that the
//! loader needs, or the allocator that the loader calls.

use super::functions::Known;
use super::loaded_files::FileRole;
use memprof_code::unwind::walk::Ended;
use memprof_sys::freeze::ThreadPosition;

/// Results of a system call that a stop interrupted while it waited: the kernel's restart codes (-512 to -516) and
/// `EINTR` (-4).
const INTERRUPTED: [i64; 5] = [-512, -513, -514, -516, -4];

/// System calls that wait for something other than a lock, with their names. Allocators and loaders make none of
/// them, except `futex` and `restart_syscall`.
const WAITS: [(i64, &str); 34] = [
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_poll, "poll"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_select, "select"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_pause, "pause"),
    (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_semop, "semop"),
    (libc::SYS_semtimedop, "semtimedop"),
    (libc::SYS_msgrcv, "msgrcv"),
    (libc::SYS_msgsnd, "msgsnd"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_restart_syscall, "restart_syscall"),
];

/// A frame of the thread's stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Role of the frame's file; `None` if no loaded file has code at this address.
    pub kind: Option<FileRole>,
    /// The frame's function, if it is one of the listed ones.
    pub function: Option<Known>,
    /// Whether the frame returns from a signal handler.
    pub is_signal: bool,
}

/// A safe point: the activity in which a thread may call the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SafePoint {
    /// The thread waits in this system call.
    Waits(&'static str),
    /// The thread runs code of the program or of a library.
    Runs,
}

/// Decides whether a thread with these frames, innermost first, may call the loader. `own_malloc` says that the
/// executable contains the allocator.
///
/// # Errors
/// The thread may not call the loader; the text says why.
pub(super) fn judge(
    state: &ThreadPosition,
    frames: &[Frame],
    ended: Ended,
    own_malloc: bool,
) -> Result<SafePoint, String> {
    for frame in frames {
        match (frame.kind, frame.function) {
            _ if frame.is_signal => return Err("handles a signal".to_owned()),
            (Some(FileRole::Loader), _) => return Err("is in the dynamic loader".to_owned()),
            (Some(FileRole::Allocator), _) => return Err("is in the allocator".to_owned()),
            (_, Some(Known::Unsafe(name))) => return Err(format!("is in `{name}`")),
            _ => {}
        }
    }
    if let Ended::Partial(reason) = ended {
        return Err(format!(
            "has a stack that memprof cannot follow to its end ({reason:?})"
        ));
    }
    let innermost = frames.first().and_then(|frame| frame.kind);
    if state.call >= 0 && INTERRUPTED.contains(&state.result) {
        let known = WAITS.iter().find(|(number, _)| *number == state.call);
        let Some((number, name)) = known else {
            return Err(format!("is in system call {}", state.call));
        };
        let may_be_lock = [libc::SYS_futex, libc::SYS_restart_syscall].contains(number);
        if may_be_lock && !waits_for_the_program(frames, own_malloc) {
            return Err("waits for a lock".to_owned());
        }
        return Ok(SafePoint::Waits(name));
    }
    match innermost {
        Some(FileRole::Program { is_executable }) if !(is_executable && own_malloc) => {
            Ok(SafePoint::Runs)
        }
        Some(FileRole::Program { .. }) => {
            Err("is in the program, which contains an allocator".to_owned())
        }
        _ => Err("is in the C library or the kernel".to_owned()),
    }
}

/// Whether a wait that may be for a lock is one that the program requested.
fn waits_for_the_program(frames: &[Frame], own_malloc: bool) -> bool {
    let in_libc = |frame: &&Frame| frame.kind == Some(FileRole::Libc);
    let mut called = frames.iter().take_while(in_libc).peekable();
    if called.peek().is_none() {
        // The program makes the system call itself.
        return !own_malloc;
    }
    called.any(|frame| match frame.function {
        Some(Known::Waits) => true,
        // An allocator inside the executable also locks with these functions.
        Some(Known::Locks) => !own_malloc,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memprof_code::unwind::walk::Reason;

    const PROGRAM: Frame = Frame {
        kind: Some(FileRole::Program {
            is_executable: true,
        }),
        function: None,
        is_signal: false,
    };

    fn libc(function: Option<Known>) -> Frame {
        Frame {
            kind: Some(FileRole::Libc),
            function,
            is_signal: false,
        }
    }

    fn state(call: i64, result: i64) -> ThreadPosition {
        ThreadPosition {
            ip: 0,
            sp: 0,
            fp: 0,
            bx: 0,
            call,
            result,
        }
    }

    fn place(state: &ThreadPosition, frames: &[Frame]) -> Result<SafePoint, String> {
        judge(state, frames, Ended::Complete, false)
    }

    #[test]
    fn waits_of_the_program_are_safe_and_locks_of_the_c_library_are_not() {
        let read = state(libc::SYS_read, -512);
        assert_eq!(
            place(&read, &[libc(None), PROGRAM]),
            Ok(SafePoint::Waits("read"))
        );
        let futex = state(libc::SYS_futex, -516);
        for (known, own_malloc, safe) in [
            (Some(Known::Waits), false, true),
            (Some(Known::Waits), true, true),
            (Some(Known::Locks), false, true),
            (Some(Known::Locks), true, false),
            (None, false, false),
        ] {
            let frames = [libc(None), libc(known), PROGRAM];
            let got = judge(&futex, &frames, Ended::Complete, own_malloc);
            assert_eq!(got.is_ok(), safe, "{known:?} {own_malloc}: {got:?}");
        }
        // A completed call no longer waits.
        assert!(place(&state(libc::SYS_read, 5), &[libc(None), PROGRAM]).is_err());
        assert!(place(&state(libc::SYS_mmap, -512), &[libc(None), PROGRAM]).is_err());
    }

    #[test]
    fn nothing_on_the_stack_may_be_the_allocator_the_loader_or_unknown() {
        let sleeping = state(libc::SYS_nanosleep, -516);
        let of = |kind| Frame {
            kind: Some(kind),
            ..PROGRAM
        };
        let handler = Frame {
            is_signal: true,
            ..libc(None)
        };
        for unsafe_one in [
            of(FileRole::Loader),
            of(FileRole::Allocator),
            libc(Some(Known::Unsafe("malloc"))),
            handler,
        ] {
            for frames in [
                [unsafe_one, PROGRAM, PROGRAM],
                [libc(None), PROGRAM, unsafe_one],
            ] {
                assert!(place(&sleeping, &frames).is_err(), "{frames:?}");
            }
        }
        let partial = Ended::Partial(Reason::NotCovered);
        assert!(judge(&sleeping, &[libc(None), PROGRAM], partial, false).is_err());
        assert!(judge(&sleeping, &[libc(None), PROGRAM], Ended::Complete, false).is_ok());
    }

    #[test]
    fn a_running_thread_must_be_in_the_program_itself() {
        let running = state(-1, 0);
        assert_eq!(place(&running, &[PROGRAM]), Ok(SafePoint::Runs));
        assert!(judge(&running, &[PROGRAM], Ended::Complete, true).is_err());
        assert!(place(&running, &[libc(None), PROGRAM]).is_err());
    }
}
