//! The flags of `memprof maps`.

use clap::{ArgGroup, Args};

use super::values::{parse_name, parse_pid};
use crate::app::config::{MapsConfig, TableFormat};
use memprof_sys::breakdown::Show;
use memprof_sys::ids::Pid;
use memprof_sys::process::ProcessTarget;

/// Number of mappings and names listed by default.
const DEFAULT_TOP: usize = 20;

/// The target in place of none, which clap does not accept.
const NOBODY: ProcessTarget = ProcessTarget::Comm(String::new());

/// The process that a command inspects.
#[derive(Debug, Args)]
pub(super) struct ProcessArgs {
    /// Process id
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,
    /// Process name
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    comm: Option<String>,
}

impl ProcessArgs {
    /// The selected process; `None` if neither option is given.
    pub(super) fn target(self) -> Option<ProcessTarget> {
        let pid = self.pid.map(ProcessTarget::Pid);
        pid.or_else(|| self.comm.map(ProcessTarget::Comm))
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("advised").args(["pid", "comm"]).required(true))]
pub(super) struct AdviseArgs {
    #[command(flatten)]
    process: ProcessArgs,
}

impl AdviseArgs {
    pub(super) fn target(self) -> ProcessTarget {
        self.process.target().unwrap_or(NOBODY)
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("process").args(["pid", "comm"]).required(true))]
pub(super) struct MapsArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// List this many names, and this many mappings by resident memory
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOP)]
    top: usize,
    /// List every mapping, by address
    #[arg(long, conflicts_with = "top")]
    all: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: TableFormat,
}

impl MapsArgs {
    pub(super) fn config(self) -> MapsConfig {
        let target = self.process.target();
        MapsConfig {
            target: target.unwrap_or(NOBODY),
            show: match self.all {
                true => Show::All,
                false => Show::Top(self.top),
            },
            format: self.format,
        }
    }
}
