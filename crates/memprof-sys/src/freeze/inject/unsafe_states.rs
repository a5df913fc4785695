//! Thread states in which injecting a system call is unsafe.

use std::fs;
use std::io;

use super::ptrace::ptrace;
use super::seccomp::{Entry, Filters};
use super::sigreturn::WayBack;
use super::{Call, Injector, SIGRETURN, Stopped};
use crate::freeze::registers::{NO_CALL, word};
use crate::procfs::StatusFile;

/// Code segment selector of 64-bit programs.
const USER_CODE: u64 = 0x33;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Checks that calls can be made in a thread, as far as that does not depend on the call. Returns the thread's seccomp filters for
/// [`check_calls`].
///
/// # Errors
/// The reason why calls cannot be made.
pub(super) fn check(thread: &Stopped, injector: &Injector) -> Result<Filters, String> {
    let tid = thread.tid;
    // Seccomp filters and shadow stacks may kill a process that makes an unexpected call. Each thread has its own.
    let status = StatusFile::for_thread(tid);
    let status = status.map_err(|e| format!("/proc/{tid}/status cannot be read: {e}"))?;
    let features = status.field("x86_Thread_features");
    if features.is_some_and(|features| features.contains("shstk")) {
        return Err(format!("thread {tid} has a shadow stack"));
    }
    if thread.regs.len() <= word::SS || thread.regs[word::CS] != USER_CODE {
        return Err(format!("thread {tid} runs 32-bit code"));
    }
    if dispatches_calls(tid) {
        return Err(format!("thread {tid} handles its system calls itself"));
    }
    // The injected call would hide the interruption of an `rseq` critical section from the thread. A thread that is blocked in a
    // system call is in none.
    if thread.regs[word::ORIG_RAX] == NO_CALL && may_be_in_rseq(injector, tid) {
        return Err(format!("thread {tid} is in a restartable sequence"));
    }
    match status.number::<u8>("Seccomp") {
        Some(0) => Ok(Filters::default()),
        Some(2) => Filters::read(tid),
        // Strict mode permits only `read`, `write`, `exit` and `rt_sigreturn`.
        Some(1) => Err(format!("thread {tid} runs in seccomp's strict mode")),
        _ => Err(format!("thread {tid} runs in an unknown mode of seccomp")),
    }
}

/// Checks that a thread creates children in its own PID namespace. In another namespace, memprof's child could be the first
/// process. The namespace would end with that process, and the thread could create no further child.
///
/// # Errors
/// The thread creates children in another namespace, or the kernel does not report the namespace.
pub(super) fn check_child(thread: &Stopped) -> Result<(), String> {
    let tid = thread.tid;
    // For a namespace without a process, the kernel reports nothing.
    let namespace = |name| fs::read_link(format!("/proc/{tid}/ns/{name}")).ok();
    let own = namespace("pid");
    if own.is_none() || own != namespace("pid_for_children") {
        return Err(format!(
            "thread {tid} has its children in another PID namespace (unshare, setns), which would end with the copy-on-write child"
        ));
    }
    Ok(())
}

/// Checks that a thread's seccomp filters, which a child inherits, permit these calls and the calls by which the thread and a child
/// recover if memprof is killed.
///
/// While the child is reaped, other threads run: a filter that one of them installs for all threads (`SECCOMP_FILTER_FLAG_TSYNC`)
/// between this check and the call goes unnoticed.
///
/// # Errors
/// The reason why a call is not permitted.
pub(super) fn check_calls<'a>(
    filters: &Filters,
    thread: &Stopped,
    injector: &Injector,
    calls: impl Iterator<Item = &'a Call>,
    way_back: &WayBack,
) -> Result<(), String> {
    for call in calls {
        let made = Entry::from_registers(&thread.registers_for(injector, call, way_back));
        // At `rt_sigreturn`, the registers still contain the arguments of the call.
        let back = Entry {
            number: libc::SYS_rt_sigreturn,
            instruction_pointer: injector.sigreturn + SIGRETURN.len() as u64,
            ..made
        };
        let ends = call.args.contains(&Call::CHILD_STACK);
        let ends = ends.then(|| Entry::from_registers(&way_back.child));
        for entry in [made, back].iter().chain(&ends) {
            filters.check(thread.tid, entry)?;
        }
    }
    Ok(())
}

/// Whether a thread may be in a restartable sequence (`rseq`).
fn may_be_in_rseq(injector: &Injector, tid: i32) -> bool {
    /// Offset of the pointer to the current critical section.
    const SEQUENCE: u64 = 8;
    let asked = ask::<3>(PTRACE_GET_RSEQ_CONFIGURATION, tid).map(|words| words[0]);
    match asked {
        Ok(0) => false,
        Ok(area) => {
            let running = injector.read(area + SEQUENCE, 8);
            running.map_or(true, |bytes| bytes != [0; 8])
        }
        // A kernel without `rseq` has no such sequences.
        Err(e) => e.raw_os_error() != Some(libc::EIO),
    }
}

/// Whether a thread's system calls are handled in user space (`PR_SET_SYSCALL_USER_DISPATCH`).
fn dispatches_calls(tid: i32) -> bool {
    let asked = ask::<4>(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid);
    // Kernels before 6.4 do not report this.
    asked.is_ok_and(|words| words[0] != 0)
}

/// Reads `WORDS` words about a thread with a `ptrace` request.
fn ask<const WORDS: usize>(request: libc::c_uint, tid: i32) -> io::Result<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let (size, at) = (size_of_val(&words) as u64, (&raw mut words) as u64);
    ptrace(request, tid, size, at)?;
    Ok(words)
}
