//! Capacities of the probe's tables, sized for this machine.
//!
//! The tables allocate entries as they fill; an unused entry costs only 16 bytes.

use std::fs;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::skel::OpenSkel;

use crate::probe::wire::OpenMemprofSkel;
use memprof_sys::procfs::meminfo;

/// Environment variable, for tests: `procs=40,pages=1000` sets the capacities of these maps.
const OVERRIDE: &str = "MEMPROF_TABLE_SIZES";

/// Minimum and maximum number of followed processes. The minimum makes a small machine's limits irrelevant. At the maximum the
/// empty tables take 8 MiB.
const PROCESSES: (u64, u64) = (4096, 262_144);
/// Minimum and maximum number of address spaces whose mappings the stack walk knows, 16 KiB each: sized for a 64th of memory.
const CODE_SPACES: (u64, u64) = (1024, PROCESSES.1);
const CODE_SPACE_SHARE: u64 = 64 * 16 * 1024;
/// Minimum and maximum number of chunks of the page ledger and of the page-cache ledger, 2 KiB each: sized for a 32nd of memory
/// each.
const CHUNKS: (u64, u64) = (65_536, 4_194_304);
const CHUNK_SHARE: u64 = 32 * 2048;
/// Chunks per node of the page ledger's directory: a node has at least one, and most have many.
const CHUNKS_OF_A_NODE: u32 = 2;

/// The properties of a machine that determine the sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    /// `kernel.pid_max`.
    pub(super) pid_max: u64,
    /// `kernel.threads-max`.
    pub(super) threads_max: u64,
    /// Physical memory in bytes.
    pub(super) memory: u64,
}

impl Machine {
    /// This machine; 0 for values that cannot be read.
    pub(super) fn this() -> Machine {
        let number = |path| read_number(path).unwrap_or_default();
        Machine {
            pid_max: number("/proc/sys/kernel/pid_max"),
            threads_max: number("/proc/sys/kernel/threads-max"),
            memory: memory().unwrap_or_default(),
        }
    }

    /// Capacity of each map.
    pub(super) fn sizes(self) -> [(&'static str, u32); 7] {
        let within = |n: u64, (least, most): (u64, u64)| n.clamp(least, most) as u32;
        let processes = within(self.pid_max.min(self.threads_max), PROCESSES);
        let chunks = within(self.memory / CHUNK_SHARE, CHUNKS);
        [
            ("procs", processes),
            ("mms", processes),
            (
                "unwind_spaces",
                within(self.memory / CODE_SPACE_SHARE, CODE_SPACES).min(processes),
            ),
            ("interpreter_spaces", processes),
            ("pages", chunks),
            ("directory", chunks / CHUNKS_OF_A_NODE),
            ("cache", chunks),
        ]
    }
}

/// Sets the maps' capacities for this machine, before the maps are created.
pub(super) fn set(open: &mut OpenMemprofSkel<'static>) -> Result<()> {
    for (name, entries) in Machine::this().sizes() {
        set_one(open, name, entries)?;
    }
    let Ok(wanted) = std::env::var(OVERRIDE) else {
        return Ok(());
    };
    for part in wanted.split(',') {
        let entries = part.split_once('=').and_then(|(name, n)| {
            let n = n.parse().ok()?;
            Some((name, n))
        });
        let Some((name, entries)) = entries else {
            bail!("cannot parse {OVERRIDE}: {part:?} does not have the form MAP=ENTRIES");
        };
        set_one(open, name, entries).with_context(|| OVERRIDE)?;
    }
    Ok(())
}

fn set_one(open: &mut OpenMemprofSkel<'static>, name: &str, entries: u32) -> Result<()> {
    open.open_object_mut()
        .maps_mut()
        .find(|map| map.name() == name)
        .ok_or_else(|| anyhow!("memprof has no BPF map {name}"))?
        .set_max_entries(entries)
        .with_context(|| format!("cannot set the size of BPF map {name} to {entries} entries"))
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn memory() -> Option<u64> {
    meminfo("MemTotal")
}

/// Whether the machine has swap space.
pub(super) fn has_swap() -> bool {
    meminfo("SwapTotal").is_some_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(pid_max: u64, threads_max: u64, memory: u64) -> Vec<u32> {
        let machine = Machine {
            pid_max,
            threads_max,
            memory,
        };
        machine.sizes().into_iter().map(|(_, n)| n).collect()
    }

    #[test]
    fn sizes_follow_the_machine_within_bounds() {
        let unknown = sizes(0, 0, 0);
        assert_eq!(unknown, [4096, 4096, 1024, 4096, 65_536, 32_768, 65_536]);
        let small = sizes(32_768, 7_000, 1 << 30);
        assert_eq!(small, [7_000, 7_000, 1024, 7_000, 65_536, 32_768, 65_536]);
        let usual = sizes(32_768, 250_000, 32 << 30);
        assert_eq!(
            usual,
            [32_768, 32_768, 32_768, 32_768, 524_288, 262_144, 524_288]
        );
        let huge = sizes(4_194_304, 32_000_000, 4 << 40);
        let most = [
            262_144, 262_144, 262_144, 262_144, 4_194_304, 2_097_152, 4_194_304,
        ];
        assert_eq!(huge, most);
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::this();
        assert!(machine.pid_max > 0 && machine.threads_max > 0);
        assert!(machine.memory > 1 << 20);
    }
}
