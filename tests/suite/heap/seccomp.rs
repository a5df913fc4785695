//! Processes under seccomp filters: they are forked if their filters permit all that it takes, and only then.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::common::binary::{MEMPROF, memprof};
use crate::common::process::threads;
use crate::common::sentinel::{sentinel, unharmed};
use crate::common::workload::{Workload, program};
use crate::heap::fork::{has_the_same_heap, heap, killing_the_guard_harms_nobody, notices_nothing};
use memprof_sys::ids::Pid;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A filter that does one thing for these calls, and another one for the others.
fn filter(rules: Rules, these: SeccompAction, others: SeccompAction) -> BpfProgram {
    let filter = SeccompFilter::new(rules, others, these, TargetArch::x86_64).unwrap();
    filter.try_into().unwrap()
}

fn if_arg(index: u8, op: SeccompCmpOp, value: u64) -> SeccompRule {
    let len = SeccompCmpArgLen::Dword;
    SeccompRule::new(vec![SeccompCondition::new(index, len, op, value).unwrap()]).unwrap()
}

/// A new process, but no new thread.
fn fork_rule() -> SeccompRule {
    let mask = SeccompCmpOp::MaskedEq(libc::CLONE_VM as u64);
    if_arg(0, mask, 0)
}

fn only(call: libc::c_long, rules: Vec<SeccompRule>, does: SeccompAction) -> BpfProgram {
    filter([(call, rules)].into(), does, SeccompAction::Allow)
}

/// As the default profile of container runtimes: a list of calls that are permitted, with `clone` unless it makes namespaces.
fn like_a_container() -> BpfProgram {
    const LAST: i64 = 470;
    const NAMESPACES: u64 = 0x7e02_0000;
    let refused = [
        libc::SYS_clone3,
        libc::SYS_mount,
        libc::SYS_ptrace,
        libc::SYS_bpf,
    ];
    let mut rules: Rules = (0..LAST).map(|call| (call, Vec::new())).collect();
    rules.retain(|call, _| !refused.contains(call));
    let clone = if_arg(0, SeccompCmpOp::MaskedEq(NAMESPACES), 0);
    rules.insert(libc::SYS_clone, vec![clone]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    filter(rules, SeccompAction::Allow, refuse)
}

/// Has a program start under a filter, as containers do.
fn under(filter: BpfProgram, command: &mut Command) -> &mut Command {
    let install = move || apply_filter(&filter).map_err(io::Error::other);
    // SAFETY: between fork and exec, this only makes two system calls.
    unsafe { command.pre_exec(install) }
}

fn sentinel_under(filter: BpfProgram, mib: u32) -> Workload {
    let mut command = Command::new(program("sentinel"));
    Workload::start_as(under(filter, command.arg(mib.to_string())))
}

#[test]
fn a_container_is_forked() {
    let mut command = Command::new(program("heap"));
    let command = under(like_a_container(), command.args(["4", "21"]));
    has_the_same_heap(Workload::start_as(command));
    notices_nothing(sentinel_under(like_a_container(), 40));
}

#[test]
fn a_container_finds_its_way_back() {
    killing_the_guard_harms_nobody(sentinel_under(like_a_container(), 300));
}

/// It is copied instead, and lives. Any of these calls would end it.
#[test]
fn what_a_filter_forbids_is_not_tried() {
    let kill = SeccompAction::KillProcess;
    let not_any = || if_arg(0, SeccompCmpOp::Ne, u32::MAX.into());
    for (filter, reason) in [
        (
            only(libc::SYS_clone, vec![fork_rule()], kill.clone()),
            "forbids `clone`",
        ),
        (
            only(
                libc::SYS_clone,
                vec![fork_rule()],
                SeccompAction::Errno(libc::EPERM as u32),
            ),
            "forbids `clone`",
        ),
        (
            only(libc::SYS_clone, vec![fork_rule()], SeccompAction::Trace(1)),
            "another process to decide about `clone`",
        ),
        (
            only(libc::SYS_wait4, vec![not_any()], kill.clone()),
            "forbids `wait4`",
        ),
        (
            only(libc::SYS_exit_group, Vec::new(), kill.clone()),
            "forbids `exit_group`",
        ),
        // The argument of `wait4` that is still in its register.
        (
            only(
                libc::SYS_rt_sigreturn,
                vec![if_arg(
                    2,
                    SeccompCmpOp::Eq,
                    (libc::__WALL | libc::WNOHANG) as u32 as u64,
                )],
                kill,
            ),
            "forbids `rt_sigreturn`",
        ),
    ] {
        let mut workload = sentinel_under(filter, 40);
        let pid = workload.pid();
        unharmed(&mut workload);
        is_copied(pid, reason);
        let ended = memprof(&["heap", "--pid", &pid.to_string(), "--snapshot", "fork"]);
        ended.must(1, &[reason, "--snapshot copy"]);
        unharmed(&mut workload);
    }
}

fn is_copied(pid: Pid, reason: &str) {
    let taken = &heap(pid, &[])["taken"];
    assert_eq!(taken["approach"], "copy", "{reason}");
    let said = taken["not_forked"].as_str().unwrap();
    assert!(said.contains(reason), "{said}");
    let names = |tid: &Pid| said.contains(&format!("thread {tid} "));
    assert!(threads(pid).iter().any(names), "{said}");
}

/// Each thread has filters of its own: one that may not be used is none of the others' business.
#[test]
fn another_thread_is_taken() {
    let mut workload = sentinel(40);
    let pid = workload.pid();
    let kill = SeccompAction::KillProcess;
    let program = only(libc::SYS_clone, vec![fork_rule()], kill);
    let hex = program.iter().map(|it| {
        let steps = u32::from(it.jf) << 24 | u32::from(it.jt) << 16 | u32::from(it.code);
        format!(" {:x}", u64::from(it.k) << 32 | u64::from(steps))
    });
    let hex: String = hex.collect();
    let mut filtered = |threads: &str| {
        workload.lines.send(&format!("{threads}{hex}"));
        workload.lines.line();
    };
    filtered("l");
    for _ in 0..3 {
        assert_eq!(heap(pid, &[])["taken"]["approach"], "fork");
    }
    filtered("L");
    is_copied(pid, "forbids `clone`");
    unharmed(&mut workload);
}

/// Of memprof itself.
#[test]
fn filters_that_cannot_be_read_are_not_guessed() {
    let mut workload = sentinel_under(like_a_container(), 40);
    unharmed(&mut workload);
    let pid = workload.pid().to_string();
    let mut memprof = Command::new(MEMPROF);
    memprof.args(["heap", "--format", "json", "--pid", &pid]);
    let permissive = filter(Rules::new(), SeccompAction::Trap, SeccompAction::Allow);
    let said = copied(under(permissive, &mut memprof).output().unwrap());
    assert!(said.contains("seccomp filter itself"), "{said}");

    let mut memprof = Command::new(MEMPROF);
    memprof.args(["heap", "--format", "json", "--pid", &pid]);
    let without = || {
        const CAP_SYS_ADMIN: libc::c_ulong = 21;
        // SAFETY: takes no addresses.
        match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, this only makes a system call.
    let said = copied(unsafe { memprof.pre_exec(without) }.output().unwrap());
    assert!(said.contains("CAP_SYS_ADMIN"), "{said}");
    unharmed(&mut workload);
}

/// Why a process was copied.
fn copied(ended: Output) -> String {
    assert!(ended.status.success(), "{ended:?}");
    let heap: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(heap["taken"]["approach"], "copy");
    heap["taken"]["not_forked"].as_str().unwrap().to_owned()
}
