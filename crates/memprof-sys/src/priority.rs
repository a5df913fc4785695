//! Thread priorities on a busy machine.
//!
//! If hundreds of processes compute, one more gets a hundredth of a processor: memprof would take minutes to
//! start, and would lose events that wait in the ring buffer meanwhile. So the threads that start memprof and
//! read events run at a higher priority; their work is short. Long work (tables, names, replies) and the
//! command that memprof starts run at the priority that memprof was given.

use std::sync::OnceLock;

/// How much higher, in `nice` steps.
const STEPS: i32 = 10;
const HIGHEST: i32 = -20;

/// The priority that memprof was started with.
static GIVEN: OnceLock<i32> = OnceLock::new();

/// Raises the priority of the calling thread and of the threads that it starts. Without `CAP_SYS_NICE` it stays
/// unchanged.
pub fn raise() {
    // SAFETY: the call takes no pointers; 0 is the calling thread.
    let given = *GIVEN.get_or_init(|| unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
    set((given - STEPS).max(HIGHEST));
}

/// Resets the calling thread to the priority that memprof was started with. Async-signal-safe.
pub fn restore() {
    if let Some(given) = GIVEN.get() {
        set(*given);
    }
}

fn set(nice: i32) {
    // SAFETY: the call takes no pointers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
