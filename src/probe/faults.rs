//! The hook for page faults: the kernel's tracepoints, or, where there are none (64-bit ARM), the software event that counts page
//! faults (`src/bpf/fault.bpf.h`).

use std::io;

use anyhow::{Result, anyhow};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;

use super::fault_events;

/// Environment variable, for tests: `tracepoints` or `events`.
const OVERRIDE: &str = "MEMPROF_FAULT_HOOKS";

/// The page-fault tracepoints, which Linux has on x86 and RISC-V.
pub(crate) const TRACEPOINTS: [&str; 2] = ["page_fault_user", "page_fault_kernel"];

/// Where the probe sees page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultHooks {
    /// At the tracepoints [`TRACEPOINTS`].
    Tracepoints,
    /// At the software event `PERF_COUNT_SW_PAGE_FAULTS`.
    Events,
}

impl FaultHooks {
    /// The tracepoints if this kernel has them.
    ///
    /// # Errors
    /// The environment variable for tests has an unknown value.
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

/// Opens this thread's page-fault event, for `memprof doctor`.
pub(crate) fn try_event() -> io::Result<()> {
    fault_events::open(0, -1).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_can_be_opened() {
        try_event().unwrap();
    }
}
