//! memprof is killed at any moment: the process goes on, with the library or without it.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::attach::{Before, attached, code_without_a_file, is_loaded, nothing_left, rounds};
use crate::common::binary::MEMPROF;
use crate::common::process::{LIMIT, eventually};
use crate::common::random::Random;
use crate::common::sentinel::{sentinel, unharmed};

#[test]
fn killing_memprof_harms_nobody() {
    let first = sentinel(2);
    let begun = Instant::now();
    attached(first.pid(), &[]);
    let usual = begun.elapsed();
    let mut random = Random(0x9e37_79b9);
    let (mut loaded, mut caught) = (0, 0);
    for n in 0..rounds() * 4 {
        let mut workload = sentinel(2);
        unharmed(&mut workload);
        let pid = workload.pid();
        let before = Before::read(pid);
        let mut memprof = Command::new(MEMPROF)
            .args(["attach-heap", "--yes", "--pid", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At any moment, which is mostly before anything is stopped, or once the thread has memory for the loader.
        if n % 2 == 0 {
            sleep(usual.mul_f64(0.3 + random.fraction()));
        } else {
            before_others(true);
            let mut has_memory = false;
            while !has_memory && memprof.try_wait().unwrap().is_none() {
                sleep(Duration::from_micros(20));
                has_memory = code_without_a_file(pid);
            }
            caught += u32::from(has_memory);
            // (To sleep takes longer than that.)
            let later = Instant::now() + Duration::from_micros(random.below(500));
            while Instant::now() < later {}
        }
        let _ = memprof.kill();
        before_others(false);
        let _ = memprof.wait();
        unharmed(&mut workload);
        // The thread may still be on its way back.
        eventually(LIMIT, "the loader's memory is removed", || {
            !code_without_a_file(pid)
        });
        nothing_left(pid);
        before.nothing_new();
        loaded += u32::from(is_loaded(pid));
        // It can be attached to afterwards.
        let again = crate::attach::attach(pid, &[]);
        again.must(0, &[]);
        before.nothing_new();
        unharmed(&mut workload);
        workload.end();
    }
    println!(
        "of {} that were killed, {caught} had given the thread memory, and {loaded} have attached",
        rounds() * 4
    );
}

/// Whether this thread runs before others on a busy machine, as memprof's own does while it holds a thread.
fn before_others(yes: bool) {
    let nice = if yes { -20 } else { 0 };
    // SAFETY: takes no addresses; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
