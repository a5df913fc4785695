//! The registers of a stopped thread.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// A thread's registers, as the kernel saved them when it stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl Registers {
    /// The registers of a process's first thread, which must be stopped and traced by the current thread of memprof. `None` if the
    /// thread was killed.
    pub fn of_stopped(pid: Pid) -> Option<Registers> {
        read(pid.0.cast_signed())
    }

    /// The address of the next instruction.
    #[cfg(target_arch = "x86_64")]
    pub fn instruction_pointer(&self) -> Option<u64> {
        self.words.get(word::RIP).copied()
    }
}

/// Size of the buffer for general registers, in words: enough for any processor that Linux runs on.
const WORDS: usize = 64;

/// Reads the registers of a stopped thread that the current thread of memprof traces. `None` if the thread was killed.
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

/// Indices of x86-64's registers in the kernel's order.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) mod word {
    pub const R15: usize = 0; pub const R14: usize = 1; pub const R13: usize = 2; pub const R12: usize = 3;
    pub const RBP: usize = 4; pub const RBX: usize = 5; pub const R11: usize = 6; pub const R10: usize = 7;
    pub const R9: usize = 8; pub const R8: usize = 9; pub const RAX: usize = 10; pub const RCX: usize = 11;
    pub const RDX: usize = 12; pub const RSI: usize = 13; pub const RDI: usize = 14; pub const ORIG_RAX: usize = 15;
    pub const RIP: usize = 16; pub const CS: usize = 17; pub const EFLAGS: usize = 18; pub const RSP: usize = 19;
    pub const SS: usize = 20; pub const FS_BASE: usize = 21;
}

/// Value of `orig_rax` if the thread is not in a system call.
#[cfg(target_arch = "x86_64")]
pub(super) const NO_CALL: u64 = u64::MAX;

#[cfg(target_arch = "x86_64")]
fn pointers(_: i32, words: &[u64]) -> Option<(u64, u64)> {
    Some((*words.get(word::RSP)?, *words.get(word::FS_BASE)?))
}

/// The stack pointer follows x0 to x30; the thread pointer is tpidr_el0.
#[cfg(target_arch = "aarch64")]
fn pointers(tid: i32, words: &[u64]) -> Option<(u64, u64)> {
    const NT_ARM_TLS: libc::c_int = 0x401;
    Some((*words.get(31)?, *set(tid, NT_ARM_TLS)?.first()?))
}

/// Reads one of the kernel's register sets, as words.
pub(super) fn set(tid: i32, which: libc::c_int) -> Option<Vec<u64>> {
    let bytes = read_set(tid, which, WORDS * size_of::<u64>())?;
    let words = bytes.chunks_exact(8).map(|word| word.try_into());
    words
        .map(|word| word.ok().map(u64::from_ne_bytes))
        .collect()
}

/// Reads one of the kernel's register sets, as bytes.
#[cfg(target_arch = "x86_64")]
pub(super) fn bytes(tid: i32, which: libc::c_int) -> Option<Vec<u8>> {
    /// Enough bytes for the extended state of any processor: the AMX tiles take 8 KiB.
    const ROOM: usize = 64 << 10;
    read_set(tid, which, ROOM)
}

fn read_set(tid: i32, which: libc::c_int, room: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0_u8; room];
    let mut filled = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel writes at most `iov_len` bytes to `bytes`, which outlives the call, and the number of bytes
    // to `filled`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, which, &raw mut filled) };
    if done == -1 {
        return None;
    }
    bytes.truncate(filled.iov_len);
    Some(bytes)
}

/// Sets the general registers of a stopped thread that the current thread of memprof traces.
#[cfg(target_arch = "x86_64")]
pub(super) fn write(tid: i32, words: &[u64]) -> std::io::Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    write_bytes(tid, libc::NT_PRSTATUS, &bytes)
}

/// Sets one of the kernel's register sets, from bytes that [`bytes()`] has read.
#[cfg(target_arch = "x86_64")]
pub(super) fn write_bytes(tid: i32, which: libc::c_int, bytes: &[u8]) -> std::io::Result<()> {
    let mut from = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel reads `iov_len` bytes of `bytes`, which outlives the call.
    match unsafe { libc::ptrace(libc::PTRACE_SETREGSET, tid, which, &raw mut from) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}
