//! How long memprof takes to start and to end around a command. `benches/start.rs` measures it.
//!
//! The aims are 250 ms until the command runs and 150 ms from its end to memprof's. Tests share their machine,
//! and memprof, which makes the tables of the command first, is not optimised here: six times as long is let pass,
//! by the median; the figures are printed.

use std::time::{Duration, SystemTime};

use crate::common::memprof::run;

const READY: Duration = Duration::from_millis(250);
const END: Duration = Duration::from_millis(150);
const SHARED: u32 = 6;
const RUNS: usize = 7;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_short_command_is_not_held_up() {
    let (mut ready, mut end) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
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
    assert!(
        ready <= READY * SHARED && end <= END * SHARED,
        "the command ran {ready:.2?} after memprof's start (aim: {READY:?}), memprof ended {end:.2?} \
         after the command (aim: {END:?})"
    );
}
