//! What memprof can do here: kernel facts become decisions, in words.
//!
//! [`Facts::gather`] looks at the machine; [`checks`] judges and touches nothing, so every decision
//! is tested from made-up facts. [`doctor`] shows all of them, [`require`] stops the start where the
//! main job cannot work.

mod access;
mod facts;
mod trials;

use std::fmt::{self, Write};

pub use access::{Access, require_access};
pub use facts::{BtfFact, Caps, Facts, KernelVersion, Probe, TRACEPOINTS, Trials, VMLINUX_BTF};

/// The oldest kernel on which memprof keeps all that it promises. What older ones can do is found out
/// by trying, not by their version: vendors bring newer BPF back to older kernels.
pub const FULL_KERNEL: KernelVersion = KernelVersion(6, 1);
/// Below this hard limit of open files a target with many libraries may not get all its names.
const ENOUGH_OPEN_FILES: u64 = 1024;
/// Below this one memprof itself cannot start: its BPF maps, programs and links take some 90.
const LEAST_OPEN_FILES: u64 = 128;

/// How well something that memprof needs is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As it should be.
    Ok,
    /// memprof's main job works, with less; the check says what.
    Degraded,
    /// memprof's main job does not work.
    Missing,
}

impl Status {
    /// Short lower-case label for reports.
    pub fn label(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Degraded => "degraded",
            Status::Missing => "missing",
        }
    }
}

/// One decision: what was looked for, what was found, what follows and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked for.
    pub name: &'static str,
    /// The decision.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What does not work; empty when `status` is `Ok`.
    pub consequence: String,
    /// What to do; empty when `status` is `Ok`.
    pub remedy: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            status: Status::Ok,
            found: found.into(),
            consequence: String::new(),
            remedy: String::new(),
        }
    }

    fn not_ok(
        status: Status,
        name: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            name,
            status,
            found: found.into(),
            consequence: consequence.into(),
            remedy: remedy.into(),
        }
    }
}

/// All decisions, in the order in which they matter.
pub fn checks(facts: &Facts) -> Vec<Check> {
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
        ownership_tracepoints(facts),
        fault_tracepoints(facts),
        cache_tracepoints(facts),
        page_scan(facts),
        page_frames(facts),
        cache_totals(facts),
        pid_namespace(facts),
        open_files(facts),
    ];
    checks.extend(trials::whole_probe(facts));
    checks.extend(trials::reduction(facts));
    checks
}

fn process_files(facts: &Facts) -> Check {
    let name = "/proc";
    match &facts.proc {
        Probe::Works => Check::ok(name, "can be read"),
        Probe::Fails(why) => Check::not_ok(
            Status::Missing,
            name,
            format!("/proc/self/status cannot be read: {why}"),
            "neither memprof's own privileges nor the target's memory can be looked at",
            "as root: mount -t proc proc /proc",
        ),
    }
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
            format!("{found}, of a user namespace"),
            "the kernel lets no BPF program be loaded with the capabilities of a user namespace",
            "run memprof outside of it; start a container by root, without user namespaces",
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
            "root without CAP_BPF and CAP_PERFMON (a container?) may not load the probe",
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
         CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE: without the first two the probe may not be loaded",
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
    let name = "mapped files";
    match &facts.mapped_files {
        Probe::Works => Check::ok(name, "can be opened by /proc/PID/map_files"),
        Probe::Fails(why) => Check::not_ok(
            Status::Degraded,
            name,
            format!("/proc/PID/map_files cannot be used: {why}"),
            "code of files that were deleted or replaced since they were mapped has no names and no unwind \
             tables",
            "run memprof as root, or give it CAP_CHECKPOINT_RESTORE (Linux 5.9)",
        ),
    }
}

fn kernel(facts: &Facts) -> Check {
    let name = "kernel";
    let found = format!("Linux {} on {}", facts.release, facts.arch);
    let newer = "boot a kernel of 6.1 or later";
    match facts.version {
        None => Check::not_ok(
            Status::Degraded,
            name,
            found,
            "the version cannot be read from the release string: what follows was probed only",
            newer,
        ),
        Some(version) if version < FULL_KERNEL => Check::not_ok(
            Status::Degraded,
            name,
            found,
            format!(
                "before {FULL_KERNEL} the kernel may refuse the probe, unless its vendor has \
                 brought newer BPF back to it"
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
            "the kernel refuses BPF programs that read kernel memory",
            "boot with lockdown=integrity or without lockdown",
        ),
        Some(mode) => Check::ok(name, mode),
        None => Check::ok(name, "not shown by this kernel"),
    }
}

fn type_information(facts: &Facts) -> Check {
    let name = "type information (BTF)";
    let remedy =
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (every current distribution's is)";
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
            format!("{VMLINUX_BTF} cannot be read: {why}"),
            "the probe cannot be fitted to this kernel",
            "check the file's permissions and that /sys is the host's",
        ),
    }
}

