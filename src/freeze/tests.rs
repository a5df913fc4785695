use super::holder::nix_pid;
use super::*;
use nix::sys::signal::{Signal, kill};
use std::process::{Child, Command};

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

fn hold_still(pid: Pid) -> Result<Frozen, NotHeld> {
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
    let frozen = hold_still(pid).unwrap();
    assert!(frozen.is_held() && frozen.until() > Instant::now());
    assert_eq!(state(pid), Some('t'));
    let stood = frozen.release();
    assert_eq!(stood.threads, 1);
    assert!(stood.lasted > Duration::ZERO);
    assert!(!matches!(state(pid), Some('t' | 'T')));
    end(child);
}

/// The time limit works even if the rest of memprof does nothing.
#[test]
fn it_goes_on_when_the_time_is_up() {
    let child = sleeper();
    let pid = Pid(child.id());
    let frozen = Frozen::stop(&[pid], Duration::from_millis(20)).unwrap();
    let until = frozen.until();
    wait_for(pid, 'S');
    assert!(Instant::now() >= until && !frozen.is_held());
    assert!(frozen.release().lasted >= Duration::from_millis(19));
    // The process can be stopped again.
    let mut again = hold_still(pid).unwrap();
    again.stop_more(vec![pid]).unwrap();
    drop(again);
    end(child);
}

#[test]
fn there_is_no_time_for_it() {
    let child = sleeper();
    let pid = Pid(child.id());
    let why = Frozen::stop(&[pid], Duration::ZERO).unwrap_err();
    assert!(
        why.late && why.to_string().contains("of 1 threads had stopped"),
        "{why}"
    );
    assert!(!matches!(state(pid), Some('t' | 'T')));
    drop(hold_still(pid).unwrap());
    end(child);
}

#[test]
fn one_that_was_stopped_stays_so() {
    let child = sleeper();
    let pid = Pid(child.id());
    kill(nix_pid(pid), Signal::SIGSTOP).unwrap();
    wait_for(pid, 'T');
    hold_still(pid).unwrap().release();
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
    assert!(hold_still(pid).is_ok());
    let _ = child.wait();
    assert!(hold_still(pid).is_ok());
}
