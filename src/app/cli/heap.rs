//! The flags of `memprof heap`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, ValueEnum};

use super::Cli;
use super::maps::ProcessArgs;
use super::values::{parse_interval, parse_seconds};
use crate::app::config::{ByStackConfig, HeapConfig, HeapFormat, HeapTarget};
use memprof_heap::sampler::DEFAULT_INTERVAL;
use memprof_heap::{Approach, At, CorePaths, SnapshotOptions};

/// Number of size classes and chunks listed by default.
const DEFAULT_TOP: usize = 20;
/// Default maximum time to stop the process, in milliseconds.
const MAX_STOP: u32 = 1000;

/// Which command for which process. docs/choose.md has the same table, longer.
const CHOOSE: &str = "\
My process is …                        → this command
  running, and too large                 memprof heap --pid PID
  running, and it grows                  memprof growth --pid PID --duration 60
  running C, C++, Rust: allocations      memprof --heap=exact --duration 10 --pid PID
  with jemalloc inside the executable    memprof --heap=exact --duration 10 --pid PID
  a service, not started yet             memprof --heap -- COMMAND
  a job: what it did not free            memprof heap --by-stack --heap-interval 0 -- COMMAND
  a job: its peak                        memprof --no-server -o peak.html -- COMMAND
  Python: what objects it has            memprof heap --pid PID
  Go, Java, node                         memprof --pid PID
  ended, and left a core                 memprof heap --core FILE
`memprof advise --pid PID` looks at the process and says which of them.";

#[derive(Debug, Args)]
#[command(after_help = CHOOSE, group = ArgGroup::new("heap").args(["pid", "comm", "command", "core"]).required(true))]
pub(super) struct HeapArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Start this command, and take a snapshot of it at its end or at the time of --at. With a snapshot at its end,
    /// memprof exits with the command's exit status; otherwise the command continues to run
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// When to take the snapshot of a command: this many seconds after its start, or `end` [default: end]
    #[arg(long, value_name = "SECS|end", value_parser = parse_at, conflicts_with_all = ["pid", "comm"])]
    at: Option<At>,
    /// Read the heap from this core (of the kernel, of gcore, or of --save; .zst, .lz4, .xz and .gz are unpacked to an unlinked
    /// file in TMPDIR). Needs no privileges
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by_stack", "snapshot", "max_stop"])]
    core: Option<PathBuf>,
    /// With --core: the program, instead of the path in the core
    #[arg(long, value_name = "FILE", requires = "core")]
    exe: Option<PathBuf>,
    /// With --core: look up the paths of the program and its libraries below this directory
    #[arg(long, value_name = "DIR", requires = "core")]
    sysroot: Option<PathBuf>,
    /// Also write the snapshot to this file, as a core that gdb and --core read; the process continues
    #[arg(long, value_name = "FILE", conflicts_with_all = ["core", "command", "by_stack"])]
    save: Option<PathBuf>,
    /// List this many size classes, types and other rows per table (without -v, at most ten)
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TOP)]
    top: usize,
    /// Print all tables: also sizes, pages, arenas, the largest chunks, and the roots that keep objects in use
    #[arg(short, long)]
    verbose: bool,
    /// How to take the snapshot [default: auto]
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        hide_default_value = true
    )]
    snapshot: SnapshotBy,
    /// Stop the process for at most this many milliseconds; if that is too short, no snapshot is taken. A fork that has
    /// begun is completed
    #[arg(long, value_name = "MS", default_value_t = MAX_STOP, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    max_stop: u32,
    /// Also show the heap by the stacks that allocated it: live memory, what keeps free memory resident, and
    /// unreferenced memory, which at the end of a command is what it forgot to free. A small library that samples
    /// allocations is preloaded into a command; a running process needs a sampler (`memprof attach-heap`) and --for
    #[arg(long)]
    by_stack: bool,
    /// With --by-stack: mean number of allocated bytes of a command per sample: `65536`, `512KiB` [default: 512KiB]. 0
    /// samples every allocation and estimates nothing; each allocation and each free then costs the command
    /// microseconds
    #[arg(long, value_name = "SIZE", requires = "by_stack", conflicts_with_all = ["pid", "comm"], value_parser = parse_interval)]
    heap_interval: Option<u64>,
    /// With --by-stack: also listen to the probes of this provider, which follow OpenTelemetry's contract
    #[arg(long, value_name = "NAME", requires = "by_stack")]
    heap_provider: Vec<String>,
    /// With --by-stack and --pid or --comm: sample the process's allocations for this many seconds, then take the
    /// snapshot. Earlier allocations have no stack
    #[arg(long = "for", value_name = "SECS", requires = "by_stack", conflicts_with = "command", value_parser = parse_seconds)]
    sampled_for: Option<Duration>,
    /// With --by-stack: count functions that the compiler inlined for the function that they were inlined into
    #[arg(long, requires = "by_stack")]
    no_inline: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: HeapFormat,
}

/// The values of `--snapshot`: [`Approach`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SnapshotBy {
    /// Fork where possible unless the process is small, otherwise copy
    Auto,
    /// Stop the process until it has made a copy-on-write child, and copy the child's memory
    Fork,
    /// Stop the process until its memory is copied
    Copy,
}

impl From<SnapshotBy> for Approach {
    fn from(by: SnapshotBy) -> Approach {
        match by {
            SnapshotBy::Auto => Approach::Auto,
            SnapshotBy::Fork => Approach::Fork,
            SnapshotBy::Copy => Approach::Copy,
        }
    }
}

impl HeapArgs {
    pub(super) fn config(self) -> Result<HeapConfig, clap::Error> {
        let paths = CorePaths {
            executable: self.exe,
            root: self.sysroot,
        };
        let target = match (self.process.target(), self.core) {
            (Some(process), _) => HeapTarget::Process(process),
            (None, Some(core)) => HeapTarget::Core(core, paths),
            (None, None) => HeapTarget::Command(self.command, self.at.unwrap_or(At::End)),
        };
        let sampled_for = match (&target, self.sampled_for) {
            (HeapTarget::Process(_), None) if self.by_stack => {
                return Err(Cli::command().error(
                    ErrorKind::MissingRequiredArgument,
                    "--by-stack with a process that runs already requires --for SECS: memprof sees only what is allocated \
                     while it listens, so for how long is it to listen before the snapshot?\n",
                ));
            }
            (_, sampled_for) => sampled_for.unwrap_or_default(),
        };
        let by_stack = self.by_stack.then_some(ByStackConfig {
            interval: self.heap_interval.unwrap_or(DEFAULT_INTERVAL),
            providers: self.heap_provider,
            sampled_for,
            inlined: !self.no_inline,
        });
        Ok(HeapConfig {
            target,
            save: self.save,
            by_stack,
            top: self.top,
            details: self.verbose,
            snapshot: SnapshotOptions {
                approach: self.snapshot.into(),
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