fn bpf(facts: &Facts) -> Check {
    let name = "bpf(2)";
    match &facts.bpf {
        Probe::Works => Check::ok(name, "a ring buffer can be created"),
        Probe::Fails(why) => Check::not_ok(
            Status::Missing,
            name,
            format!("creating a ring buffer failed: {why}"),
            "the probe cannot be loaded",
            "run as root; in a container start it with --privileged (a seccomp filter may refuse \
             bpf); the kernel needs CONFIG_BPF_SYSCALL=y",
        ),
    }
}

fn bpf_helpers(facts: &Facts) -> Check {
    let name = "BPF helpers";
    match &facts.bpf_helpers {
        Probe::Works => Check::ok(name, "bpf_task_pt_regs bpf_loop"),
        Probe::Fails(why) => Check::not_ok(
            Status::Missing,
            name,
            why,
            "the probe cannot be loaded",
            format!("run memprof as root on a kernel of {FULL_KERNEL} or later"),
        ),
    }
}

fn tracepoints(
    facts: &Facts,
    name: &'static str,
    wanted: &[&'static str],
    status: Status,
    consequence: &str,
    remedy: &str,
) -> Check {
    let BtfFact::Present(there) = &facts.btf else {
        let found = "not known without type information";
        return Check::not_ok(status, name, found, consequence, remedy);
    };
    let mut missing = wanted.to_vec();
    missing.retain(|name| !there.contains(name));
    if missing.is_empty() {
        return Check::ok(name, wanted.join(" "));
    }
    let found = format!("not in this kernel: {}", missing.join(" "));
    Check::not_ok(status, name, found, consequence, remedy)
}

fn ownership_tracepoints(facts: &Facts) -> Check {
    tracepoints(
        facts,
        "ownership tracepoints",
        &[
            "mm_page_alloc",
            "sched_process_fork",
            "sched_process_exec",
            "sched_process_exit",
        ],
        Status::Missing,
        "allocations cannot be told from other faults, nor processes followed",
        "boot a kernel built with CONFIG_TRACEPOINTS=y and CONFIG_DEBUG_INFO_BTF=y",
    )
}

fn fault_tracepoints(facts: &Facts) -> Check {
    tracepoints(
        facts,
        "fault tracepoints",
        &["page_fault_user", "page_fault_kernel"],
        Status::Missing,
        "a page that was brought in cannot be told from one that was only mapped or made writable",
        "use an x86-64 machine: other architectures do not have these tracepoints",
    )
}

fn cache_tracepoints(facts: &Facts) -> Check {
    tracepoints(
        facts,
        "page-cache tracepoints",
        &[
            "mm_filemap_add_to_page_cache",
            "mm_filemap_delete_from_page_cache",
        ],
        Status::Missing,
        "the page cache cannot be attributed, and the probe does not attach without it",
        "boot a kernel built with CONFIG_TRACEPOINTS=y",
    )
}

fn page_scan(facts: &Facts) -> Check {
    let name = "page scan";
    let newer = "boot a kernel of 6.7 or later";
    match (&facts.pagemap_scan, &facts.page_frames) {
        (Probe::Works, _) => Check::ok(name, "PAGEMAP_SCAN"),
        (Probe::Fails(why), Probe::Works) => Check::not_ok(
            Status::Degraded,
            name,
            format!("no PAGEMAP_SCAN: {why}"),
            "resident pages are read from /proc/PID/pagemap and /proc/kpageflags: the same \
             figures, but each report takes longer, and both files want CAP_SYS_ADMIN",
            newer,
        ),
        (Probe::Fails(why), Probe::Fails(frames)) => Check::not_ok(
            Status::Missing,
            name,
            format!("no PAGEMAP_SCAN: {why}; no page frames: {frames}"),
            "resident pages cannot be told apart",
            format!("{newer}, or run memprof as root (CAP_SYS_ADMIN)"),
        ),
    }
}

fn page_frames(facts: &Facts) -> Check {
    let name = "page frames";
    match &facts.page_frames {
        Probe::Works => Check::ok(name, "shown, with their flags"),
        Probe::Fails(why) => Check::not_ok(
            Status::Degraded,
            name,
            format!("not shown: {why}"),
            "private mappings of devices count as nothing, shared memory below overlayfs as file pages and, \
             before Linux 6.16, the huge zero page as anonymous memory",
            "where that matters run memprof as root, or give it CAP_SYS_ADMIN",
        ),
    }
}

fn cache_totals(facts: &Facts) -> Check {
    let name = "cache totals";
    match &facts.cachestat {
        Probe::Works => Check::ok(name, "cachestat"),
        Probe::Fails(why) => Check::not_ok(
            Status::Degraded,
            name,
            format!("no cachestat: {why}"),
            "page-cache figures cannot be held against the kernel's own, file by file",
            "run memprof on a kernel of 6.5 or later",
        ),
    }
}

fn pid_namespace(facts: &Facts) -> Check {
    let name = "pid namespace";
    match facts.initial_pid_namespace {
        Some(true) => Check::ok(name, "the initial one"),
        Some(false) => Check::not_ok(
            Status::Degraded,
            name,
            "a container's",
            "only processes of the same container can be profiled",
            "start the container with --pid=host",
        ),
        None => Check::ok(name, "not known"),
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
                "memprof itself needs {LEAST_OPEN_FILES}, and one more for each executable file that \
                 the target maps"
            ),
            remedy,
        ),
        Some((soft, hard)) if hard < ENOUGH_OPEN_FILES => Check::not_ok(
            Status::Degraded,
            name,
            format!("at most {hard} (now {soft})"),
            "each executable file that the target maps takes one, and so does each HTTP connection: \
             functions may be without names and clients may have to wait",
            remedy,
        ),
        Some((soft, hard)) => Check::ok(name, format!("at most {hard} (now {soft})")),
        None => Check::ok(name, "limit not known"),
    }
}

