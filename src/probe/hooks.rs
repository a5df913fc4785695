//! The hooks for system calls that change address spaces: at the functions of these calls, or at all system calls of all processes
//! (`src/bpf/calls.bpf.h`).

mod multi;
mod trampolines;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Result, anyhow};
use libbpf_rs::libbpf_sys;

pub(super) use multi::MultiHooks;
pub(super) use trampolines::TrampolineHooks;

use super::wire::MemprofSkel;
use memprof_sys::kernel_version::KernelVersion;

/// Environment variable, for tests: `functions`, `trampolines` or `tracepoints`. It disables the fallback.
const OVERRIDE: &str = "MEMPROF_SYSCALL_HOOKS";

/// First version that reports how many calls a hook by `kprobe.multi` has missed.
const TELLS_MISSED: KernelVersion = KernelVersion(6, 7);

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
    /// At their functions, by `kprobe.multi`: other system calls cost no more than without memprof.
    Functions,
    /// At their functions, by BPF trampolines: the same for other system calls.
    Trampolines,
    /// At the entry and the return of every system call of every process, for this reason.
    Tracepoints(String),
}

impl fmt::Display for SyscallHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyscallHooks::Functions => write!(f, "kprobe.multi"),
            SyscallHooks::Trampolines => write!(f, "fentry and fexit"),
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
        let Ok(forced) = std::env::var(OVERRIDE) else {
            return Ok(SyscallHooks::best());
        };
        match forced.as_str() {
            "functions" => Ok(SyscallHooks::Functions),
            "trampolines" => Ok(SyscallHooks::Trampolines),
            "tracepoints" => Ok(SyscallHooks::Tracepoints(format!("{OVERRIDE}={forced}"))),
            _ => Err(anyhow!(
                "{OVERRIDE} is {forced:?}, not `functions`, `trampolines` or `tracepoints`"
            )),
        }
    }

    fn best() -> SyscallHooks {
        let running = KernelVersion::running();
        let functions = match running < TELLS_MISSED {
            true => Err(format!(
                "Linux {running} does not tell how many calls kprobe.multi misses; {TELLS_MISSED} does"
            )),
            false => multi::try_hooks().map_err(|e| format!("kprobe.multi: {e}")),
        };
        let Err(why) = functions else {
            return SyscallHooks::Functions;
        };
        match trampolines::try_hooks() {
            Ok(()) => SyscallHooks::Trampolines,
            Err(e) => SyscallHooks::Tracepoints(format!("{why}; fentry and fexit: {e}")),
        }
    }

    /// Whether the environment variable disables the fallback.
    pub(super) fn is_forced() -> bool {
        std::env::var_os(OVERRIDE).is_some()
    }

    /// The programs to load.
    pub(super) fn programs(&self) -> Vec<String> {
        let names = match self {
            SyscallHooks::Functions => &["calls_begin", "calls_return", "calls_take_range"][..],
            SyscallHooks::Trampolines => return trampolines::programs(),
            SyscallHooks::Tracepoints(_) => &["syscall_enter", "syscall_exit"],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// The programs not to load.
    pub(super) fn other_programs(&self) -> Vec<String> {
        let all = [
            SyscallHooks::Functions,
            SyscallHooks::Trampolines,
            SyscallHooks::Tracepoints(String::new()),
        ];
        let own = self.programs();
        let others = all.iter().flat_map(SyscallHooks::programs);
        others.filter(|name| !own.contains(name)).collect()
    }
}

/// The attached hooks of functions; dropping them detaches the programs.
pub(super) enum FunctionHooks {
    Multi(MultiHooks),
    Trampolines(TrampolineHooks),
}

impl FunctionHooks {
    /// Whether the returns of `write` are hooked, or hooking them was tried.
    pub(super) fn sees_writes(&self) -> bool {
        match self {
            FunctionHooks::Multi(hooks) => hooks.sees_writes(),
            FunctionHooks::Trampolines(hooks) => hooks.sees_writes(),
        }
    }

    /// Also hooks the returns of `write`, by which runtimes name their JIT code.
    pub(super) fn see_writes(&mut self, skel: &MemprofSkel<'static>) -> Result<()> {
        match self {
            FunctionHooks::Multi(hooks) => hooks.see_writes(skel.progs.calls_return.as_fd()),
            FunctionHooks::Trampolines(hooks) => hooks.see_writes(skel),
        }
    }

    /// Number of calls, of any process, that the kernel did not report to these hooks, apart from those that it
    /// [`skipped`].
    pub(super) fn missed(&self) -> u64 {
        match self {
            FunctionHooks::Multi(hooks) => hooks.missed(),
            FunctionHooks::Trampolines(_) => 0,
        }
    }
}

/// The kernel function of a system call.
fn function(call: &str) -> String {
    match cfg!(target_arch = "aarch64") {
        true => format!("__arm64_sys_{call}"),
        false => format!("__x64_sys_{call}"),
    }
}

/// Takes ownership of a descriptor that libbpf returned, or returns its error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: the descriptor is new, and nothing else owns it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Loads a program of this type that does nothing.
fn load_trial(
    of_type: libbpf_sys::bpf_prog_type,
    attach_type: libbpf_sys::bpf_attach_type,
) -> io::Result<OwnedFd> {
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
        expected_attach_type: attach_type,
        ..Default::default()
    };
    // SAFETY: the code, the options and the strings outlive the call.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            of_type,
            c"memprof_probe".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr(),
            code.len() as libbpf_sys::size_t,
            &raw mut options,
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
