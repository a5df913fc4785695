//! Checks of the trials that only `memprof doctor` runs.

use super::checks::Tried;
use super::facts::{Caps, Facts, Trial, Trials};
use super::{Check, Status, access};
use crate::probe::SyscallHooks;
use memprof_sys::kernel_version::KernelVersion;

/// Whether processes of other users can be profiled: decided by a trial on one of them, otherwise by the capabilities.
pub(super) fn other_processes(facts: &Facts) -> Check {
    let name = "other processes";
    let degraded = |found: String, consequence: String| {
        let remedy = access::remedy(facts.caps);
        Check::not_ok(Status::Degraded, name, found, consequence, remedy)
    };
    let own_only = || {
        format!(
            "memprof can profile only processes of user id {} that are dumpable (prctl(2)); it reports an error for all others",
            facts.uid
        )
    };
    let other = facts.trials.as_ref().and_then(|t| t.other.as_ref());
    let Some(other) = other else {
        let has = |bit| facts.caps.has(bit);
        return match has(Caps::SYS_PTRACE) && has(Caps::DAC_READ_SEARCH) {
            true => Check::ok(name, "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"),
            false => degraded(
                "no CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH".into(),
                own_only(),
            ),
        };
    };
    let whose = format!("process {} of user id {}", other.pid, other.uid);
    let refused = other.refused();
    if refused.is_empty() {
        return Check::ok(
            name,
            format!("{whose}: pages, program and memory can be read"),
        );
    }
    let consequence = match other.pages {
        Trial::Fails(_) => own_only(),
        Trial::Works => {
            "functions of other users' processes have no names, their stacks are incomplete, and \
                         --freeze cannot stop them"
                .to_owned()
        }
    };
    degraded(format!("{whose}: {}", refused.join(", ")), consequence)
}

/// Whether processes of other users cannot be profiled at all.
pub(super) fn others_refused(facts: &Facts) -> bool {
    let other = facts.trials.as_ref().and_then(|t| t.other.as_ref());
    match other {
        Some(other) => !other.pages.works(),
        None => other_processes(facts).status != Status::Ok,
    }
}

/// Checks that the whole probe loads and attaches.
pub(super) fn whole_probe(facts: &Facts) -> Option<Check> {
    let name = "probe";
    let Trials { probe, .. } = facts.trials.as_ref()?;
    Some(match probe.as_ref()? {
        Err(why) => Check::not_ok(
            Status::Missing,
            name,
            why,
            "nothing can be recorded",
            "set MEMPROF_LIBBPF_LOG=1 to see the kernel's messages; check whether a security module blocks BPF",
        ),
        Ok(missing) if missing.is_empty() => Check::ok(name, "loads and attaches"),
        Ok(missing) => Check::not_ok(
            Status::Degraded,
            name,
            format!("cannot attach {}", missing.join(" ")),
            "the figures are the same, but memprof does not see when the kernel kills a process because memory has run out: \
             there is no mark of its last profile, and --on-oom writes nothing",
            "boot a kernel built with CONFIG_TRACEPOINTS=y whose tracepoint oom:mark_victim can be used",
        ),
    })
}

/// The remedy for what a kernel of 6.7 or later has if it is built with this option.
fn built_with(option: &str, running: KernelVersion) -> String {
    match running >= KernelVersion(6, 7) {
        true => format!("boot a kernel built with {option}"),
        false => format!("boot Linux 6.7 or later, built with {option}"),
    }
}

/// Checks whether the system call hooks also slow down processes that are not followed.
pub(super) fn syscall_hooks(facts: &Facts) -> Option<Check> {
    let name = "system calls";
    let Trials { syscall_hooks, .. } = facts.trials.as_ref()?;
    Some(match syscall_hooks.as_ref()? {
        SyscallHooks::Functions => Check::ok(
            name,
            "seen at the functions of those that change memory (kprobe.multi)",
        ),
        SyscallHooks::Trampolines => Check::ok(
            name,
            "seen at the functions of those that change memory (fentry and fexit)",
        ),
        SyscallHooks::Tracepoints(why) => Check::not_ok(
            Status::Degraded,
            name,
            format!("seen at the tracepoints of all of them; {why}"),
            "the figures are the same, but while memprof runs, every system call of every process takes 75 to 170 ns more",
            built_with("CONFIG_FPROBE=y", KernelVersion::running()),
        ),
    })
}

/// Checks that memprof's threads can drop the privileges that they do not need.
pub(super) fn reduction(facts: &Facts) -> Option<Check> {
    let Trials { reduction, .. } = facts.trials.as_ref()?;
    let check = Tried {
        name: "own privileges",
        works: match facts.caps.has(Caps::SETPCAP) {
            true => {
                "dropped after the start: capabilities, bounding set, no_new_privs, seccomp filters"
            }
            // Without CAP_SETPCAP the bounding set stays, but no program can gain capabilities from it.
            false => "dropped after the start: capabilities, no_new_privs, seccomp filters",
        },
        status: Status::Degraded,
        fails: "cannot be dropped after the start",
        consequence: "threads that serve HTTP or read untrusted files keep more privileges than they need",
        remedy: "boot a kernel built with CONFIG_SECCOMP_FILTER=y",
    };
    Some(check.check(reduction))
}
