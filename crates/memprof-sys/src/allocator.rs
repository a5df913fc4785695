//! Limits how much freed memory the C library's allocator retains.
//!
//! A large reply takes tens of MiB for a moment. By default, glibc creates an arena for each thread that ever
//! waited for another one, and raises the size from which it uses `mmap`: freed memory then lies between small
//! blocks in use and stays resident. 1,000 large replies left 2.3 GiB like that.

/// Size in bytes from which blocks are mapped separately, and unmapped when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 1 << 20;

/// Maximum of free bytes kept at the end of an arena.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 16 << 20;

/// Number of arenas: one for the threads that wait for each other anyway, and one more.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Makes the allocator return freed memory to the kernel. Call it before any thread is started.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, MAPPED),
        (libc::M_TRIM_THRESHOLD, KEPT),
    ] {
        // SAFETY: the call takes two numbers and changes the allocator's settings under its own lock. A refused
        // setting stays unchanged.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free memory to the kernel, including memory between blocks in use. Takes milliseconds: call it after
/// large work.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number and only touches the allocator's free memory, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
