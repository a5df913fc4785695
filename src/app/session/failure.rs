//! Failures with an exit status of their own.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

/// Exit status when the time of `--wait` has elapsed, like that of `timeout`.
pub(crate) const NOT_FOUND_IN_TIME: u8 = 124;

/// Why a session had nothing to profile.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command could not be executed: its name and the system's reason.
    #[error("cannot run `{0}`")]
    NotRun(String, #[source] io::Error),
    /// A signal arrived before the command ran.
    #[error("the command did not run: {0} came first")]
    NotStarted(Signal),
    /// A second signal arrived before there was a result.
    #[error("{0} came before there was a snapshot")]
    Interrupted(Signal),
    /// The awaited target did not appear in time.
    #[error("waited {} s for {what} (--wait): there is none", .wait.as_secs_f64())]
    NotFound {
        /// The awaited target.
        what: String,
        /// How long memprof waited.
        wait: Duration,
    },
}

impl Failure {
    /// The exit status, following the conventions of shells and of `timeout`.
    pub fn status(&self) -> u8 {
        match self {
            Failure::NotRun(_, e) => match e.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => 127,
                _ => 126,
            },
            Failure::NotStarted(signal) | Failure::Interrupted(signal) => {
                128 + *signal as i32 as u8
            }
            Failure::NotFound { .. } => NOT_FOUND_IN_TIME,
        }
    }
}

/// The exit status for a session's error: 1, unless the error is a [`Failure`].
pub fn exit_status(e: &anyhow::Error) -> u8 {
    e.downcast_ref().map_or(1, Failure::status)
}
