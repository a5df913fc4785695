//! The hooks for system calls that change address spaces: at the functions of these calls, or at all system calls of all processes
//! (`src/bpf/calls.bpf.h`).

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::libbpf_sys;

use memprof_sys::kernel_version::KernelVersion;

/// Environment variable, for tests: `functions` or `tracepoints`. It disables the fallback.
const OVERRIDE: &str = "MEMPROF_SYSCALL_HOOKS";

/// First version that reports how many calls a hook at functions has missed.
const TELLS_MISSED: KernelVersion = KernelVersion(6, 7);

/// First version whose fprobes use the function-graph tracer. Earlier versions miss returns of calls if too many calls are in
/// flight. On 6.12, 100 threads on two processors lost an eighth of the returns, and none with [`UNDER_WAY`].
const HAS_ROOM: KernelVersion = KernelVersion(6, 14);

/// Number of calls in flight on the whole machine whose returns are not missed before [`HAS_ROOM`]. The kernel allocates two
/// entries per processor for each requested address, so the request repeats the addresses.
const UNDER_WAY: usize = 8192;

/// First version that may preempt a program at a tracepoint. Until the program resumes, the kernel skips it for all other tasks on
/// that processor (a46023d5616e "tracing: Guard __DECLARE_TRACE() use of __DO_TRACE_CALL() with SRCU-fast"). Disabling preemption
/// in the program would not help: a task that waits for the processor gets it as soon as the program enables preemption again.
pub(super) const PREEMPTS_PROGRAMS: KernelVersion = KernelVersion(7, 0);

/// System calls whose entry is examined, as in `wanted_calls` of space.bpf.h.
const ENTERS: [&str; 8] = [
    "mmap",
    "brk",
    "mremap",
    "madvise",
    "munmap",
    "execve",
    "execveat",
    "exit_group",
];
/// System calls whose return is examined, as in the same table.
const RETURNS: [&str; 9] = [
    "mmap",
    "brk",
    "mremap",
    "madvise",
    "mprotect",
    "pkey_mprotect",
    "mlock",
    "mlock2",
    "mlockall",
];

/// How the probe sees system calls that change address spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyscallHooks {
    /// At their functions: other system calls cost no more than without memprof.
    Functions,
    /// At the entry and the return of every system call of every process, for this reason.
    Tracepoints(String),
}

impl fmt::Display for SyscallHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyscallHooks::Functions => write!(f, "kprobe.multi"),
            SyscallHooks::Tracepoints(why) => write!(f, "tracepoints of all system calls: {why}"),
        }
    }
}

impl SyscallHooks {
    /// The functions if the kernel permits it and reports missed calls, else the tracepoints.
    ///
    /// # Errors
    /// The environment variable for tests has an unknown value.
    pub(super) fn choose() -> Result<SyscallHooks> {
        match std::env::var(OVERRIDE) {
            Ok(forced) if forced == "functions" => Ok(SyscallHooks::Functions),
            Ok(forced) if forced == "tracepoints" => {
                Ok(SyscallHooks::Tracepoints(format!("{OVERRIDE}={forced}")))
            }
            Ok(other) => Err(anyhow!(
                "{OVERRIDE} is {other:?}, not `functions` or `tracepoints`"
            )),
            Err(_) if KernelVersion::running() < TELLS_MISSED => {
                Ok(SyscallHooks::Tracepoints(format!(
                    "Linux {} does not tell how many calls other hooks miss; {TELLS_MISSED} does",
                    KernelVersion::running()
                )))
            }
            Err(_) => Ok(match try_functions() {
                Ok(()) => SyscallHooks::Functions,
                Err(e) => SyscallHooks::Tracepoints(format!("kprobe.multi: {e}")),
            }),
        }
    }

    /// Whether the environment variable disables the fallback.
    pub(super) fn is_forced() -> bool {
        std::env::var_os(OVERRIDE).is_some()
    }

    /// The programs to load.
    pub(super) fn programs(&self) -> &'static [&'static str] {
        match self {
            SyscallHooks::Functions => &["calls_begin", "calls_return", "calls_take_range"],
            SyscallHooks::Tracepoints(_) => &["syscall_enter", "syscall_exit"],
        }
    }

    /// The programs not to load.
    pub(super) fn other_programs(&self) -> &'static [&'static str] {
        match self {
            SyscallHooks::Functions => SyscallHooks::Tracepoints(String::new()).programs(),
            SyscallHooks::Tracepoints(_) => SyscallHooks::Functions.programs(),
        }
    }
}

