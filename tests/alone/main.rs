//! Tests that measure this process, or memprof while nothing else runs: they take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../../fuzz/check.rs"]
mod check;
#[path = "../common/mod.rs"]
mod common;

mod crowds;
mod debug_memory;
mod estimates;
mod fuzz_smoke;
mod http_limits;
mod http_memory;
mod kernel_memory;
mod residency;

/// Every test here holds this while it runs. A test that failed leaves the turn to the next.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
