//! Why the kernel's page tables could not be read.

use std::io;

use crate::event::Pid;

/// The remedy for lacking access to another user's process.
const LOOKING: &str = "run memprof as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (`memprof doctor` \
                       shows what is missing)";

/// A failure of reading a process's memory state.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has ended, has no memory of its own (a zombie, a kernel thread), or replaced its
    /// address space by `exec` during the read.
    #[error("process {0} has ended, or has no user memory")]
    Gone(Pid),
    /// The kernel refused; `what` names the file or call.
    #[error("cannot read {what}: permission denied; {remedy}")]
    Denied {
        /// The file or system call.
        what: String,
        /// What would permit it.
        remedy: &'static str,
    },
    /// This kernel does not support `what`.
    #[error("this kernel does not support {what}")]
    Unsupported {
        /// The system call or request, with the kernel version that introduced it.
        what: &'static str,
    },
    /// The time limit passed before the scan was complete.
    #[error("the time limit was reached before process {0} was scanned")]
    TimeUp(Pid),
    /// A file under `/proc` has a line that does not match the documented format.
    #[error("cannot parse a line of {what}: {line:?}")]
    Malformed {
        /// The file.
        what: String,
        /// The line, cut to 200 characters.
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

impl Error {
    /// Converts an operating system error from accessing `what` of process `pid`.
    pub(crate) fn from_io(pid: Pid, what: impl Into<String>, source: io::Error) -> Error {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Error::Gone(pid),
            Some(libc::EACCES | libc::EPERM) => Error::Denied {
                what,
                remedy: LOOKING,
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
}
