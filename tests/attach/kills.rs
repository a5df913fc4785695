//! memprof is killed at any moment: the process goes on, with the library or without it.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use crate::binary::MEMPROF;
use crate::common::process::{LIMIT, eventually};
use crate::common::random::Random;
use crate::common::witness::{unharmed, witness};
use crate::{attached, code_without_a_file, is_loaded, nothing_left, rounds};

#[test]
fn killing_memprof_harms_nobody() {
    let first = witness(2);
    let begun = Instant::now();
    attached(first.pid(), &[]);
    let usual = begun.elapsed();
    let mut random = Random(0x9e37_79b9);
    let mut loaded = 0;
    for _ in 0..rounds() * 4 {
        let mut workload = witness(2);
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
        // The thread may still be on its way back.
        eventually(LIMIT, "the loader's memory is removed", || {
            !code_without_a_file(pid)
        });
        nothing_left(pid);
        loaded += u32::from(is_loaded(pid));
        // It can be attached to afterwards.
        let again = crate::attach(pid, &[]);
        again.must(0, &[]);
        unharmed(&mut workload);
        workload.end();
    }
    println!("{loaded} of {} were attached to", rounds() * 4);
}
