//! The validated configuration, independent of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::export::growth::{GrowthBy, GrowthTable};
use crate::export::{ExportOptions, Exporter, push};
use crate::http::server::Listen;
use crate::probe::source::{self, Source};
use crate::probe::{FRAME_LIMITS, Stacks, Unwind};
use crate::tui::ScreenOptions;
use memprof_code::allocators::ExactOptions;
use memprof_code::debuginfod::DebuginfodMode;
use memprof_code::interpreter::EnabledInterpreters;
use memprof_heap::{At, CorePaths, SnapshotOptions};
use memprof_profile::Kind;
use memprof_profile::allocations::Filter;
use memprof_profile::gate::Gate;
use memprof_profile::measure::HEAP;
use memprof_sys::breakdown::Show;
use memprof_sys::freeze::{Freeze, MAX_FREEZE};
use memprof_sys::process::{ProcessTarget, Selector};

/// Configuration of a profiling session.
pub struct Config {
    /// Which processes to follow.
    pub target: Selector,
    /// Also follow child processes.
    pub follow_forks: bool,
    /// Whether to compute PSS, in which shared pages count once.
    pub shared_once: PssMode,
    /// Whether to freeze the target for each report.
    pub freeze: Freeze,
    /// Maximum duration of a freeze.
    pub max_freeze: Duration,
    /// The event sources to load.
    pub sources: Vec<&'static Source>,
    /// How to sample allocations; `None` without `--heap`.
    pub heap: Option<HeapSampling>,
    /// How to unwind stacks.
    pub unwind: Unwind,
    /// Which page faults have their stack walked.
    pub stacks: Stacks,
    /// Maximum number of frames per stack.
    pub max_frames: u32,
    /// Whether views and exports show the hashes of Rust names.
    pub rust_hashes: bool,
    /// Which debuginfod servers to use.
    pub debuginfod: DebuginfodMode,
    /// Which interpreters' frames to read.
    pub interpreters: EnabledInterpreters,
    /// Where to serve HTTP; `None` for no server.
    pub listen: Option<Listen>,
    /// Whether to keep serving after the command has ended.
    pub serve_after_exit: bool,
    /// The file with the token that requests must carry, if any.
    pub token_file: Option<PathBuf>,
    /// Origins allowed to read, in addition to loopback ones.
    pub cors_origins: Vec<String>,
    /// Host names accepted in addition to loopback ones.
    pub allow_hosts: Vec<String>,
    /// Number of functions that `/metrics` lists.
    pub metrics_functions: usize,
    /// How long to wait for a target that does not exist yet; `None` for no limit.
    pub wait: Option<Duration>,
    /// How long to profile; `None` for no limit.
    pub duration: Option<Duration>,
    /// The files to write at the end.
    pub outputs: Vec<Output>,
    /// Conditions under which the exit status is 3.
    pub gates: Vec<Gate>,
    /// The file for the last profile of a process that the OOM killer has killed; see [`oom`](crate::app::session::oom)
    /// for its path.
    pub on_oom: Option<Output>,
    /// The store to push profiles to, if any.
    pub push: Option<push::Options>,
    /// The file to record reports to, if any.
    pub record: Option<RecordConfig>,
    /// What to show of the growth at the end, instead of a summary (`memprof growth --pid`).
    pub growth: Option<ShownGrowth>,
    /// Settings of the live view on the terminal; `None` for no view.
    pub screen: Option<ScreenOptions>,
    /// Whether the session takes a heap snapshot on its own (`memprof heap --by-stack`).
    pub takes_heap: bool,
    /// Verbosity of diagnostics: 0 for none ([`console::show_diagnostics`](memprof_sys::messages)).
    pub verbosity: u8,
}

/// Whether to compute PSS, in which shared pages count once ([`SHARED`](memprof_profile::measure)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PssMode {
    /// Do not compute it.
    Off,
    /// Compute it if memprof may read how often pages are mapped.
    IfAvailable,
    /// Compute it, or exit with an error.
    Required,
}

impl Config {
    /// A session that samples allocations for one heap snapshot.
    pub fn for_heap(target: Selector, heap: HeapSampling) -> Config {
        Config {
            sources: source::chosen(HEAP.option.as_slice()),
            heap: Some(heap),
            takes_heap: true,
            ..Config::alone(target)
        }
    }

