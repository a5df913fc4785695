//! The checks: one function for each requirement of memprof.

use super::facts::{BtfFact, Caps, Facts, Trial, VMLINUX_BTF};
use super::{Check, FULL_KERNEL, Status, trials};
use crate::probe::faults;
use crate::probe::source::{self, Tracepoints};
use memprof_sys::kernel_version::KernelVersion;

/// With a lower hard limit of open files, some functions of a target with many libraries may lack names.
pub(super) const ENOUGH_OPEN_FILES: u64 = 1024;
/// With a lower limit memprof itself cannot start: its BPF maps, programs and links take about 90 descriptors.
const LEAST_OPEN_FILES: u64 = 128;

/// A kernel feature that memprof detects by trying it.
pub(super) struct Tried {
    pub(super) name: &'static str,
    /// The finding if it works.
    pub(super) works: &'static str,
    /// The status if it fails.
    pub(super) status: Status,
    /// The finding if it fails; precedes the error.
    pub(super) fails: &'static str,
    pub(super) consequence: &'static str,
    pub(super) remedy: &'static str,
}

impl Tried {
    pub(super) fn check(self, trial: &Trial) -> Check {
        match trial {
            Trial::Works => Check::ok(self.name, self.works),
            Trial::Fails(why) => Check::not_ok(
                self.status,
                self.name,
                format!("{}: {why}", self.fails),
                self.consequence,
                self.remedy,
            ),
        }
    }
}

/// All checks, in order of importance.
pub(crate) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![
        process_files(facts),
        privileges(facts),
        trials::other_processes(facts),
        mapped_files(facts),
        kernel(facts),
        lockdown(facts),
        type_information(facts),
        bpf(facts),
        bpf_helpers(facts),
    ];
    let needed = source::chosen(&[])
        .into_iter()
        .flat_map(|source| source.tracepoints);
    checks.extend(needed.map(|needed| tracepoints(facts, needed)));
    checks.extend([
        page_faults(facts),
        page_scan(facts),
        page_frames(facts),
        cache_totals(facts),
        uprobes(facts),
        pid_namespace(facts),
        open_files(facts),
    ]);
    checks.extend(trials::whole_probe(facts));
    checks.extend(trials::syscall_hooks(facts));
    checks.extend(trials::reduction(facts));
    checks
}

fn process_files(facts: &Facts) -> Check {
    Tried {
        name: "/proc",
        works: "can be read",
        status: Status::Missing,
        fails: "cannot read /proc/self/status",
        consequence: "memprof can read neither its own privileges nor the target's memory",
        remedy: "as root: mount -t proc proc /proc",
    }
    .check(&facts.proc)
}

