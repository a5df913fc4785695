//! The moment at which a heap snapshot of a command is taken.

use std::time::Duration;

use memprof_sys::freeze::Registers;

/// When something is done with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// This long after it has executed its program; if it ends before, at its end.
    After(Duration),
    /// At its end.
    End,
}

/// A command at the moment that was asked for.
#[derive(Debug)]
pub enum Moment {
    /// It runs.
    Running,
    /// It is about to exit, and stopped: the registers of its last thread unless it was killed. The others have ended.
    Exiting(Option<Registers>),
}
