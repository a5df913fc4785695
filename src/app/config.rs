//! The validated configuration, independent of its source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::export::{ExportOptions, Exporter, push};
use crate::http::server::Listen;
use crate::probe::source::{self, Source};
use crate::probe::{FRAME_LIMITS, Stacks, Unwind};
use crate::tui::ScreenOptions;
use memprof_code::allocators::ExactOptions;
use memprof_code::debuginfod::Wish;
use memprof_code::interpreter::Wanted;
use memprof_heap::{At, SnapshotOptions};
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
    /// Follow children too.
    pub follow_forks: bool,
    /// Whether memory is also counted with shared pages counted once.
    pub shared_once: SharedOnce,
    /// Whether to freeze the target for each report.
    pub freeze: Freeze,
    /// Maximum time of a freeze.
    pub max_freeze: Duration,
    /// The event sources that are loaded.
    pub sources: Vec<&'static Source>,
    /// How allocations are sampled; `None` if they are not (`--heap`).
    pub heap: Option<HeapSampling>,
    /// How stacks are taken.
    pub unwind: Unwind,
    /// Which page faults have their stack walked.
    pub stacks: Stacks,
    /// Maximum number of frames per stack.
    pub max_frames: u32,
    /// Whether views and exports show the hashes of Rust names.
    pub rust_hashes: bool,
    /// Which servers are asked for debug files.
    pub debuginfod: Wish,
    /// Which interpreters' frames are read.
    pub interpreters: Wanted,
    /// Where to serve HTTP; `None` to serve none.
    pub listen: Option<Listen>,
    /// The file with the token that requests need, if any.
    pub token_file: Option<PathBuf>,
    /// Origins that may read, in addition to loopback ones.
    pub cors_origins: Vec<String>,
    /// Host names accepted in addition to loopback ones.
    pub allow_hosts: Vec<String>,
    /// How many functions `/metrics` lists.
    pub metrics_functions: usize,
    /// How long to wait for a target that is not there yet; `None` for no limit.
    pub wait: Option<Duration>,
    /// How long to profile.
    pub duration: Option<Duration>,
    /// The files to write at the end.
    pub outputs: Vec<Output>,
    /// Where the last profile of a process goes that the out-of-memory killer has killed; see
    /// [`oom`](crate::app::session::oom) for its path.
    pub on_oom: Option<Output>,
    /// The store that profiles are pushed to, if any.
    pub push: Option<push::Options>,
    /// Settings of the live view on the terminal; `None` for no view.
    pub screen: Option<ScreenOptions>,
    /// Whether the session takes a heap snapshot by itself (`memprof heap --by-stack`).
    pub takes_heap: bool,
    /// How many diagnostics are shown: 0 for none ([`console::show_diagnostics`](memprof_sys::console)).
    pub verbosity: u8,
}

/// Whether memory is also counted with shared pages counted once ([`SHARED`](memprof_profile::measure)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedOnce {
    /// It is not.
    No,
    /// If memprof may read how often pages are mapped.
    IfPossible,
    /// It is, or memprof ends.
    Yes,
}

impl Config {
    /// A session that samples allocations for one heap snapshot: without server, outputs and view.
    pub fn for_heap(target: Selector, heap: HeapSampling) -> Config {
        Config {
            target,
            follow_forks: false,
            shared_once: SharedOnce::No,
            freeze: Freeze::No,
            max_freeze: MAX_FREEZE,
            sources: source::chosen(HEAP.option.as_slice()),
            heap: Some(heap),
            unwind: Unwind::Auto,
            stacks: Stacks::default(),
            max_frames: *FRAME_LIMITS.start(),
            rust_hashes: false,
            debuginfod: Wish::Environment,
            interpreters: Wanted::ALL,
            listen: None,
            token_file: None,
            cors_origins: Vec::new(),
            allow_hosts: Vec::new(),
            metrics_functions: 0,
            wait: None,
            duration: None,
            outputs: Vec::new(),
            on_oom: None,
            push: None,
            screen: None,
            takes_heap: true,
            verbosity: 0,
        }
    }

    /// Whether files are written, at the end or when a process is killed, or that of a socket removed.
    pub fn writes_files(&self) -> bool {
        let sizes = self.heap.as_ref().is_some_and(|heap| heap.sizes.is_some());
        let socket = self.listen.as_ref().is_some_and(Listen::has_file);
        let outputs = self.outputs.iter().any(|output| !output.is_stdout());
        sizes || socket || self.on_oom.is_some() || outputs
    }
}

/// How allocations are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapSampling {
    /// Bytes for which one sample stands on average, in the sampler that memprof preloads.
    pub interval: u64,
    /// Providers of probes that follow the contract, beside the known ones.
    pub providers: Vec<String>,
    /// Which calls are counted, if every call is (`--heap=exact`); nothing is sampled then.
    pub exact: Option<ExactOptions>,
    /// Allocations freed within this time count as temporary.
    pub temporary: Duration,
    /// Where the sizes of counted allocations are written at the end.
    pub sizes: Option<PathBuf>,
    /// Which sampled allocations are in the outputs; `None` for all.
    pub filter: Option<Filter>,
}

/// A file to write a profile to.
#[derive(Clone)]
pub struct Output {
    /// Its path; `-` is stdout.
    pub path: PathBuf,
    /// Its format.
    pub format: &'static Exporter,
    /// What it contains of the profile.
    pub options: ExportOptions,
}

impl Output {
    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }
}

/// Configuration of `memprof open`.
pub struct OpenConfig {
    /// The saved profile.
    pub file: PathBuf,
    /// Where to serve HTTP; `None` to serve none.
    pub listen: Option<Listen>,
    /// The file with the token that requests need, if any.
    pub token_file: Option<PathBuf>,
    /// Origins that may read, in addition to loopback ones.
    pub cors_origins: Vec<String>,
    /// Host names accepted in addition to loopback ones.
    pub allow_hosts: Vec<String>,
    /// The files to write; memprof then serves nothing.
    pub outputs: Vec<Output>,
    /// Settings of the view on the terminal; `None` for no view.
    pub screen: Option<ScreenOptions>,
}

/// Configuration of `memprof diff`.
pub struct DiffConfig {
    /// The earlier saved profile.
    pub before: PathBuf,
    /// The later one.
    pub after: PathBuf,
    /// Where the difference goes. Its options have no baseline yet.
    pub output: Output,
    /// The limits that are checked.
    pub gates: Vec<Gate>,
}

/// Output format of `memprof maps`.
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
    /// Which mappings are listed.
    pub show: Show,
    /// The output format.
    pub format: TableFormat,
}

/// What `memprof heap` inspects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeapTarget {
    /// A running process.
    Process(ProcessTarget),
    /// A command that it starts, at this moment.
    Command(Vec<OsString>, At),
}

/// How `memprof heap --by-stack` samples allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByStackConfig {
    /// Bytes for which one sample stands on average, in a command.
    pub interval: u64,
    /// Providers of probes that follow the contract, beside the known ones.
    pub providers: Vec<String>,
    /// For how long a process that runs already is sampled before the snapshot.
    pub sampled_for: Duration,
}

/// Configuration of `memprof heap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapConfig {
    /// The process to inspect.
    pub target: HeapTarget,
    /// How many size classes and chunks are listed.
    pub top: usize,
    /// How the snapshot is taken.
    pub snapshot: SnapshotOptions,
    /// How allocations are sampled, if the heap is shown by stack.
    pub by_stack: Option<ByStackConfig>,
    /// The output format.
    pub format: HeapFormat,
}
