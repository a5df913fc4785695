//! Resource limits that by default kill this process with a signal.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

extern "C" fn go_on(_: libc::c_int) {}

/// Makes a write beyond the file size limit (`RLIMIT_FSIZE`) fail with `EFBIG` instead of killing this process with `SIGXFSZ`.
///
/// The signal gets a handler because `execve` resets handlers: the command that memprof starts has the default again. An ignored
/// signal would stay ignored.
pub fn survive_file_sizes() {
    let action = SigAction::new(
        SigHandler::Handler(go_on),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    let _ = unsafe { sigaction(Signal::SIGXFSZ, &action) };
}