    /// A session that shows what grows for a while.
    pub fn for_growth(target: Selector, duration: Duration, shown: ShownGrowth) -> Config {
        Config {
            duration: Some(duration),
            growth: Some(shown),
            ..Config::alone(target)
        }
    }

    /// A session without server, outputs and view.
    fn alone(target: Selector) -> Config {
        Config {
            target,
            follow_forks: false,
            shared_once: PssMode::Off,
            freeze: Freeze::No,
            max_freeze: MAX_FREEZE,
            sources: source::chosen(&[]),
            heap: None,
            unwind: Unwind::Auto,
            stacks: Stacks::default(),
            max_frames: *FRAME_LIMITS.start(),
            rust_hashes: false,
            debuginfod: DebuginfodMode::Environment,
            interpreters: EnabledInterpreters::ALL,
            listen: None,
            serve_after_exit: false,
            token_file: None,
            cors_origins: Vec::new(),
            allow_hosts: Vec::new(),
            metrics_functions: 0,
            wait: None,
            duration: None,
            outputs: Vec::new(),
            gates: Vec::new(),
            on_oom: None,
            push: None,
            record: None,
            growth: None,
            screen: None,
            takes_heap: false,
            verbosity: 0,
        }
    }

    /// Whether the session writes files, at the end or when a process is killed, or removes a socket's file.
    pub fn writes_files(&self) -> bool {
        let sizes = self.heap.as_ref().is_some_and(|heap| heap.sizes.is_some());
        let socket = self.listen.as_ref().is_some_and(Listen::has_file);
        let outputs = self.outputs.iter().any(|output| !output.is_stdout());
        sizes || socket || self.record.is_some() || self.on_oom.is_some() || outputs
    }
}

/// The file of `--record` and its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// The path.
    pub path: PathBuf,
    /// The maximum size and age.
    pub options: memprof_recording::Options,
}

/// How to sample allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapSampling {
    /// Mean number of allocated bytes per sample, in the sampler that memprof preloads.
    pub interval: u64,
    /// Additional providers of probes that follow the contract.
    pub providers: Vec<String>,
    /// The calls to count with `--heap=exact`, which replaces sampling.
    pub exact: Option<ExactOptions>,
    /// Allocations freed within this time count as temporary.
    pub temporary: Duration,
    /// The file for the sizes of counted allocations, written at the end.
    pub sizes: Option<PathBuf>,
    /// Selects the sampled allocations of the outputs; `None` for all.
    pub filter: Option<Filter>,
    /// Whether inlined functions are frames of heap snapshots by stack.
    pub inlined: bool,
}

/// The moment whose state an output shows (`--at`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputMoment {
    /// The moment with the most resident memory
    Peak,
    /// The moment at which the process with the highest peak of its own had it: that process alone
    LargestProcess,
    /// The end of the target, or the end of memprof if the target runs on
    End,
    /// The end of memprof; of a target that has ended, its end
    Now,
}

impl OutputMoment {
    /// Whether the moment is before the newest state.
    pub fn is_peak(&self) -> bool {
        matches!(self, OutputMoment::Peak | OutputMoment::LargestProcess)
    }
}

/// A file to write a profile to.
#[derive(Clone)]
pub struct Output {
    /// The path; `-` is stdout.
    pub path: PathBuf,
    /// The format.
    pub format: &'static Exporter,
    /// Which part of the profile to write, and how.
    pub options: ExportOptions,
    /// The moment that it shows; `None` for the default: the peak of a command that has ended, otherwise the end.
    pub at: Option<OutputMoment>,
}

impl Output {
    /// Whether it shows the peak of the largest process.
    pub fn is_of_largest_process(&self) -> bool {
        self.at == Some(OutputMoment::LargestProcess)
    }

    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }
}

