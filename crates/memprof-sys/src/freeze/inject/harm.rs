//! Where a call that the program does not make itself would do harm.

use std::fs;
use std::io;

use super::control::ptrace;
use super::seccomp::{Entry, Filters};
use super::way_back::WayBack;
use super::{Call, Injector, SIGRETURN, Stopped};
use crate::freeze::registers::{NO_CALL, word};
use crate::proc_text;

/// The code segment of 64-bit programs.
const USER_CODE: u64 = 0x33;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Whether calls can be made in a thread, as far as that does not depend on the call. Returns the thread's filters for
/// [`check_calls`].
///
/// # Errors
/// Why not.
pub(super) fn check(thread: &Stopped, injector: &Injector) -> Result<Filters, String> {
    let tid = thread.tid;
    // Filters and shadow stacks may end a process that makes a call that it does not make itself. Each thread has its
    // own.
    let status = proc_text::read(&format!("/proc/{tid}/status"));
    let status = status.map_err(|e| format!("/proc/{tid}/status cannot be read: {e}"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default()
    };
    if field("x86_Thread_features:").contains("shstk") {
        return Err(format!("thread {tid} has a shadow stack"));
    }
    if thread.regs.len() <= word::SS || thread.regs[word::CS] != USER_CODE {
        return Err(format!("thread {tid} runs 32-bit code"));
    }
    if dispatches_calls(tid) {
        return Err(format!("thread {tid} handles its system calls itself"));
    }
    // It would not be told that its sequence was interrupted (`rseq`): a blocked thread is in none.
    if thread.regs[word::ORIG_RAX] == NO_CALL && may_be_in_rseq(injector, tid) {
        return Err(format!("thread {tid} is in a restartable sequence"));
    }
    match field("Seccomp:") {
        "0" => Ok(Filters::default()),
        "2" => Filters::read(tid),
        // It permits `read`, `write`, `exit` and `rt_sigreturn`.
        "1" => Err(format!("thread {tid} runs in seccomp's strict mode")),
        _ => Err(format!("thread {tid} runs in an unknown mode of seccomp")),
    }
}

/// Checks that a thread has its children in its own PID namespace. In another one, memprof's child may be the first process, with
/// which the namespace ends: the thread could have no child any more.
///
/// # Errors
/// It has them in another one, or the kernel does not say.
pub(super) fn check_child(thread: &Stopped) -> Result<(), String> {
    let tid = thread.tid;
    // (Of a namespace without a process, the kernel shows nothing.)
    let namespace = |name| fs::read_link(format!("/proc/{tid}/ns/{name}")).ok();
    let own = namespace("pid");
    if own.is_none() || own != namespace("pid_for_children") {
        return Err(format!(
            "thread {tid} has its children in another PID namespace (unshare, setns), which would end with the copy-on-write child"
        ));
    }
    Ok(())
}

/// Whether the seccomp filters of a thread, which a child inherits, permit these calls, and those by which the thread
/// and a child find their ways if memprof is killed. While the child is reaped, other threads run: a filter that one of them
/// installs for all (`SECCOMP_FILTER_FLAG_TSYNC`) between this check and the call is not seen.
///
/// # Errors
/// Why not.
pub(super) fn check_calls<'a>(
    filters: &Filters,
    thread: &Stopped,
    injector: &Injector,
    calls: impl Iterator<Item = &'a Call>,
    way_back: &WayBack,
) -> Result<(), String> {
    for call in calls {
        let made = Entry::of(&thread.registers_for(injector, call, way_back));
        // The arguments of the call are still in their registers.
        let back = Entry {
            number: libc::SYS_rt_sigreturn,
            instruction_pointer: injector.sigreturn + SIGRETURN.len() as u64,
            ..made
        };
        let ends = call.args.contains(&Call::CHILD_STACK);
        let ends = ends.then(|| Entry::of(&way_back.child));
        for entry in [made, back].iter().chain(&ends) {
            filters.check(thread.tid, entry)?;
        }
    }
    Ok(())
}

/// Whether a thread may be in a restartable sequence.
fn may_be_in_rseq(injector: &Injector, tid: i32) -> bool {
    /// Offset of the pointer to the running sequence.
    const SEQUENCE: u64 = 8;
    let asked = ask::<3>(PTRACE_GET_RSEQ_CONFIGURATION, tid).map(|words| words[0]);
    match asked {
        Ok(0) => false,
        Ok(area) => {
            let running = injector.read(area + SEQUENCE, 8);
            running.map_or(true, |bytes| bytes != [0; 8])
        }
        // Without support for it in the kernel there are none.
        Err(e) => e.raw_os_error() != Some(libc::EIO),
    }
}

/// Whether a thread has its system calls handled in user space (`PR_SET_SYSCALL_USER_DISPATCH`).
fn dispatches_calls(tid: i32) -> bool {
    let asked = ask::<4>(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid);
    // Kernels before 6.4 cannot be asked.
    asked.is_ok_and(|words| words[0] != 0)
}

/// What `ptrace` says of a thread in so many words.
fn ask<const WORDS: usize>(request: libc::c_uint, tid: i32) -> io::Result<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let (size, at) = (size_of_val(&words) as u64, (&raw mut words) as u64);
    ptrace(request, tid, size, at)?;
    Ok(words)
}