/// The hooks of functions; dropping them detaches the programs.
pub(super) struct FunctionHooks {
    links: Vec<OwnedFd>,
    /// Whether the returns of `write`, by which runtimes name their JIT code, are hooked, or hooking them was tried.
    sees_writes: bool,
}

impl FunctionHooks {
    /// Attaches these programs to the functions of the system calls.
    pub(super) fn attach(begin: BorrowedFd<'_>, returns: BorrowedFd<'_>) -> Result<FunctionHooks> {
        let begin = link_by_name(begin, &ENTERS, false)?;
        let returns = match KernelVersion::running() < HAS_ROOM {
            true => link_with_room(returns, &RETURNS)?,
            false => link_by_name(returns, &RETURNS, true)?,
        };
        Ok(FunctionHooks {
            links: vec![begin, returns],
            sees_writes: false,
        })
    }

    /// Whether the returns of `write` are hooked, or hooking them was tried.
    pub(super) fn sees_writes(&self) -> bool {
        self.sees_writes
    }

    /// Also hooks the returns of `write`.
    pub(super) fn see_writes(&mut self, returns: BorrowedFd<'_>) -> Result<()> {
        self.sees_writes = true;
        let link = match KernelVersion::running() < HAS_ROOM {
            true => link_with_room(returns, &["write"])?,
            false => link_by_name(returns, &["write"], true)?,
        };
        self.links.push(link);
        Ok(())
    }

    /// Number of calls, of any process, that the kernel did not report to these hooks.
    pub(super) fn missed(&self) -> u64 {
        self.links.iter().map(missed_by).sum()
    }
}

/// The kernel function of a system call.
fn function(call: &str) -> String {
    match cfg!(target_arch = "aarch64") {
        true => format!("__arm64_sys_{call}"),
        false => format!("__x64_sys_{call}"),
    }
}

fn link_by_name(program: BorrowedFd<'_>, calls: &[&str], returns: bool) -> Result<OwnedFd> {
    let names: Vec<CString> = calls
        .iter()
        .map(|call| CString::new(function(call)))
        .collect::<Result<_, _>>()?;
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let targets = Targets {
        syms: pointers.as_mut_ptr(),
        cnt: pointers.len() as u32,
        ..targets(returns)
    };
    link(program, targets)
        .with_context(|| format!("cannot attach to the system calls {}", calls.join(" ")))
}

/// Attaches to the returns of these calls, with capacity for [`UNDER_WAY`] calls in flight.
fn link_with_room(program: BorrowedFd<'_>, calls: &[&str]) -> Result<OwnedFd> {
    let symbols = std::fs::read("/proc/kallsyms").context("cannot read /proc/kallsyms")?;
    let symbols = String::from_utf8_lossy(&symbols);
    let addresses = addresses(&symbols, calls)?;
    let processors = libbpf_rs::num_possible_cpus().unwrap_or(1).max(1);
    let wanted = UNDER_WAY.div_ceil(2 * processors).max(addresses.len());
    let repeated: Vec<libc::c_ulong> = addresses.iter().copied().cycle().take(wanted).collect();
    let targets = Targets {
        addrs: repeated.as_ptr(),
        cnt: repeated.len() as u32,
        ..targets(true)
    };
    link(program, targets)
        .with_context(|| format!("cannot attach to the system calls {}", calls.join(" ")))
}

/// Looks up the functions of system calls in the text of `/proc/kallsyms`.
fn addresses(symbols: &str, calls: &[&str]) -> Result<Vec<u64>> {
    let functions: Vec<String> = calls.iter().map(|call| function(call)).collect();
    let mut found = vec![0; calls.len()];
    for line in symbols.lines() {
        let mut words = line.split(' ');
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if let Some(at) = functions.iter().position(|function| function == name) {
            found[at] = u64::from_str_radix(address, 16).unwrap_or(0);
        }
    }
    match found.iter().position(|address| *address == 0) {
        Some(at) => Err(anyhow!(
            "/proc/kallsyms does not show the address of {}",
            functions[at]
        )),
        None => Ok(found),
    }
}

