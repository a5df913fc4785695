//! What the C library's allocator keeps of memory that was freed.
//!
//! A large reply takes tens of MiB for a moment. Left alone, glibc has an arena for each thread that
//! ever waited for another one, and grows the size up to which it does not ask the kernel: what was freed
//! then lies between small blocks that are in use, and stays. 1,000 large replies left 2.3 GiB like that.

/// Blocks of at least so many bytes are mapped on their own, and given back when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 1 << 20;

/// So many bytes at the end of an arena are kept, at most.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 16 << 20;

/// Arenas: one for the threads that wait for each other anyway, one more.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Has freed memory go back to the kernel. To be called before there are threads.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, MAPPED),
        (libc::M_TRIM_THRESHOLD, KEPT),
    ] {
        // SAFETY: it takes two numbers and changes the allocator's settings under its own lock. What it
        // refuses stays as it was.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives free memory back to the kernel, also what lies between blocks in use. Takes milliseconds: for
/// the end of large work.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and touches nothing but free memory of the allocator, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
