//! Tests that measure this process, or that need a quiet machine. Those of the first kind run one at a time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

static RUNNING: RwLock<()> = RwLock::new(());

/// Held by a test that measures this process or needs the processors: no other runs meanwhile. A test that failed leaves it
/// to the next.
fn alone() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by every other test.
fn beside_others() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}