fn privileges(facts: &Facts) -> Check {
    let name = "privileges";
    let admin = facts.caps.has(Caps::SYS_ADMIN);
    let bpf = facts.caps.has(Caps::BPF) && facts.caps.has(Caps::PERFMON);
    let found = format!("user id {}, {}", facts.uid, cap_names(facts.caps));
    if facts.initial_user_namespace == Some(false) {
        return Check::not_ok(
            Status::Missing,
            name,
            format!("{found}, in a user namespace"),
            "capabilities in a user namespace do not permit loading BPF programs",
            "run memprof in the initial user namespace; start a container as root, without user namespaces",
        );
    }
    if admin || (bpf && facts.version >= Some(KernelVersion(5, 8))) {
        return Check::ok(name, found);
    }
    if facts.uid == 0 {
        return Check::not_ok(
            Status::Missing,
            name,
            found,
            "root lacks CAP_BPF and CAP_PERFMON (in a container?), so the probe cannot be loaded",
            "run memprof outside the container, or start the container with --privileged",
        );
    }
    let missing: Vec<_> = [(Caps::BPF, "CAP_BPF"), (Caps::PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|(bit, _)| !facts.caps.has(*bit))
        .map(|(_, name)| name)
        .collect();
    Check::not_ok(
        Status::Missing,
        name,
        found,
        "memprof needs root, or CAP_BPF and CAP_PERFMON and, for processes of other users, CAP_SYS_PTRACE, \
         CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE: without the first two it cannot load the probe",
        format!("run `sudo memprof …`, or give it {}", missing.join(" and ")),
    )
}

fn cap_names(caps: Caps) -> String {
    let known = [
        (Caps::BPF, "CAP_BPF"),
        (Caps::PERFMON, "CAP_PERFMON"),
        (Caps::SYS_ADMIN, "CAP_SYS_ADMIN"),
        (Caps::SYS_PTRACE, "CAP_SYS_PTRACE"),
        (Caps::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
        (Caps::CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE"),
    ];
    let names: Vec<_> = known
        .iter()
        .filter(|(bit, _)| caps.has(*bit))
        .map(|(_, name)| *name)
        .collect();
    if names.is_empty() {
        return "none of the capabilities that memprof uses".into();
    }
    names.join(" ")
}

fn mapped_files(facts: &Facts) -> Check {
    Tried {
        name: "mapped files",
        works: "can be opened through /proc/PID/map_files",
        status: Status::Degraded,
        fails: "cannot open files in /proc/PID/map_files",
        consequence: "files that were deleted or replaced after they were mapped have no function names and no unwind \
             tables",
        remedy: "run memprof as root, or give it CAP_CHECKPOINT_RESTORE (Linux 5.9)",
    }
    .check(&facts.mapped_files)
}

fn kernel(facts: &Facts) -> Check {
    let name = "kernel";
    let found = format!("Linux {} on {}", facts.release, facts.arch);
    let newer = "boot Linux 6.1 or later";
    match facts.version {
        None => Check::not_ok(
            Status::Degraded,
            name,
            found,
            "memprof cannot parse the release string and does not know the kernel's version; it tried each feature below",
            newer,
        ),
        Some(version) if version < FULL_KERNEL => Check::not_ok(
            Status::Degraded,
            name,
            found,
            format!(
                "kernels before {FULL_KERNEL} may reject the probe, unless the vendor has backported \
                 newer BPF features"
            ),
            newer,
        ),
        Some(_) => Check::ok(name, found),
    }
}

fn lockdown(facts: &Facts) -> Check {
    let name = "lockdown";
    match facts.lockdown.as_deref() {
        Some("confidentiality") => Check::not_ok(
            Status::Missing,
            name,
            "confidentiality",
            "the kernel rejects BPF programs that read kernel memory",
            "boot with lockdown=integrity or without lockdown",
        ),
        Some(mode) => Check::ok(name, mode),
        None => Check::ok(name, "not shown by this kernel"),
    }
}

fn type_information(facts: &Facts) -> Check {
    let name = "type information (BTF)";
    let remedy =
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (current distribution kernels are)";
    match &facts.btf {
        BtfFact::Present(_) => Check::ok(name, VMLINUX_BTF),
        BtfFact::Absent => Check::not_ok(
            Status::Missing,
            name,
            format!("there is no {VMLINUX_BTF}"),
            "the probe cannot be fitted to this kernel",
            remedy,
        ),
        BtfFact::Unreadable(why) => Check::not_ok(
            Status::Missing,
            name,
            format!("cannot read {VMLINUX_BTF}: {why}"),
            "the probe cannot be fitted to this kernel",
            "check the file's permissions, and that /sys is the host's sysfs",
        ),
    }
}

fn bpf(facts: &Facts) -> Check {
    Tried {
        name: "bpf(2)",
        works: "a ring buffer can be created",
        status: Status::Missing,
        fails: "cannot create a ring buffer",
        consequence: "the probe cannot be loaded",
        remedy: "run memprof as root; start a container with --privileged (its seccomp filter may block \
             bpf); the kernel needs CONFIG_BPF_SYSCALL=y",
    }
    .check(&facts.bpf)
}

fn uprobes(facts: &Facts) -> Check {
    Tried {
        name: "uprobes",
        works: "for --heap",
        status: Status::Degraded,
        fails: "cannot read the number of these events",
        consequence: "--heap cannot listen to samplers of allocations; everything else works",
        remedy: "boot a kernel built with CONFIG_UPROBE_EVENTS=y; mount -t sysfs sysfs /sys",
    }
    .check(&facts.uprobes)
}

fn bpf_helpers(facts: &Facts) -> Check {
    let name = "BPF helpers";
    match &facts.bpf_helpers {
        Trial::Works => Check::ok(name, "bpf_task_pt_regs bpf_loop"),
        Trial::Fails(why) => Check::not_ok(
            Status::Missing,
            name,
            why,
            "the probe cannot be loaded",
            format!("run memprof as root on Linux {FULL_KERNEL} or later"),
        ),
    }
}

/// Checks that the kernel has the tracepoints that a source attaches to.
fn tracepoints(facts: &Facts, needed: &Tracepoints) -> Check {
    let not_ok = |found: String| {
        Check::not_ok(
            Status::Missing,
            needed.check,
            found,
            needed.consequence,
            needed.remedy,
        )
    };
    let BtfFact::Present(there) = &facts.btf else {
        return not_ok("unknown without type information (BTF)".to_owned());
    };
    let mut missing = needed.names.to_vec();
    missing.retain(|name| !there.contains(name));
    match missing.is_empty() {
        true => Check::ok(needed.check, needed.names.join(" ")),
        false => not_ok(format!("not in this kernel: {}", missing.join(" "))),
    }
}

/// Which hooks see page faults; see `FaultHooks`.
fn page_faults(facts: &Facts) -> Check {
    let BtfFact::Present(there) = &facts.btf else {
        return Check::not_ok(
            Status::Missing,
            "page faults",
            "unknown without type information (BTF)",
            "a newly allocated page cannot be told from one that was only mapped or made writable",
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y",
        );
    };
    if faults::TRACEPOINTS.iter().all(|name| there.contains(name)) {
        return Check::ok("page faults", faults::TRACEPOINTS.join(" "));
    }
    Tried {
        name: "page faults",
        works: "seen by their software event: this kernel has no tracepoints for them",
        status: Status::Missing,
        fails: "no tracepoints in this kernel, and no software event",
        consequence: "a newly allocated page cannot be told from one that was only mapped or made writable",
        remedy: "boot a kernel built with CONFIG_PERF_EVENTS=y; a container's seccomp profile must permit perf_event_open",
    }
    .check(&facts.fault_event)
}

fn page_scan(facts: &Facts) -> Check {
    let name = "page scan";
    let newer = match KernelVersion::running() >= KernelVersion(6, 7) {
        true => "boot a kernel built with CONFIG_PROC_PAGE_MONITOR=y",
        false => "boot Linux 6.7 or later",
    };
    match (&facts.pagemap_scan, &facts.page_frames) {
        (Trial::Works, _) => Check::ok(name, "PAGEMAP_SCAN"),
        (Trial::Fails(why), Trial::Works) => Check::not_ok(
            Status::Degraded,
            name,
            format!("no PAGEMAP_SCAN: {why}"),
            "resident pages are read from /proc/PID/pagemap and /proc/kpageflags: the figures are the \
             same, but each report takes longer, and both files need CAP_SYS_ADMIN",
            newer,
        ),
        (Trial::Fails(why), Trial::Fails(frames)) => Check::not_ok(
            Status::Missing,
            name,
            format!("no PAGEMAP_SCAN: {why}; no page frames: {frames}"),
            "memprof cannot tell the kinds of resident pages apart",
            format!("{newer}, or run memprof as root (CAP_SYS_ADMIN)"),
        ),
    }
}

fn page_frames(facts: &Facts) -> Check {
    Tried {
        name: "page frames",
        works: "shown, with their flags",
        status: Status::Degraded,
        fails: "not shown",
        consequence: "private mappings of devices are not counted, shared memory below overlayfs counts as file pages \
             and, before Linux 6.16, the huge zero page counts as anonymous memory",
        remedy: "if that matters, run memprof as root, or give it CAP_SYS_ADMIN",
    }
    .check(&facts.page_frames)
}

fn cache_totals(facts: &Facts) -> Check {
    Tried {
        name: "cache totals",
        works: "cachestat",
        status: Status::Degraded,
        fails: "no cachestat",
        consequence: "page-cache figures cannot be compared with the kernel's own for each file",
        remedy: "boot Linux 6.5 or later",
    }
    .check(&facts.cachestat)
}

fn pid_namespace(facts: &Facts) -> Check {
    let name = "pid namespace";
    match facts.initial_pid_namespace {
        Some(true) => Check::ok(name, "the initial one"),
        Some(false) => Check::not_ok(
            Status::Degraded,
            name,
            "not the initial one (a container's)",
            "only processes of the same container can be profiled",
            "start the container with --pid=host",
        ),
        None => Check::ok(name, "unknown"),
    }
}

fn open_files(facts: &Facts) -> Check {
    let name = "open files";
    let remedy =
        "raise the hard limit: `ulimit -Hn 65536`, in a container --ulimit nofile=65536:65536";
    match facts.open_files {
        Some((soft, hard)) if hard < LEAST_OPEN_FILES => Check::not_ok(
            Status::Missing,
            name,
            format!("at most {hard} (now {soft})"),
            format!(
                "memprof itself needs {LEAST_OPEN_FILES} open files, and one more for each executable \
                 file that the target maps"
            ),
            remedy,
        ),
        Some((soft, hard)) if hard < ENOUGH_OPEN_FILES => Check::not_ok(
            Status::Degraded,
            name,
            format!("at most {hard} (now {soft})"),
            "each executable file that the target maps and each HTTP connection takes one: functions may \
             have no names, and clients may have to wait",
            remedy,
        ),
        Some((soft, hard)) => Check::ok(name, format!("at most {hard} (now {soft})")),
        None => Check::ok(name, "limit unknown"),
    }
}
