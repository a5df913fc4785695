//! The code that has a thread load a library, for memory of its own in the thread's process.
//!
//! It is started with the address of its [`Job`] in `rbx`, on a stack of its own. It writes the library to a file in memory,
//! which it removes again, has the loader load that, restores `errno`, and removes its own memory. The last call is made by
//! an instruction elsewhere, which is followed by the way back.

use std::arch::global_asm;

/// What the code is to do, and what became of it: words at this position.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum Job {
    /// All of its memory.
    Region,
    RegionBytes,
    /// The C library's functions `__errno_location`, `dlopen` and `dlerror` (0: none), and the second argument of `dlopen`.
    Errno,
    Load,
    Error,
    Flags,
    /// The library.
    Library,
    LibraryBytes,
    /// The name of the file in memory.
    Name,
    /// The end of the text that comes before the number of the file, and of room for both.
    PrefixEnd,
    PathEnd,
    /// The instruction that makes the last call, and the stack pointer for it.
    Call,
    Back,
    /// Results of `memfd_create`, of `write`, of `dlopen` and of `dlerror`.
    File,
    Written,
    Handle,
    Text,
}

impl Job {
    pub(super) const WORDS: usize = Job::Text as usize + 1;
}

/// What comes before the number of the file.
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
    // Kernels before 6.3 do not know the second flag.
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
    // The path, from its end: the number of the file, and what comes before.
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
    // MFD_CLOEXEC, and MFD_NOEXEC_SEAL.
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

/// The code.
pub(super) fn code() -> &'static [u8] {
    let (begin, end) = (&raw const memprof_load_begin, &raw const memprof_load_end);
    // SAFETY: both are places in one section that nothing writes to, the second one behind the first one.
    unsafe { std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin)) }
}
