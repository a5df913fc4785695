//! Processes that are held beside their copy-on-write child.

use std::thread::sleep;
use std::time::Duration;

use crate::common::process::{signal, state};
use crate::freeze::frozen::{end, freeze, guard, sleeper, wait_for};
use memprof_sys::freeze::{Fork, Frozen, Guard};
use memprof_sys::ids::Pid;

const LONG: Duration = Duration::from_secs(30);
/// Longer than the guard may go without a sign of life.
const SOME: Duration = Duration::from_secs(1);

fn hold(guard: &mut Guard, pid: Pid, max: Duration) -> Fork<'_> {
    let fork = Fork::start(guard, pid, max, true).unwrap();
    assert_eq!(state(fork.child), 't');
    fork
}

#[test]
fn one_is_held_until_it_is_released() {
    let (mut guard, mut other, child) = (guard(), guard(), sleeper());
    let pid = Pid(child.id());
    let mut fork = hold(&mut guard, pid, LONG);
    sleep(SOME);
    assert_eq!(state(pid), 't');
    let refused = Frozen::stop(&mut other, &[pid], Duration::from_millis(10)).unwrap_err();
    assert!(refused.to_string().contains("something else"), "{refused}");
    assert!(fork.release() && fork.stop >= SOME && fork.stop < LONG);
    wait_for(pid, 'S');
    freeze(&mut other, pid).unwrap().release();
    assert_eq!(fork.end().remains, None);
    end(child);
}

/// The guard keeps the time, whatever memprof does.
#[test]
fn one_goes_on_when_the_time_is_up() {
    let (mut guard, child) = (guard(), sleeper());
    let pid = Pid(child.id());
    let max = Duration::from_millis(800);
    let mut fork = hold(&mut guard, pid, max);
    wait_for(pid, 'S');
    assert!(!fork.release() && fork.stop >= max / 2);
    assert_eq!(fork.end().remains, None);
    end(child);
}

#[test]
fn one_goes_on_with_the_end_of_its_child() {
    let (mut guard, child) = (guard(), sleeper());
    let pid = Pid(child.id());
    drop(hold(&mut guard, pid, LONG));
    wait_for(pid, 'S');
    // The guard serves on.
    assert_eq!(hold(&mut guard, pid, LONG).end().remains, None);
    end(child);
}

/// The kernel lets it go, and memprof counts its stop.
#[test]
fn one_goes_on_if_its_holder_is_killed() {
    let (mut guard, child) = (guard(), sleeper());
    let pid = Pid(child.id());
    guard.start().unwrap();
    let of = guard.pid().unwrap();
    let mut fork = hold(&mut guard, pid, LONG);
    let holders = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    for holder in holders.split_whitespace() {
        signal(Pid(holder.parse().unwrap()), libc::SIGKILL);
    }
    wait_for(pid, 'S');
    assert!(!fork.release() && fork.stop > Duration::ZERO);
    drop(fork);
    assert_eq!(hold(&mut guard, pid, LONG).end().remains, None);
    end(child);
}
