//! The flags of `memprof heap`.

use std::time::Duration;

use clap::Args;

use super::maps::ProcessArgs;
use crate::config::{HeapConfig, HeapFormat};
use crate::heap::{Approach, SnapshotOptions};

/// Number of size classes and chunks listed by default.
const DEFAULT_TOP: usize = 20;
/// Default maximum time for which the process is stopped, in milliseconds.
const MAX_STOP: u32 = 1000;

#[derive(Debug, Args)]
pub(super) struct HeapArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// List this many size classes and this many of the largest chunks
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOP)]
    top: usize,
    /// How the snapshot is taken [default: auto]
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        hide_default_value = true
    )]
    snapshot: Approach,
    /// Stop the process for at most this many milliseconds; if that is too short, no snapshot is taken. Forking goes
    /// on to its end once it has begun
    #[arg(long, value_name = "MS", default_value_t = MAX_STOP, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    max_stop: u32,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: HeapFormat,
}

impl HeapArgs {
    pub(super) fn config(self) -> HeapConfig {
        HeapConfig {
            target: self.process.target(),
            top: self.top,
            snapshot: SnapshotOptions {
                approach: self.snapshot,
                max_stop: Duration::from_millis(self.max_stop.into()),
            },
            format: self.format,
        }
    }
}
