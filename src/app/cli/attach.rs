//! The flags of `memprof attach-heap`.

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::maps::ProcessArgs;
use super::values::{parse_interval, parse_seconds};
use memprof_heap::attach::AttachConfig;
use memprof_heap::sampler::DEFAULT_INTERVAL;
use memprof_sys::process::ProcessTarget;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("process").args(["pid", "comm"]).required(true))]
pub(super) struct AttachArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Do not ask for confirmation. The process is changed until it ends: one of its threads is made to load a library,
    /// which then intercepts the calls of the allocator
    #[arg(long, short)]
    yes: bool,
    /// Mean number of allocated bytes per sample: `65536`, `512KiB` [default: 512KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_interval)]
    heap_interval: Option<u64>,
    /// Look for a safe moment for at most this many seconds, and wait up to as long again for the process's loader
    #[arg(long, value_name = "SECS", default_value = "5", value_parser = parse_seconds)]
    wait: Duration,
}

impl AttachArgs {
    pub(super) fn config(self) -> AttachConfig {
        let target = self.process.target();
        AttachConfig {
            // clap requires a target.
            target: target.unwrap_or_else(|| ProcessTarget::Comm(String::new())),
            agreed: self.yes,
            interval: self.heap_interval.unwrap_or(DEFAULT_INTERVAL),
            wait: self.wait,
        }
    }
}
