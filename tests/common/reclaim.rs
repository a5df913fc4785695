//! Machines whose kernel takes pages away though memory is free: DAMON's proactive reclaim.
//!
//! A page of a file that a test has just written or read may then be gone at any moment, and be read again
//! by the next process that needs it. Two readings of the page cache, one after the other, may then differ
//! though both are right.

use std::fs;
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

const ATTEMPTS: u32 = 6;

/// Runs a test that compares page cache at several moments. Where the kernel reclaims pages on its own, a
/// failed attempt is made again: what is wrong in memprof fails each time.
pub fn undisturbed(test: impl Fn() + UnwindSafe + Copy) {
    for attempt in 1.. {
        let Err(panic) = catch_unwind(test) else {
            return;
        };
        if attempt == ATTEMPTS || !reclaims() {
            resume_unwind(panic);
        }
        println!("attempt {attempt} failed while DAMON reclaims pages: once more");
    }
}

/// Whether a thread of DAMON runs.
fn reclaims() -> bool {
    let threads = fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds");
    let states = threads.into_iter().flatten().flatten();
    let on = states.filter_map(|thread| fs::read_to_string(thread.path().join("state")).ok());
    let reclaim = fs::read_to_string("/sys/module/damon_reclaim/parameters/enabled");
    on.into_iter().any(|state| state.trim() == "on") || reclaim.is_ok_and(|is| is.trim() == "Y")
}
