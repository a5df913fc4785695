//! Failures with an exit status of their own.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;

/// Exit status if the time of `--wait` is over, as that of `timeout`.
pub(crate) const NOT_FOUND_IN_TIME: u8 = 124;

/// Why a session had nothing to profile.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command could not be executed: its name, and the system's reason.
    #[error("cannot run `{0}`")]
    NotRun(String, #[source] io::Error),
    /// A signal came before the command ran.
    #[error("the command did not run: {0} came first")]
    NotStarted(Signal),
    /// A second signal came before there was a result.
    #[error("{0} came before there was a snapshot")]
    Interrupted(Signal),
    /// What memprof waited for did not come in time.
    #[error("waited {} s for {what} (--wait): there is none", .wait.as_secs_f64())]
    NotFound {
        /// What it waited for.
        what: String,
        /// For how long.
        wait: Duration,
    },
}

impl Failure {
    /// The exit status, by the conventions of shells and of `timeout`.
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

/// The exit status for an error of a session: 1, unless it has one of its own.
pub fn exit_status(e: &anyhow::Error) -> u8 {
    e.downcast_ref().map_or(1, Failure::status)
}
