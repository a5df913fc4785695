use super::freezer::nix_pid;
use super::*;
use nix::sys::signal::{Signal, kill};
use std::process::{Child, Command};
use std::thread;

fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().expect("sleep")
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn state(pid: Pid) -> Option<char> {
    threads::state(pid.0.cast_signed())
}

fn freeze(pid: Pid) -> Result<Frozen, FreezeError> {
    Frozen::stop(&[pid], Duration::from_secs(30))
}

fn wait_for(pid: Pid, wanted: char) {
    let start = Instant::now();
    while state(pid) != Some(wanted) {
        let late = start.elapsed() > Duration::from_secs(30);
        assert!(!late, "{:?}", state(pid));
        thread::yield_now();
    }
}

#[test]
fn a_process_stands_still_and_goes_on() {
    let child = sleeper();
    let pid = Pid(child.id());
    let frozen = freeze(pid).unwrap();
    assert!(frozen.is_frozen() && frozen.deadline() > Instant::now());
    assert_eq!(state(pid), Some('t'));
    let stats = frozen.release();
    assert_eq!(stats.threads, 1);
    assert!(stats.duration > Duration::ZERO);
    assert!(!matches!(state(pid), Some('t' | 'T')));
    end(child);
}

/// The time limit works even if the rest of memprof does nothing.
#[test]
fn it_goes_on_when_the_time_is_up() {
    let child = sleeper();
    let pid = Pid(child.id());
    let frozen = Frozen::stop(&[pid], Duration::from_millis(20)).unwrap();
    let deadline = frozen.deadline();
    wait_for(pid, 'S');
    assert!(Instant::now() >= deadline && !frozen.is_frozen());
    assert!(frozen.release().duration >= Duration::from_millis(19));
    // The process can be stopped again.
    let mut again = freeze(pid).unwrap();
    again.stop_more(vec![pid]).unwrap();
    drop(again);
    end(child);
}

#[test]
fn there_is_no_time_for_it() {
    let child = sleeper();
    let pid = Pid(child.id());
    let error = Frozen::stop(&[pid], Duration::ZERO).unwrap_err();
    assert!(
        error.timed_out && error.to_string().contains("of 1 threads had stopped"),
        "{error}"
    );
    assert!(!matches!(state(pid), Some('t' | 'T')));
    drop(freeze(pid).unwrap());
    end(child);
}

#[test]
fn one_that_was_stopped_stays_so() {
    let child = sleeper();
    let pid = Pid(child.id());
    kill(nix_pid(pid), Signal::SIGSTOP).unwrap();
    wait_for(pid, 'T');
    freeze(pid).unwrap().release();
    // The process returns to its group-stop without having run.
    wait_for(pid, 'T');
    end(child);
}

#[test]
fn one_that_is_gone_is_no_error() {
    let mut child = sleeper();
    let pid = Pid(child.id());
    let _ = child.kill();
    // First a zombie.
    wait_for(pid, 'Z');
    assert!(freeze(pid).is_ok());
    let _ = child.wait();
    assert!(freeze(pid).is_ok());
}
