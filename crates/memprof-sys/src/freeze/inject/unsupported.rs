//! On processors where memprof cannot make system calls in another process.

use std::time::Instant;

use super::watchdog::Watchdog;
use crate::ids::Pid;

/// A system call, which nothing here makes.
#[expect(dead_code)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub number: libc::c_long,
    pub args: [u64; 6],
}

impl Call {
    pub(super) const CHILD_STACK: u64 = 0;
}

/// What a call returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    pub value: i64,
    pub child: Option<i32>,
    pub signal: i32,
    pub late: bool,
}

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
#[expect(dead_code)]
pub(super) enum CallError {
    #[error("it has changed its code meanwhile")]
    Changed,
    #[error("{0}")]
    NotMade(String),
    /// It has not, or not yet, the code that is needed.
    #[error("{0}")]
    NotReady(String),
    #[error("{0}")]
    Waits(i32),
}

/// How long is waited for a call.
pub(super) struct Waiting;

impl Waiting {
    pub(super) fn new(_: Instant, _: &mut Watchdog, _: &mut dyn FnMut(i32)) -> Waiting {
        Waiting
    }
}

/// There is none.
#[derive(Debug)]
pub(super) enum Injector {}

impl Injector {
    pub(super) fn prepare(_: Pid) -> Result<Injector, String> {
        Err("memprof forks processes on x86-64 only".to_owned())
    }

    pub(super) fn call(
        &self,
        _: &[i32],
        _: &Call,
        _: Option<&Call>,
        _: &mut Waiting,
    ) -> Result<(i32, Returned), CallError> {
        match *self {}
    }
}
