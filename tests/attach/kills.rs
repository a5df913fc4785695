//! memprof is killed at any moment: the process goes on, with the library or without it.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::binary::MEMPROF;
use crate::common::random::Random;
use crate::common::workload::{Workload, program};
use crate::rounds::unharmed;
use crate::{attached, code_without_a_file, is_loaded, nothing_left, rounds};

#[test]
fn killing_memprof_harms_nobody() {
    let start = || Workload::start_with(&program("witness"), &["2"]);
    let first = start();
    let begun = Instant::now();
    attached(first.pid(), &[]);
    let usual = begun.elapsed();
    let mut random = Random(0x9e37_79b9);
    let (mut loaded, mut left) = (0, 0);
    for _ in 0..rounds() * 4 {
        let mut workload = start();
        unharmed(&mut workload);
        let pid = workload.pid();
        let mut memprof = Command::new(MEMPROF)
            .args(["attach-heap", "--yes", "--pid", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Most of the time, nothing is stopped yet.
        sleep(usual.mul_f64(0.3 + random.fraction()));
        let _ = memprof.kill();
        let _ = memprof.wait();
        unharmed(&mut workload);
        // The thread may still be on its way back. In the very moment in which it has mapped the memory, and memprof has not
        // seen that yet, the memory stays.
        let begun = Instant::now();
        while code_without_a_file(pid) && begun.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(2));
        }
        match code_without_a_file(pid) {
            true => left += 1,
            false => nothing_left(pid),
        }
        loaded += u32::from(is_loaded(pid));
        // It can be attached to afterwards.
        let again = crate::attach(pid, &[]);
        again.must(0, &[]);
        unharmed(&mut workload);
        workload.end();
    }
    println!("{loaded} of {} were attached to", rounds() * 4);
    assert!(left <= 1, "memory stayed {left} times");
}