/// Why memprof cannot start: the checks that found something missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The missing things; never empty.
    pub missing: Vec<Check>,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memprof cannot profile anything here")?;
        for check in &self.missing {
            write!(f, "\n  {}: {}", check.name, check.found)?;
            write!(f, "\n    {}", check.consequence)?;
            write!(f, "\n    what to do: {}", check.remedy)?;
        }
        if self.missing.iter().any(|c| c.name != "privileges") {
            write!(f, "\n`memprof doctor` shows every check")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unfit {}

/// What stands in the way of the main job, if anything.
///
/// Without `/proc` or privileges most other probes fail as well: then that is the only thing named.
///
/// # Errors
/// [`Unfit`], when at least one check is [`Status::Missing`].
pub fn decide(facts: &Facts) -> Result<(), Unfit> {
    let mut missing = checks(facts);
    missing.retain(|check| check.status == Status::Missing);
    if missing
        .first()
        .is_some_and(|c| ["/proc", "privileges"].contains(&c.name))
    {
        missing.truncate(1);
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Unfit { missing })
}

/// Looks at this machine and says whether memprof's main job works here; called at the start.
///
/// # Errors
/// [`Unfit`], with what is missing, why it matters and what to do.
pub fn require() -> Result<(), Unfit> {
    decide(&Facts::gather())
}

/// All that `memprof doctor` looks at. The whole probe is not tried where something that it needs is missing.
pub fn examine() -> Facts {
    let facts = Facts::gather();
    let fit = decide(&facts).is_ok();
    Facts {
        trials: Some(Trials::run(fit)),
        ..facts
    }
}

/// What `memprof doctor` prints, and its exit status: 0 if the main job works here, else 1.
pub fn doctor(facts: &Facts) -> (String, u8) {
    let checks = checks(facts);
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &checks {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<8}  {:<width$}  {}",
            check.status.label(),
            check.name,
            check.found
        );
        if check.status != Status::Ok {
            let _ = writeln!(text, "{:10}so: {}", "", check.consequence);
            let _ = writeln!(text, "{:10}to do: {}", "", check.remedy);
        }
    }
    let count = |status| checks.iter().filter(|c| c.status == status).count();
    let (missing, degraded) = (count(Status::Missing), count(Status::Degraded));
    let verdict = match (missing, degraded) {
        (0, 0) => "memprof works here in full.".to_owned(),
        (0, n) if trials::others_refused(facts) => format!(
            "memprof works here for processes of user id {} alone; degraded: {n}.",
            facts.uid
        ),
        (0, n) => format!("memprof works here; degraded: {n}."),
        (n, _) => format!("memprof does not work here; missing: {n}."),
    };
    let _ = writeln!(text, "\n{verdict}");
    (text, u8::from(missing > 0))
}

#[cfg(test)]
mod tests;