type Targets = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2;

fn targets(returns: bool) -> Targets {
    Targets {
        flags: match returns {
            true => libbpf_sys::BPF_F_KPROBE_MULTI_RETURN,
            false => 0,
        },
        ..Default::default()
    }
}

/// Attaches a program to functions of the kernel. The pointers in `targets` must be valid, for `cnt` elements.
fn link(program: BorrowedFd<'_>, targets: Targets) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    options.__bindgen_anon_1.kprobe_multi = targets;
    // SAFETY: the program is open, and the options and everything they point to outlive the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_KPROBE_MULTI,
            &raw const options,
        )
    };
    owned(fd)
}

/// Takes ownership of a descriptor that libbpf returned, or returns its error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: the descriptor is new, and nothing else owns it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Checks whether the kernel would attach programs to functions.
fn try_functions() -> io::Result<()> {
    // r0 = 0; exit
    let code = [
        libbpf_sys::bpf_insn {
            code: (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8,
            ..Default::default()
        },
        libbpf_sys::bpf_insn {
            code: (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8,
            ..Default::default()
        },
    ];
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: libbpf_sys::BPF_TRACE_KPROBE_MULTI,
        ..Default::default()
    };
    // SAFETY: the code, the options and the strings outlive the call.
    let program = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_KPROBE,
            c"memprof_probe".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr(),
            code.len() as libbpf_sys::size_t,
            &raw mut options,
        )
    };
    let program = owned(program)?;
    // The request names no functions, because attached programs take long to detach. A kernel that has such hooks rejects the
    // request as invalid.
    match link(program.as_fd(), targets(false)) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Ok(()),
    }
}

/// Number of times the kernel skipped a program, because another run of it, or of a similar program, was in progress on the same
/// processor. From [`PREEMPTS_PROGRAMS`] on, the kernel may preempt a program at a tracepoint.
pub(super) fn skipped(program: BorrowedFd<'_>) -> u64 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the program is open; the kernel writes at most `size` bytes.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size)
    };
    match failed {
        0 => info.recursion_misses,
        _ => 0,
    }
}

fn missed_by(link: &OwnedFd) -> u64 {
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut size = size_of_val(&info) as u32;
    // SAFETY: the link is open; the kernel writes at most `size` bytes.
    let failed = unsafe {
        libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut size)
    };
    match failed {
        // SAFETY: the link is of this type, and the kernel has filled in its union member.
        0 => unsafe { info.__bindgen_anon_1.kprobe_multi.missed },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_by_the_whole_name() {
        let (mmap, brk) = (function("mmap"), function("brk"));
        let text = format!(
            "ffffffff81000010 T {mmap}_pgoff\nffffffff81000020 T {mmap}\nffffffff81000030 t {brk}\t[module]\n\
             ffffffff81000040 T {brk}\nnonsense\n"
        );
        let found = addresses(&text, &["brk", "mmap"]).unwrap();
        assert_eq!(found, [0xffff_ffff_8100_0040, 0xffff_ffff_8100_0020]);
        let hidden = text.replace("ffffffff81000040", "0000000000000000");
        let error = addresses(&hidden, &["brk"]).unwrap_err().to_string();
        assert!(error.contains(&brk), "{error}");
    }

    #[test]
    fn every_call_is_wanted_by_the_probe() {
        let text = include_str!("../bpf/space.bpf.h");
        let table = text.split_once("wanted_calls[").unwrap().1;
        let table = table.split_once("};").unwrap().0;
        let wanted = |when: &str| {
            let lines = table.lines().filter(|line| line.contains(when));
            let names = lines.filter_map(|line| line.split_once("[SYSCALL_")?.1.split_once(']'));
            let mut names: Vec<String> = names.map(|(name, _)| name.to_lowercase()).collect();
            names.sort();
            names
        };
        for (when, calls) in [("ENTERS", &ENTERS[..]), ("RETURNS", &RETURNS[..])] {
            let mut calls = calls.to_vec();
            calls.sort_unstable();
            assert_eq!(wanted(when), calls, "{when}");
        }
    }

    #[test]
    fn a_kernel_without_these_hooks_says_so_quickly() {
        // Whatever the result is, nothing stays attached.
        let _ = try_functions();
    }
}
