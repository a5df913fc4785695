//! Where the probe sees page faults: at the kernel's tracepoints, or, where there are none (64-bit ARM), at the software
//! event that counts them (`src/bpf/fault.bpf.h`).

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;
use libbpf_rs::{Link, ProgramMut, libbpf_sys};

/// Environment variable, for tests: `tracepoints` or `events`.
const OVERRIDE: &str = "MEMPROF_FAULT_HOOKS";

/// The tracepoints, which Linux has on x86 and RISC-V.
pub(crate) const TRACEPOINTS: [&str; 2] = ["page_fault_user", "page_fault_kernel"];

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Where the probe sees page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultHooks {
    /// At the tracepoints [`TRACEPOINTS`].
    Tracepoints,
    /// At the software event `PERF_COUNT_SW_PAGE_FAULTS` of each processor.
    Events,
}

impl FaultHooks {
    /// The tracepoints if this kernel has them.
    ///
    /// # Errors
    /// The environment variable for tests has another value.
    pub(super) fn choose() -> Result<FaultHooks> {
        match std::env::var(OVERRIDE).ok().as_deref() {
            Some("tracepoints") => Ok(FaultHooks::Tracepoints),
            Some("events") => Ok(FaultHooks::Events),
            Some(other) => Err(anyhow!(
                "{OVERRIDE} is {other:?}, not `tracepoints` or `events`"
            )),
            // Reading the kernel's types takes milliseconds.
            None if cfg!(target_arch = "x86_64") => Ok(FaultHooks::Tracepoints),
            None => Ok(match has_tracepoints() {
                true => FaultHooks::Tracepoints,
                false => FaultHooks::Events,
            }),
        }
    }

    /// The programs to load.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            FaultHooks::Tracepoints => &["fault_user", "fault_kernel"],
            FaultHooks::Events => &["fault_event"],
        }
    }

    /// The programs not to load.
    pub(super) fn other_programs(self) -> &'static [&'static str] {
        match self {
            FaultHooks::Tracepoints => FaultHooks::Events.programs(),
            FaultHooks::Events => FaultHooks::Tracepoints.programs(),
        }
    }
}

fn has_tracepoints() -> bool {
    let Ok(btf) = Btf::from_vmlinux() else {
        return false;
    };
    TRACEPOINTS.iter().all(|name| {
        btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))
            .is_some()
    })
}

/// Attaches a program to the event of page faults of each processor. One that comes online later has no hook.
pub(super) fn attach_to_events(program: &ProgramMut<'_>) -> Result<Vec<Link>> {
    let online = fs::read_to_string(ONLINE).with_context(|| format!("cannot read {ONLINE}"))?;
    let processors =
        numbers(online.trim()).ok_or_else(|| anyhow!("cannot understand {ONLINE}: {online:?}"))?;
    processors
        .into_iter()
        .map(|cpu| {
            let event = open_event(-1, cpu).with_context(|| {
                format!("cannot open the event of page faults of processor {cpu}")
            })?;
            // The link closes it.
            let event = event.into_raw_fd();
            program.attach_perf_event(event).map_err(|e| {
                // SAFETY: without a link it is still ours alone.
                drop(unsafe { OwnedFd::from_raw_fd(event) });
                anyhow!("cannot attach a program to the event of page faults: {e}")
            })
        })
        .collect()
}

/// Opens the event of page faults of this thread, for `memprof doctor`.
pub(crate) fn try_event() -> io::Result<()> {
    open_event(0, -1).map(drop)
}

/// The event that each page fault is, of a thread (-1: all of them, 0: this one) on a processor (-1: all).
fn open_event(thread: libc::pid_t, cpu: i32) -> io::Result<OwnedFd> {
    let mut attributes = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: libbpf_sys::PERF_COUNT_SW_PAGE_FAULTS.into(),
        sample_type: libbpf_sys::PERF_SAMPLE_ADDR.into(),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = 1;
    // SAFETY: the attributes outlive the call, and say their size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            cpu,
            -1,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC,
        )
    };
    match fd {
        // SAFETY: it is new, and nobody else's.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The numbers of a list such as `0-3,5`.
fn numbers(list: &str) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_by_ranges() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(numbers(""), None);
        assert_eq!(numbers("0-x"), None);
    }

    #[test]
    fn the_event_can_be_opened() {
        try_event().unwrap();
    }
}
