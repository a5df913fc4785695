//! On processors where memprof cannot make system calls in another process.

use crate::event::Pid;

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
    ) -> Result<(i32, Returned), String> {
        match *self {}
    }
}
