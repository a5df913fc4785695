//! The moment at which a heap snapshot of a command is taken.

use std::time::Duration;

use memprof_sys::freeze::Registers;

/// The requested moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// This long after the command's `execve`, or at its exit if it exits earlier.
    After(Duration),
    /// At the command's exit.
    End,
}

/// The state of a command at the requested moment.
#[derive(Debug)]
pub enum Moment {
    /// The command runs.
    Running,
    /// Stopped at exit. Holds the registers of the last thread, unless it was killed. All other threads have ended.
    Exiting(Option<Registers>),
}
