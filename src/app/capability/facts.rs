//! Gathers the facts about the kernel, memprof's privileges and its environment, without evaluating them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{MapHandle, MapType, libbpf_sys};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use super::access::{self, Access};
use crate::probe::{Probe, ProbeConfig, SyscallHooks, faults, source};
use memprof_sys::ids::Pid;
use memprof_sys::kernel_version::KernelVersion;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::procfs::{self, effective_capabilities, kernel_release};
use memprof_sys::residency::{self, Method, Scanner};

/// The kernel's BTF file; the path is the same on every architecture.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The file with the perf event type of uprobes.
pub const UPROBES: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Effective capabilities of memprof itself, as the bits of `CapEff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps(pub u64);

impl Caps {
    /// `CAP_DAC_READ_SEARCH`.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// `CAP_SETPCAP`.
    pub const SETPCAP: u32 = 8;
    /// `CAP_SYS_PTRACE`.
    pub const SYS_PTRACE: u32 = 19;
    /// `CAP_SYS_ADMIN`.
    pub const SYS_ADMIN: u32 = 21;
    /// `CAP_PERFMON`.
    pub const PERFMON: u32 = 38;
    /// `CAP_BPF`.
    pub const BPF: u32 = 39;
    /// `CAP_CHECKPOINT_RESTORE`.
    pub const CHECKPOINT_RESTORE: u32 = 40;

    /// The effective capabilities of the current thread.
    pub fn effective() -> Caps {
        Caps(effective_capabilities())
    }

    /// Whether capability number `bit` is effective.
    pub fn has(self, bit: u32) -> bool {
        self.0 & (1 << bit) != 0
    }
}

/// The outcome of trying a kernel feature on memprof itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The feature works.
    Works,
    /// The feature failed with this error.
    Fails(String),
}

impl Trial {
    /// Whether the feature works.
    pub fn works(&self) -> bool {
        *self == Trial::Works
    }

    /// The error, if the feature failed.
    pub fn why(&self) -> Option<&str> {
        match self {
            Trial::Works => None,
            Trial::Fails(why) => Some(why),
        }
    }
}

impl<T, E: std::fmt::Display> From<Result<T, E>> for Trial {
    fn from(result: Result<T, E>) -> Trial {
        match result {
            Ok(_) => Trial::Works,
            Err(error) => Trial::Fails(error.to_string()),
        }
    }
}

/// The state of the kernel's type information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BtfFact {
    /// Readable; holds the tracepoints found among those that sources need.
    Present(BTreeSet<&'static str>),
    /// The file does not exist.
    Absent,
    /// The file exists but could not be read or parsed; holds the reason.
    Unreadable(String),
}

/// All facts that determine memprof's abilities on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Reading `/proc/self/status`; most other facts depend on it.
    pub proc: Trial,
    /// Effective user id.
    pub uid: u32,
    /// Effective capabilities.
    pub caps: Caps,
    /// `/proc/sys/kernel/osrelease`.
    pub release: String,
    /// The release's version; `None` if it could not be parsed.
    pub version: Option<KernelVersion>,
    /// Architecture in Rust's spelling: `x86_64`, `aarch64`.
    pub arch: &'static str,
    /// The kernel's type information.
    pub btf: BtfFact,
    /// Creating a BPF ring buffer.
    pub bpf: Trial,
    /// Calling the BPF helpers `bpf_task_pt_regs` (5.15) and `bpf_loop` (5.17).
    pub bpf_helpers: Trial,
    /// Opening the page-fault software event, which memprof uses where the kernel lacks the page-fault tracepoints.
    pub fault_event: Trial,
    /// The `PAGEMAP_SCAN` ioctl (6.7) on memprof itself.
    pub pagemap_scan: Trial,
    /// Reading page frame numbers and `/proc/kpageflags`.
    pub page_frames: Trial,
    /// Opening a file that memprof itself has mapped, through `/proc/PID/map_files`.
    pub mapped_files: Trial,
    /// The `cachestat` system call (6.5) on a file that memprof owns.
    pub cachestat: Trial,
    /// Access to the kernel's uprobe events.
    pub uprobes: Trial,
    /// The kernel's lockdown mode: `none`, `integrity` or `confidentiality`; `None` if the kernel does not show it.
    pub lockdown: Option<String>,
    /// Whether memprof runs in the initial pid namespace; `None` if unknown.
    pub initial_pid_namespace: Option<bool>,
    /// Whether memprof runs in the initial user namespace; `None` if unknown. Capabilities in another user namespace
    /// are valid only there.
    pub initial_user_namespace: Option<bool>,
    /// Soft and hard limit of open files; `None` if unknown.
    pub open_files: Option<(u64, u64)>,
    /// The slow trials, run only by `memprof doctor`.
    pub trials: Option<Trials>,
}

/// The trials that `memprof doctor` runs in addition to the checks at start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trials {
    /// Access to a process of another user; `None` if there is none.
    pub other: Option<Access>,
    /// Loading and attaching the whole probe: the optional hooks that could not be attached, or the error. `None` if
    /// not tried.
    pub probe: Option<Result<Vec<&'static str>, String>>,
    /// Where the probe hooks system calls, if it could be loaded.
    pub syscall_hooks: Option<SyscallHooks>,
    /// Dropping privileges as each thread does after start-up.
    pub reduction: Trial,
}

impl Facts {
    /// Examines this machine without lasting changes.
    pub fn gather() -> Facts {
        let release = kernel_release();
        Facts {
            proc: fs::read("/proc/self/status").into(),
            uid: nix::unistd::geteuid().as_raw(),
            caps: Caps::effective(),
            version: KernelVersion::parse(&release),
            release,
            arch: std::env::consts::ARCH,
            btf: btf(Path::new(VMLINUX_BTF)),
            bpf: create_ring_buffer().into(),
            bpf_helpers: call_helpers().into(),
            fault_event: faults::try_event().into(),
            pagemap_scan: scan_own_pagemap().into(),
            page_frames: own_page_frames().into(),
            mapped_files: access::mapped_file("/proc/self").into(),
            cachestat: own_cachestat().into(),
            uprobes: fs::read(UPROBES).into(),
            lockdown: lockdown(Path::new("/sys/kernel/security/lockdown")),
            initial_pid_namespace: procfs::in_initial_pid_namespace(),
            initial_user_namespace: procfs::in_initial_user_namespace(),
            open_files: getrlimit(Resource::RLIMIT_NOFILE).ok(),
            trials: None,
        }
    }
}

impl Trials {
    /// Runs the trials. With `with_probe`, loads and attaches the probe without a target, and then drops it.
    pub fn run(with_probe: bool) -> Trials {
        let (probe, syscall_hooks) = match with_probe.then(load_probe) {
            Some(Ok((missing, hooks))) => (Some(Ok(missing)), Some(hooks)),
            Some(Err(e)) => (Some(Err(e)), None),
            None => (None, None),
        };
        Trials {
            other: Access::to_another_user(),
            probe,
            syscall_hooks,
            reduction: give_up_privileges().into(),
        }
    }
}

fn load_probe() -> Result<(Vec<&'static str>, SyscallHooks), String> {
    match Probe::load(&ProbeConfig::default()) {
        Ok(probe) => {
            let missing = probe.missing().iter().map(|(name, _)| *name).collect();
            Ok((missing, probe.syscall_hooks().clone()))
        }
        Err(e) => Err(format!("{e:#}")),
    }
}

/// Drops privileges as each role does, every role on its own short-lived thread.
fn give_up_privileges() -> Result<(), String> {
    for role in ThreadRole::ALL {
        let tried = std::thread::spawn(move || privileges::try_reduce(role)).join();
        tried.map_err(|_| "the thread that tried it panicked".to_owned())??;
    }
    Ok(())
}

/// The lockdown mode; if the file exists but cannot be read, `unknown` and the error.
fn lockdown(path: &Path) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => selected(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => Some(format!("unknown: cannot read {}: {e}", path.display())),
    }
}

/// Extracts `integrity` from `none [integrity] confidentiality`.
fn selected(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

fn btf(path: &Path) -> BtfFact {
    // Not `exists`: it also returns false if access is denied.
    if let Err(e) = path.metadata() {
        return match e.kind() {
            io::ErrorKind::NotFound => BtfFact::Absent,
            _ => BtfFact::Unreadable(e.to_string()),
        };
    }
    match Btf::from_path(path) {
        Ok(btf) => {
            let there = |name: &&str| {
                btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))
                    .is_some()
            };
            BtfFact::Present(source::tracepoints().filter(there).collect())
        }
        Err(error) => BtfFact::Unreadable(error.to_string()),
    }
}

/// Creates the smallest BPF ring buffer and drops it; needs `bpf(2)`, the privilege and Linux 5.8.
fn create_ring_buffer() -> Result<(), libbpf_rs::Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .unwrap_or(4096);
    MapHandle::create(
        MapType::RingBuf,
        Some("memprof_probe"),
        0,
        0,
        page as u32,
        &options,
    )
    .map(drop)
}

/// Probes for each BPF helper that memprof's BPF program requires; libbpf loads a program with a single call of it.
fn call_helpers() -> Result<(), String> {
    let helpers = [
        ("bpf_task_pt_regs", libbpf_sys::BPF_FUNC_task_pt_regs),
        ("bpf_loop", libbpf_sys::BPF_FUNC_loop),
    ];
    for (name, id) in helpers {
        let kind = libbpf_sys::BPF_PROG_TYPE_TRACEPOINT;
        // SAFETY: plain numbers; a null options pointer is allowed.
        let answer = unsafe { libbpf_sys::libbpf_probe_bpf_helper(kind, id, std::ptr::null()) };
        match answer {
            1 => {}
            0 => return Err(format!("this kernel has no {name}")),
            _ => return Err(format!("{name}: {}", io::Error::from_raw_os_error(-answer))),
        }
    }
    Ok(())
}

/// Opens a scanner on memprof itself, as the residency scan does, without scanning.
fn scan_own_pagemap() -> residency::Result<()> {
    Scanner::open(Pid(std::process::id()), Method::Ioctl).map(drop)
}

/// Checks that the kernel shows page frames and their flags; this needs CAP_SYS_ADMIN.
fn own_page_frames() -> Result<(), String> {
    let scanner =
        Scanner::open(Pid(std::process::id()), Method::Auto).map_err(|e| e.to_string())?;
    match scanner.sees_page_flags() {
        true => Ok(()),
        false => Err("/proc/self/pagemap or /proc/kpageflags does not show them".into()),
    }
}

/// Calls `cachestat` on a file that memprof owns: the kernel requires write access to the file.
fn own_cachestat() -> residency::Result<()> {
    let file = memfd_create(c"memprof-doctor", MFdFlags::MFD_CLOEXEC).map_err(|e| {
        residency::Error::Io {
            what: "memfd_create(2)".into(),
            source: e.into(),
        }
    })?;
    residency::cachestat::cachestat(file.as_fd(), 0, 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits() {
        let caps = Caps(0xc0_0028_0000);
        for bit in [Caps::SYS_PTRACE, Caps::SYS_ADMIN, Caps::PERFMON, Caps::BPF] {
            assert!(caps.has(bit), "capability {bit}");
        }
        assert!(!caps.has(0));
    }

    #[test]
    fn the_selected_lockdown_mode_is_found() {
        let text = "none [integrity] confidentiality";
        assert_eq!(selected(text).as_deref(), Some("integrity"));
        assert_eq!(selected("none"), None);
    }

    #[test]
    fn a_missing_btf_file_is_absent_and_a_broken_one_unreadable() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(btf(&dir.path().join("none")), BtfFact::Absent);
        let broken = dir.path().join("broken");
        fs::write(&broken, b"not BTF").unwrap();
        assert!(matches!(btf(&broken), BtfFact::Unreadable(_)));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let facts = Facts::gather();
        assert!(facts.version.is_some(), "{:?}", facts.release);
        assert!(facts.open_files.is_some_and(|(soft, hard)| soft <= hard));
        if let Some(version) = facts.version {
            // The trials agree with the kernel version, unless something refuses the calls.
            assert_eq!(
                facts.pagemap_scan.works(),
                version >= KernelVersion(6, 7),
                "{:?}",
                facts.pagemap_scan
            );
            let too_old = version < KernelVersion(6, 5);
            assert!(!(too_old && facts.cachestat.works()));
        }
    }
}
