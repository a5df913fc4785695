//! Machines whose kernel reclaims pages although memory is free: DAMON's proactive reclaim.
//!
//! On such machines, a file page that a test has just written or read may be reclaimed at any moment, and
//! read again by the next process that needs it. Two successive readings of the page cache may then differ
//! although both are correct.

use std::fs;
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

const ATTEMPTS: u32 = 6;

/// Runs a test that compares page cache at several moments. If DAMON reclaims pages, a failed test is
/// retried: an error in memprof fails every time.
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

/// Whether a DAMON thread (kdamond) is running.
fn reclaims() -> bool {
    let threads = fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds");
    let states = threads.into_iter().flatten().flatten();
    let on = states.filter_map(|thread| fs::read_to_string(thread.path().join("state")).ok());
    let reclaim = fs::read_to_string("/sys/module/damon_reclaim/parameters/enabled");
    on.into_iter().any(|state| state.trim() == "on") || reclaim.is_ok_and(|is| is.trim() == "Y")
}
