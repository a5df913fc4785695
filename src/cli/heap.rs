//! The flags of `memprof heap`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::maps::ProcessArgs;
use super::values::parse_seconds;
use super::words;
use crate::config::{HeapConfig, HeapFormat, HeapTarget};
use crate::heap::{Approach, SnapshotOptions};
use crate::session::held::At;

/// Number of size classes and chunks listed by default.
const DEFAULT_TOP: usize = 20;
/// Default maximum time for which the process is stopped, in milliseconds.
const MAX_STOP: u32 = 1000;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("heap").args(["pid", "comm", "command"]).required(true))]
pub(super) struct HeapArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Start this command, and take a snapshot of it at its end or --at another time. At its end, memprof exits with its exit
    /// status; otherwise the command runs on
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// When to take the snapshot of a command: this many seconds after its start, or `end` [default: end]
    #[arg(long, value_name = "SECS|end", value_parser = parse_at, conflicts_with_all = ["pid", "comm"])]
    at: Option<At>,
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
    pub(super) fn config(self) -> Result<HeapConfig, clap::Error> {
        let target = match self.process.target() {
            Some(process) => HeapTarget::Process(process),
            None => HeapTarget::Command(words(self.command)?, self.at.unwrap_or(At::End)),
        };
        Ok(HeapConfig {
            target,
            top: self.top,
            snapshot: SnapshotOptions {
                approach: self.snapshot,
                max_stop: Duration::from_millis(self.max_stop.into()),
                limit: "--max-stop",
            },
            format: self.format,
        })
    }
}

fn parse_at(text: &str) -> Result<At, String> {
    match text {
        "end" => Ok(At::End),
        _ => parse_seconds(text)
            .map(At::After)
            .map_err(|e| format!("{e}; or `end`")),
    }
}
