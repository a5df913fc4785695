//! What capturing needs of the kernel and of the recorder's privileges.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use memprof_sys::kernel_version::KernelVersion;
use memprof_sys::procfs;

use super::{Check, Status};
use crate::capture::{Capture, CaptureOptions};
use crate::cgroups;
use crate::config::Config;

/// The oldest kernel on which the recorder is tested, and the oldest one that can load its programs (`bpf_loop`).
const TESTED: KernelVersion = KernelVersion(6, 1);
const OLDEST: KernelVersion = KernelVersion(5, 17);

/// The kernel's type information, for which the programs are adapted.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Capabilities by their number: those without which nothing is captured, and those for files and processes of other users.
const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
const OTHERS: [(u32, &str); 2] = [(2, "CAP_DAC_READ_SEARCH"), (19, "CAP_SYS_PTRACE")];
/// Includes CAP_PERFMON and CAP_BPF.
const SYS_ADMIN: u32 = 21;

pub(super) fn checks(config: Option<&Config>) -> Vec<Check> {
    vec![
        kernel(&procfs::kernel_release()),
        type_information(Path::new(BTF)),
        control_groups(cgroups::mount()),
        pid_namespace(procfs::in_initial_pid_namespace() == Some(true)),
        capabilities(procfs::effective_capabilities()),
        programs(config),
    ]
}

/// The kernel's release: `6.1.0-18-amd64`.
pub fn kernel(release: &str) -> Check {
    let name = "kernel";
    let remedy = format!("boot Linux {TESTED} or later");
    let release = release.trim();
    match KernelVersion::parse(release) {
        Some(version) if version >= TESTED => Check::ok(name, format!("Linux {release}")),
        Some(version) if version >= OLDEST => Check::not_ok(
            Status::Degraded,
            name,
            format!("Linux {release}"),
            "the programs are not tested with it",
            remedy,
        ),
        Some(_) => Check::not_ok(
            Status::Missing,
            name,
            format!("Linux {release}"),
            "the kernel cannot load the programs, which capture connections",
            remedy,
        ),
        None => Check::not_ok(
            Status::Degraded,
            name,
            format!("unknown release `{release}`"),
            "it is not known whether the kernel can load the programs",
            "mount -t proc proc /proc",
        ),
    }
}

fn type_information(path: &Path) -> Check {
    let name = "BTF";
    match fs::File::open(path) {
        Ok(_) => Check::ok(name, path.display().to_string()),
        Err(e) => Check::not_ok(
            Status::Missing,
            name,
            format!("cannot open {}: {e}", path.display()),
            "the programs cannot be adapted to this kernel, and no connection is captured",
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y; mount -t sysfs sysfs /sys",
        ),
    }
}

/// The mount point of control groups of version 2.
pub fn control_groups(mount: io::Result<PathBuf>) -> Check {
    let name = "control groups";
    match mount {
        Ok(path) => Check::ok(name, format!("version 2 at {}", path.display())),
        Err(e) => Check::not_ok(
            Status::Missing,
            name,
            e.to_string(),
            "nodes have no control group to attach to, and no connection is captured",
            "mount -t cgroup2 none /sys/fs/cgroup; in a container, mount the host's: -v /sys/fs/cgroup:/sys/fs/cgroup:ro --cgroupns=host",
        ),
    }
}

/// Whether the recorder's pid namespace is the initial one.
pub fn pid_namespace(is_initial: bool) -> Check {
    let name = "pid namespace";
    if is_initial {
        return Check::ok(name, "the initial one");
    }
    Check::not_ok(
        Status::Degraded,
        name,
        "not the initial one (a container's)",
        "processes outside of the container are not found by `port` or `pid`, and system calls are not captured",
        "start the container with --pid=host, or name the node's `cgroup` or `unit`",
    )
}

/// The effective capabilities, as the bits of `CapEff`.
pub fn capabilities(mask: u64) -> Check {
    let name = "capabilities";
    let has = |bit: u32| mask & (1 << bit) != 0;
    let has_needed = |bit| has(bit) || (bit >= 38 && has(SYS_ADMIN));
    let without = |all: &[(u32, &'static str)]| -> Vec<_> {
        let missing = all.iter().filter(|(bit, _)| !has_needed(*bit));
        missing.map(|(_, name)| *name).collect()
    };
    let missing = without(&NEEDED);
    if !missing.is_empty() {
        return Check::not_ok(
            Status::Missing,
            name,
            format!("without {}", missing.join(", ")),
            "the programs cannot be loaded and attached, and no connection is captured",
            "run the recorder as root, with sudo, or by the unit tezos-recorder.service; start a container with --privileged",
        );
    }
    let missing = without(&OTHERS);
    if !missing.is_empty() {
        return Check::not_ok(
            Status::Degraded,
            name,
            format!("without {}", missing.join(", ")),
            "the process of another user that listens at a P2P port is not found, and files that only this user may read cannot be read",
            "run the recorder as root, or by the unit tezos-recorder.service",
        );
    }
    Check::ok(name, NEEDED.map(|(_, name)| name).join(" "))
}

/// Loads the programs, without a target.
fn programs(config: Option<&Config>) -> Check {
    let name = "BPF programs";
    let options = CaptureOptions {
        ring: config.map_or(CaptureOptions::RING, |config| config.ring as usize),
        ..CaptureOptions::default()
    };
    match Capture::open(&options) {
        Ok(_) => Check::ok(name, "loaded, and removed again"),
        Err(e) => Check::not_ok(
            Status::Missing,
            name,
            e.to_string(),
            "no connection is captured",
            "run the recorder as root on a kernel built with CONFIG_BPF_SYSCALL=y and CONFIG_CGROUP_BPF=y; a container's seccomp profile must permit bpf",
        ),
    }
}
