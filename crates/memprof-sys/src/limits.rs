//! Limits of this process that end it without a word, unless it sees to it.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

extern "C" fn go_on(_: libc::c_int) {}

/// Has a write beyond the limit of file sizes fail (`EFBIG`), instead of a signal end this process. A command that it executes
/// has the default again: a handler does not outlive `exec`, as an ignored signal would.
pub fn survive_file_sizes() {
    let action = SigAction::new(
        SigHandler::Handler(go_on),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing.
    let _ = unsafe { sigaction(Signal::SIGXFSZ, &action) };
}
