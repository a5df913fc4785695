//! Seccomp filters that refuse, with EPERM, the system calls that a thread never makes.
//!
//! The filters are deny lists, not allow lists: any release of the C library and of the crates that read files may use new harmless
//! calls, and a refusal must not break memprof.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::ThreadRole;

/// Calls that no thread needs after startup: starting programs, mounts, modules, identities, namespaces, the clock, keys, listening
/// sockets, and ways around a filter.
const NEVER: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_open_by_handle_at,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// New connections, which only the threads that fetch from or push to servers make.
const CONNECTING: &[c_long] = &[libc::SYS_socket, libc::SYS_connect];

/// Signals to other processes. The server threads send them to the command.
const SIGNALS: &[c_long] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_pidfd_send_signal,
];

/// Calls that access other processes. Only the collector, the command's thread and the heap snapshot thread may make them.
const LOOKING: &[c_long] = &[libc::SYS_ptrace, libc::SYS_process_vm_readv];

/// Calls for BPF and for retaining memory. Only the collector and the command's thread may make them.
const PROBING: &[c_long] = &[
    libc::SYS_process_madvise,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
];

/// Calls that start threads and processes. Threads that read untrusted files never make them.
const STARTING: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Changes to file systems. Threads that only read never make them.
const CHANGING: &[c_long] = &[
    libc::SYS_socketpair,
    // The flags are in memory, which a filter cannot read.
    libc::SYS_openat2,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    // The libc crate does not define these two for aarch64.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_setrlimit,
];

/// Calls that open files, and the index of their flags argument.
const OPENING: &[(c_long, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];

/// Bit of the call numbers of the x32 ABI, whose `seccomp_data.arch` equals that of x86-64. The x32 ABI has numbers 512 to 547 for
/// itself.
#[cfg(target_arch = "x86_64")]
const X32: c_long = 0x4000_0000;

/// Sets `no_new_privs` and installs the role's filter for this thread.
///
/// # Errors
/// The kernel or processor does not support seccomp filters, or the kernel refuses the filter.
pub(super) fn install(role: ThreadRole) -> Result<(), String> {
    // A thread with a filter cannot read other processes' filters.
    if matches!(role, ThreadRole::Guard | ThreadRole::Attach) {
        return nix::sys::prctl::set_no_new_privs().map_err(|e| e.to_string());
    }
    let program = program(role).map_err(|e| e.to_string())?;
    seccompiler::apply_filter(&program).map_err(|e| e.to_string())
}

fn program(role: ThreadRole) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules(role)?, SeccompAction::Allow, eperm, arch)?.try_into()
}

/// Rules per call. An empty list refuses the call with any arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(role: ThreadRole) -> Result<Rules, seccompiler::BackendError> {
    let mut calls = NEVER.to_vec();
    if !matches!(role, ThreadRole::Fetch | ThreadRole::Push) {
        calls.extend(CONNECTING);
    }
    match role {
        ThreadRole::Collector | ThreadRole::Command | ThreadRole::Guard | ThreadRole::Attach => {}
        ThreadRole::Heap => calls.extend(PROBING),
        ThreadRole::Server { .. } => calls.extend(LOOKING.iter().chain(PROBING)),
        ThreadRole::Fetch => calls.extend(LOOKING.iter().chain(PROBING).chain(SIGNALS)),
        ThreadRole::Record { writes_files: true } => {
            let looking = LOOKING.iter().chain(PROBING);
            calls.extend(looking.chain(SIGNALS).chain(STARTING));
        }
        // The HTTP client starts threads to resolve host names.
        ThreadRole::Push => {
            calls.extend(LOOKING.iter().chain(PROBING).chain(SIGNALS).chain(CHANGING))
        }
        ThreadRole::Symbols
        | ThreadRole::Tables
        | ThreadRole::Keep
        | ThreadRole::Look
        | ThreadRole::Record {
            writes_files: false,
        } => {
            let looking = LOOKING.iter().chain(PROBING);
            let more = SIGNALS.iter().chain(STARTING).chain(CHANGING);
            calls.extend(looking.chain(more));
        }
        ThreadRole::Files => {
            let ptrace = LOOKING
                .iter()
                .filter(|call| **call != libc::SYS_process_vm_readv);
            let looking = ptrace.chain(PROBING).chain(SIGNALS);
            // This role starts readers, and looks up paths in the file trees of targets.
            let needed = [libc::SYS_socketpair, libc::SYS_openat2];
            let changing = CHANGING.iter().filter(|call| !needed.contains(call));
            calls.extend(looking.chain(changing));
        }
    }
    let mut rules: Rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    if matches!(
        role,
        ThreadRole::Push
            | ThreadRole::Symbols
            | ThreadRole::Tables
            | ThreadRole::Files
            | ThreadRole::Keep
            | ThreadRole::Look
    ) {
        for (call, flags) in OPENING {
            rules.insert(*call, not_for_reading(*flags)?);
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        let same: Vec<_> = rules.keys().map(|call| call | X32).collect();
        rules.extend(same.into_iter().map(|call| (call, Vec::new())));
        rules.extend((512..=547).map(|call| (call | X32, Vec::new())));
    }
    Ok(rules)
}

/// Rules that match opening a file for writing, creating or truncating it.
fn not_for_reading(flags: u8) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let has = |mask: i32, value: i32| {
        let masked = SeccompCmpOp::MaskedEq(mask.unsigned_abs().into());
        let value = value.unsigned_abs().into();
        let condition = SeccompCondition::new(flags, SeccompCmpArgLen::Dword, masked, value)?;
        SeccompRule::new(vec![condition])
    };
    Ok(vec![
        has(libc::O_ACCMODE, libc::O_WRONLY)?,
        has(libc::O_ACCMODE, libc::O_RDWR)?,
        has(libc::O_CREAT, libc::O_CREAT)?,
        has(libc::O_TRUNC, libc::O_TRUNC)?,
    ])
}
