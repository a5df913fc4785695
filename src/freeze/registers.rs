//! The registers of a stopped thread.

/// A thread's registers, as the kernel saved them when it stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The thread's id.
    pub tid: i32,
    /// The general registers, in the kernel's order (`struct user_regs_struct`).
    pub words: Vec<u64>,
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The thread pointer, which thread-local variables are relative to.
    pub thread_pointer: u64,
}

/// Room for the general registers of any processor that Linux runs on.
const WORDS: usize = 64;

/// Reads the registers of a thread that the current thread of memprof traces and that is stopped. `None` if it was
/// killed.
pub(super) fn read(tid: i32) -> Option<Registers> {
    let words = set(tid, libc::NT_PRSTATUS)?;
    let (stack_pointer, thread_pointer) = pointers(tid, &words)?;
    Some(Registers {
        tid,
        words,
        stack_pointer,
        thread_pointer,
    })
}

/// rsp and fs_base.
#[cfg(target_arch = "x86_64")]
fn pointers(_: i32, words: &[u64]) -> Option<(u64, u64)> {
    Some((*words.get(19)?, *words.get(21)?))
}

/// sp, which follows x0 to x30, and tpidr_el0.
#[cfg(target_arch = "aarch64")]
fn pointers(tid: i32, words: &[u64]) -> Option<(u64, u64)> {
    const NT_ARM_TLS: libc::c_int = 0x401;
    Some((*words.get(31)?, *set(tid, NT_ARM_TLS)?.first()?))
}

/// Reads one of the kernel's register sets.
fn set(tid: i32, which: libc::c_int) -> Option<Vec<u64>> {
    let mut words = vec![0_u64; WORDS];
    let mut room = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(words.as_slice()),
    };
    // SAFETY: the kernel writes at most `iov_len` bytes to `words`, which outlives the call, and the number of bytes
    // to `room`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, which, &raw mut room) };
    if done == -1 {
        return None;
    }
    words.truncate(room.iov_len / size_of::<u64>());
    Some(words)
}
