//! Errors of reading a process's memory state from the kernel.

use std::io;

use crate::ids::Pid;
use crate::{mmap_lock, procfs};

/// The remedy if capabilities for reading another user's process are missing.
const LOOKING: &str = "run memprof as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (`memprof doctor` \
                       shows what is missing)";
/// The remedy if the capabilities are present.
pub const PROTECTED: &str = "memprof has the capabilities for that, so a security module, a user namespace or a \
                                    sandbox protects the process: run memprof on the host, outside of containers and \
                                    sandboxes, or choose another process";
/// `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`.
const SUFFICIENT: u64 = 1 << 19 | 1 << 2;

/// An error while reading a process's memory state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has ended, has no memory of its own (a zombie, a kernel thread), or replaced its address space with `execve`
    /// during the read.
    #[error("process {0} has ended, or has no user memory")]
    Gone(Pid),
    /// The kernel refused access.
    #[error("cannot read {what}: {reason}; {remedy}")]
    Denied {
        /// The file or system call.
        what: String,
        /// The kernel's error.
        reason: &'static str,
        /// An action that would permit the access.
        remedy: &'static str,
    },
    /// This kernel does not support `what`.
    #[error("this kernel does not support {what}")]
    Unsupported {
        /// The system call or request, with the kernel version that introduced it.
        what: &'static str,
    },
    /// Reading the process would wait for its mmap lock.
    #[error(
        "the mmap lock of process {0} is held, so that reading it would wait: probably it waits for a disk or for a file \
         server. memprof tries again with each report"
    )]
    Held(Pid),
    /// The time limit was reached before the scan was complete.
    #[error("the time limit was reached before process {0} was scanned")]
    TimeUp(Pid),
    /// A file under `/proc` has a line that does not match the documented format.
    #[error("cannot parse a line of {what}: {line:?}")]
    Malformed {
        /// The file.
        what: String,
        /// The line, truncated to 200 characters.
        line: String,
    },
    /// Any other failure of a system call.
    #[error("cannot read {what}: {source}")]
    Io {
        /// The file or system call.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The result of reading a process's memory state.
pub type Result<T> = std::result::Result<T, Error>;

/// Checks that a process's memory can be read now.
///
/// # Errors
/// [`Error::Held`] if its mmap lock is held.
pub fn readable(pid: Pid) -> Result<()> {
    match mmap_lock::is_held(pid) {
        true => Err(Error::Held(pid)),
        false => Ok(()),
    }
}

impl Error {
    /// Converts an operating system error from accessing `what` of process `pid`.
    pub(crate) fn from_io(pid: Pid, what: impl Into<String>, source: io::Error) -> Error {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Error::Gone(pid),
            Some(errno @ (libc::EACCES | libc::EPERM)) => Error::Denied {
                what,
                reason: denial(errno),
                remedy: match has_capabilities(SUFFICIENT) {
                    true => PROTECTED,
                    false => LOOKING,
                },
            },
            _ => Error::Io { what, source },
        }
    }

    /// The error for a line of `what` that could not be parsed.
    pub(crate) fn malformed(what: impl Into<String>, line: &[u8]) -> Error {
        let line = String::from_utf8_lossy(line).chars().take(200).collect();
        Error::Malformed {
            what: what.into(),
            line,
        }
    }

    /// Whether the error is `Gone`.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Gone(_))
    }

    /// Whether a failure is [`Error::Held`].
    pub fn is_held(failure: &anyhow::Error) -> bool {
        matches!(failure.downcast_ref(), Some(Error::Held(_)))
    }

    /// Whether a failure is [`Error::TimeUp`].
    pub fn is_time_up(failure: &anyhow::Error) -> bool {
        matches!(failure.downcast_ref(), Some(Error::TimeUp(_)))
    }
}

/// The text of `EACCES` or `EPERM`.
pub fn denial(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "operation not permitted (EPERM)",
        _ => "permission denied (EACCES)",
    }
}

/// Whether this thread has all of these capabilities, given as a bit mask.
pub fn has_capabilities(sufficient: u64) -> bool {
    procfs::effective_capabilities() & sufficient == sufficient
}
