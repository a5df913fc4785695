//! The machine code that makes a thread load a library. It runs in a separate mapping in the thread's process.
//!
//! The code starts with the address of its [`Job`] in `rbx`, on a separate stack. It writes the library to a memfd, makes the
//! loader load that, closes the memfd, restores `errno`, and unmaps its own memory. The last call is made by an instruction
//! elsewhere, which is followed by the return to the signal frame.

use std::arch::global_asm;

/// The input and the results of the code: indices of words.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Job {
    /// Start and size of the whole mapping.
    Region,
    RegionBytes,
    /// The C library's functions `__errno_location`, `dlopen` and `dlerror` (0: none), and the second argument of `dlopen`.
    Errno,
    Load,
    Error,
    Flags,
    /// The contents of the library, and their size.
    Library,
    LibraryBytes,
    /// The name of the memfd.
    Name,
    /// The end of the text that precedes the descriptor number in the path, and the end of the buffer for both.
    PrefixEnd,
    PathEnd,
    /// The instruction that makes the last call, and the stack pointer for that call.
    Call,
    Back,
    /// Results of `memfd_create`, `write`, `dlopen` and `dlerror`.
    File,
    Written,
    Handle,
    Text,
}

impl Job {
    pub(super) const WORDS: usize = Job::Text as usize + 1;
}

/// The part of the path before the descriptor number.
pub(super) const PREFIX: &[u8] = b"/proc/thread-self/fd/";

const fn at(word: Job) -> usize {
    word as usize * 8
}

global_asm!(
    ".pushsection .rodata.memprof_load, \"a\", @progbits",
    ".globl memprof_load_begin, memprof_load_end",
    ".hidden memprof_load_begin, memprof_load_end",
    "memprof_load_begin:",
    "cld",
    "call qword ptr [rbx + {errno}]",
    "mov rbp, rax",
    "mov r15d, [rax]",
    // Kernels before 6.3 do not know the second flag, MFD_NOEXEC_SEAL.
    "mov eax, {memfd_create}",
    "mov rdi, [rbx + {name}]",
    "mov esi, {noexec}",
    "syscall",
    "cmp rax, -{einval}",
    "jne 2f",
    "mov eax, {memfd_create}",
    "mov rdi, [rbx + {name}]",
    "mov esi, {cloexec}",
    "syscall",
    "2: mov [rbx + {file}], rax",
    "test rax, rax",
    "js 7f",
    "mov r14, rax",
    "mov eax, {write}",
    "mov rdi, r14",
    "mov rsi, [rbx + {library}]",
    "mov rdx, [rbx + {library_bytes}]",
    "syscall",
    "mov [rbx + {written}], rax",
    "cmp rax, [rbx + {library_bytes}]",
    "jne 6f",
    // Build the path from its end: the descriptor number, then the prefix.
    "mov rdi, [rbx + {path_end}]",
    "mov rax, r14",
    "mov ecx, 10",
    "3: xor edx, edx",
    "div rcx",
    "add dl, 48",
    "dec rdi",
    "mov [rdi], dl",
    "test rax, rax",
    "jnz 3b",
    "mov rsi, [rbx + {prefix_end}]",
    "mov ecx, {prefix}",
    "4: dec rsi",
    "dec rdi",
    "mov al, [rsi]",
    "mov [rdi], al",
    "dec ecx",
    "jnz 4b",
    "mov esi, [rbx + {flags}]",
    "call qword ptr [rbx + {load}]",
    "mov [rbx + {handle}], rax",
    "test rax, rax",
    "jnz 6f",
    "mov rax, [rbx + {error}]",
    "test rax, rax",
    "jz 6f",
    "call rax",
    "mov [rbx + {text}], rax",
    "6: mov eax, {close}",
    "mov rdi, r14",
    "syscall",
    "7: mov [rbp], r15d",
    "mov rdi, [rbx + {region}]",
    "mov rsi, [rbx + {region_bytes}]",
    "mov rcx, [rbx + {call}]",
    "mov rsp, [rbx + {back}]",
    "mov eax, {munmap}",
    "jmp rcx",
    "memprof_load_end:",
    ".popsection",
    memfd_create = const libc::SYS_memfd_create,
    // MFD_CLOEXEC | MFD_NOEXEC_SEAL.
    noexec = const 9,
    cloexec = const 1,
    einval = const libc::EINVAL,
    write = const libc::SYS_write,
    close = const libc::SYS_close,
    munmap = const libc::SYS_munmap,
    prefix = const PREFIX.len(),
    region = const at(Job::Region),
    region_bytes = const at(Job::RegionBytes),
    errno = const at(Job::Errno),
    load = const at(Job::Load),
    error = const at(Job::Error),
    flags = const at(Job::Flags),
    library = const at(Job::Library),
    library_bytes = const at(Job::LibraryBytes),
    name = const at(Job::Name),
    prefix_end = const at(Job::PrefixEnd),
    path_end = const at(Job::PathEnd),
    call = const at(Job::Call),
    back = const at(Job::Back),
    file = const at(Job::File),
    written = const at(Job::Written),
    handle = const at(Job::Handle),
    text = const at(Job::Text),
);

unsafe extern "C" {
    static memprof_load_begin: u8;
    static memprof_load_end: u8;
}

/// The machine code.
pub(super) fn code() -> &'static [u8] {
    let (begin, end) = (&raw const memprof_load_begin, &raw const memprof_load_end);
    // SAFETY: both symbols are in one section that nothing writes to, and the second one follows the first.
    unsafe { std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin)) }
}
