//! Threads that are blocked in the kernel when memprof wants to stop them, and processes that execute another program meanwhile.

use serde_json::Value;

use crate::common::binary::memprof;
use crate::common::skip::skip;
use crate::freeze::states::Subject;

/// Snapshots of it by way of a child, each with its stops, or why there is none.
fn snapshots(subject: &Subject, max_stop: f64, count: usize) -> usize {
    let (pid, max) = (subject.pid().to_string(), max_stop.to_string());
    let mut taken = 0;
    for _ in 0..count {
        let fork = ["heap", "--snapshot", "fork", "--format", "json"];
        let ended = memprof(&[&fork[..], &["--max-stop", &max, "--pid", &pid]].concat());
        crate::common::binary::no_panic(&ended.stderr);
        if ended.status.success() {
            let heap: Value = serde_json::from_str(&ended.stdout).unwrap();
            let of = |name: &str| heap["taken"][name].as_f64().unwrap();
            let (first, second, all) = (of("stop_ms"), of("second_stop_ms"), of("stops_ms"));
            assert!(
                all >= first + second - 1e-6 && all <= max_stop,
                "{}",
                heap["taken"]
            );
            assert_eq!(heap["taken"]["remains"], Value::Null);
            taken += 1;
        }
        // Where the machine had no processor for the guard, a child may go a moment later.
        subject.is_unharmed();
    }
    taken
}

/// Whoever waits in `vfork` stops only when the child is done. It must not stay stopped then, for whatever it was to be stopped.
#[test]
fn one_in_vfork_does_not_stay_stopped() {
    let subject = Subject::start("vfork").unwrap();
    assert!(snapshots(&subject, 5000.0, 5) > 0);
    let longest = subject.beats().longest;
    assert!(longest.as_secs() < 10, "{longest:?}");
}

#[test]
fn one_that_waits_for_a_file_server_does_not_stay_stopped() {
    let subject = match Subject::start("disk") {
        Ok(subject) => subject,
        Err(why) => return skip(format!("no FUSE: {why}")),
    };
    assert!(snapshots(&subject, 5000.0, 5) > 0);
    let longest = subject.beats().longest;
    assert!(longest.as_secs() < 10, "{longest:?}");
}

/// The child is reaped by the code of the next program.
#[test]
fn one_that_executes_a_program_meanwhile_keeps_no_child() {
    let subject = Subject::start("exec").unwrap();
    assert!(snapshots(&subject, 5000.0, 8) > 0);
}
