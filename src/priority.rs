//! Which threads of memprof come first on a busy machine.
//!
//! Where hundreds of processes compute, one more of them gets a hundredth of a processor: memprof would take minutes
//! to start, and lose events that wait in the ring buffer meanwhile. So what starts memprof and what reads events
//! runs at a higher priority; its work is short. What may take long, tables, names and replies, and the command that
//! memprof starts, runs at the priority that memprof was given.

use std::sync::OnceLock;

/// How much higher, in steps of `nice`.
const STEPS: i32 = 10;
const HIGHEST: i32 = -20;

/// The priority that memprof was started with.
static GIVEN: OnceLock<i32> = OnceLock::new();

/// Raises the calling thread's priority, and that of the threads that it starts. Without the right to do so
/// (`CAP_SYS_NICE`) it stays as it is.
pub fn raise() {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let given = *GIVEN.get_or_init(|| unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    set((given - STEPS).max(HIGHEST));
}

/// Gives the calling thread back the priority that memprof was started with. Async-signal-safe.
pub fn restore() {
    if let Some(given) = GIVEN.get() {
        set(*given);
    }
}

fn set(nice: i32) {
    // SAFETY: no memory is involved; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
