//! Processes that stand still for a bounded time.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::process::{signal, state};
use memprof_sys::freeze::{FreezeError, Frozen, Guard, guards_run};
use memprof_sys::ids::Pid;

pub fn guard() -> Guard {
    guards_run(crate::common::binary::MEMPROF.into());
    Guard::default()
}

pub fn sleeper() -> Child {
    // If the test fails, it runs on: it does not keep the output open.
    let mut sleep = Command::new("sleep");
    sleep.arg("600").stdout(Stdio::null()).stderr(Stdio::null());
    sleep.spawn().expect("sleep")
}

pub fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

pub fn freeze(guard: &mut Guard, pid: Pid) -> Result<Frozen<'_>, FreezeError> {
    Frozen::stop(guard, &[pid], Duration::from_secs(30))
}

pub fn wait_for(pid: Pid, wanted: char) {
    let start = Instant::now();
    while state(pid) != wanted {
        let late = start.elapsed() > Duration::from_secs(30);
        assert!(!late, "{:?}", state(pid));
        std::thread::yield_now();
    }
}

#[test]
fn a_process_stands_still_and_goes_on() {
    let mut guard = guard();
    let child = sleeper();
    let pid = Pid(child.id());
    let frozen = freeze(&mut guard, pid).unwrap();
    assert!(frozen.is_frozen() && frozen.deadline() > Instant::now());
    assert_eq!(state(pid), 't');
    let (stats, registers) = frozen.release();
    assert!(registers.is_empty());
    assert_eq!(stats.threads, 1);
    assert!(stats.duration > Duration::ZERO);
    assert!(!matches!(state(pid), 't' | 'T'));
    end(child);
}

/// The time limit works even if the rest of memprof does nothing.
#[test]
fn it_goes_on_when_the_time_is_up() {
    let mut guard = guard();
    let child = sleeper();
    let pid = Pid(child.id());
    let frozen = Frozen::stop(&mut guard, &[pid], Duration::from_millis(20)).unwrap();
    let deadline = frozen.deadline();
    wait_for(pid, 'S');
    assert!(Instant::now() >= deadline && !frozen.is_frozen());
    assert!(frozen.release().0.duration >= Duration::from_millis(19));
    // The process can be stopped again.
    let mut again = freeze(&mut guard, pid).unwrap();
    again.stop_more(&[pid]).unwrap();
    drop(again);
    end(child);
}

#[test]
fn there_is_no_time_for_it() {
    let mut guard = guard();
    let child = sleeper();
    let pid = Pid(child.id());
    let error = Frozen::stop(&mut guard, &[pid], Duration::ZERO).unwrap_err();
    assert!(
        error.timed_out && error.to_string().contains("of 1 threads had stopped"),
        "{error}"
    );
    // The kernel lets go of what had not stopped yet.
    wait_for(pid, 'S');
    drop(freeze(&mut guard, pid).unwrap());
    end(child);
}

#[test]
fn one_that_was_stopped_stays_so() {
    let mut guard = guard();
    let child = sleeper();
    let pid = Pid(child.id());
    signal(pid, libc::SIGSTOP);
    wait_for(pid, 'T');
    freeze(&mut guard, pid).unwrap().release();
    // The process returns to its group-stop without having run.
    wait_for(pid, 'T');
    end(child);
}

#[test]
fn one_that_is_gone_is_no_error() {
    let mut guard = guard();
    let mut child = sleeper();
    let pid = Pid(child.id());
    let _ = child.kill();
    // First a zombie.
    wait_for(pid, 'Z');
    assert!(freeze(&mut guard, pid).is_ok());
    let _ = child.wait();
    assert!(freeze(&mut guard, pid).is_ok());
}