/// Configuration of `memprof open`.
pub struct OpenConfig {
    /// The saved profile.
    pub file: PathBuf,
    /// Where to serve HTTP; `None` for no server.
    pub listen: Option<Listen>,
    /// The file with the token that requests must carry, if any.
    pub token_file: Option<PathBuf>,
    /// Origins allowed to read, in addition to loopback ones.
    pub cors_origins: Vec<String>,
    /// Host names accepted in addition to loopback ones.
    pub allow_hosts: Vec<String>,
    /// The files to write; with any, memprof does not serve.
    pub outputs: Vec<Output>,
    /// Settings of the view on the terminal; `None` for no view.
    pub screen: Option<ScreenOptions>,
}

/// Configuration of `memprof diff`.
pub struct DiffConfig {
    /// The earlier saved profile.
    pub before: PathBuf,
    /// The later saved profile.
    pub after: PathBuf,
    /// Where to write the difference. The options have no baseline yet.
    pub output: Output,
    /// The gates to check.
    pub gates: Vec<Gate>,
}

/// Configuration of `memprof growth FILE`.
pub struct GrowthConfig {
    /// The recording, or a moment of it at which the span ends.
    pub file: PathBuf,
    /// Where the span begins; `None` for the first moment.
    pub since: Option<memprof_recording::At>,
    /// What to show of it.
    pub shown: ShownGrowth,
}

/// What `memprof growth` shows.
#[derive(Clone, Debug)]
pub struct ShownGrowth {
    /// What is summed up in a row.
    pub by: GrowthBy,
    /// The kind of memory.
    pub kind: Kind,
    /// Maximum number of rows.
    pub limit: usize,
    /// The format of the table.
    pub format: TableFormat,
    /// The gates to check.
    pub gates: Vec<RateGate>,
}

/// A limit on the rate of growth (`--fail-if 'growth_rate > 1MiB/h'`).
#[derive(Clone, Debug, PartialEq)]
pub struct RateGate {
    /// The text from which the gate was parsed.
    pub text: String,
    /// The function that it measures; `None` for the total.
    pub function: Option<String>,
    /// Whether the gate also fires at the limit.
    pub or_equal: bool,
    /// The limit, in bytes per hour.
    pub limit: f64,
}

impl RateGate {
    /// The certain rate of steady growth in bytes per hour, if it is above the limit.
    pub fn exceeded_by(&self, table: &GrowthTable) -> Option<f64> {
        let row = match &self.function {
            None => table.total.as_ref(),
            Some(function) => table.rows.iter().find(|row| {
                let rest = row.name.strip_prefix(function.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
            }),
        };
        let rate = row?.steady_rate()?;
        (rate > self.limit || (self.or_equal && rate >= self.limit)).then_some(rate)
    }
}

/// Output format of `memprof maps` and `memprof growth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Tables in KiB
    Text,
    /// JSON, in bytes
    Json,
}

/// Output format of `memprof heap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HeapFormat {
    /// Tables in KiB
    Text,
    /// JSON, in bytes
    Json,
    /// One page to open in a browser
    Html,
}

/// Configuration of `memprof maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsConfig {
    /// The process to inspect.
    pub target: ProcessTarget,
    /// Which mappings to list.
    pub show: Show,
    /// The output format.
    pub format: TableFormat,
}

/// The target of `memprof heap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeapTarget {
    /// A running process.
    Process(ProcessTarget),
    /// A command that memprof starts, and the moment of the snapshot.
    Command(Vec<OsString>, At),
    /// The core of a process, and where its files are.
    Core(PathBuf, CorePaths),
}

/// How `memprof heap --by-stack` samples allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByStackConfig {
    /// Mean number of allocated bytes of a command per sample.
    pub interval: u64,
    /// Additional providers of probes that follow the contract.
    pub providers: Vec<String>,
    /// How long to sample a running process before the snapshot.
    pub sampled_for: Duration,
    /// Whether inlined functions are frames.
    pub inlined: bool,
}

/// Configuration of `memprof heap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapConfig {
    /// The process to inspect.
    pub target: HeapTarget,
    /// Number of size classes and chunks to list.
    pub top: usize,
    /// Whether the text has all tables.
    pub details: bool,
    /// How to take the snapshot.
    pub snapshot: SnapshotOptions,
    /// The file that the snapshot is saved to as a core.
    pub save: Option<PathBuf>,
    /// How to sample allocations; `None` unless the heap is shown by stack.
    pub by_stack: Option<ByStackConfig>,
    /// The output format.
    pub format: HeapFormat,
}
