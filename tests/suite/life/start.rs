//! How long memprof takes to start and to end around a command. `benches/start.rs` measures it.
//!
//! The aims are 250 ms until the command runs and 150 ms from its end to memprof's. The test allows six times as long
//! for the median, because memprof is a debug build and first builds the command's unwind tables; and more if other
//! programs use the CPUs at the same time. It prints the measured times.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::resource::{UsageWho, getrusage};

use crate::common::memprof::run;

const READY: Duration = Duration::from_millis(250);
const END: Duration = Duration::from_millis(150);
const SHARED: u32 = 6;
const RUNS: usize = 7;
const THIRTY: Duration = Duration::from_millis(30);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time that this thread needs to get 30 ms of CPU time.
fn thirty_ms() -> Duration {
    let cpu_time = || {
        let used = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        let micros = |t: nix::sys::time::TimeVal| (t.tv_sec() * 1_000_000 + t.tv_usec()) as u64;
        Duration::from_micros(micros(used.user_time()) + micros(used.system_time()))
    };
    let (began, began_cpu) = (Instant::now(), cpu_time());
    while cpu_time() - began_cpu < THIRTY {}
    began.elapsed()
}

#[test]
fn a_short_command_is_not_held_up() {
    let (mut ready, mut end, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        waits.push(thirty_ms());
        let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let started = now();
        let out = run(&["--no-server", "--", "date", "+%s%N"]);
        let ended = now();
        assert!(out.status.success(), "{out:?}");
        let ran = String::from_utf8(out.stdout).unwrap();
        let ran = Duration::from_nanos(ran.trim().parse().unwrap());
        ready.push(ran - started);
        end.push(ended - ran);
    }
    println!("the command ran after {ready:.2?}, memprof ended {end:.2?} after that");
    let (ready, end) = (median(ready), median(end));
    let shared = f64::from(SHARED) * median(waits).div_duration_f64(THIRTY);
    println!("let pass: {shared:.1} times the aims");
    assert!(
        ready <= READY.mul_f64(shared) && end <= END.mul_f64(shared),
        "the command ran {ready:.2?} after memprof's start (aim: {READY:?}), memprof ended {end:.2?} \
         after the command (aim: {END:?})"
    );
}
