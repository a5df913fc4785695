//! The flags of a profile: which processes to follow, which memory to count, and where to write the result.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ColorChoice, CommandFactory};

use super::Cli;
use super::exact::exact_of;
use super::gate::parse_gate_of_one;
use super::outputs::{file_on_oom, kinds_of, outputs, set_moments};
use super::push::PushArgs;
use super::record::recording;
use super::values::{
    HeapHow, ReadFrames, UnwindArg, formats, frames_of, parse_age, parse_interval, parse_name,
    parse_pid, parse_record_size, parse_seconds, parse_size, parse_wait, stacks,
};
use crate::app::config::{Config, HeapSampling, OutputMoment, PssMode};
use crate::export::ExportOptions;
use crate::http::server::{DEFAULT_LISTEN, Listen};
use crate::probe::{FRAME_LIMITS, Overhead, Stacks, source};
use memprof_code::debuginfod::DebuginfodMode;
use memprof_code::interpreter::EnabledInterpreters;
use memprof_heap::sampler::DEFAULT_INTERVAL;
use memprof_profile::allocations::Filter;
use memprof_profile::gate::Gate;
use memprof_profile::measure::{HEAP, HEAP_PEAK, KERNEL_MEMORY, PSS, SHARED, TEMPORARY};
use memprof_profile::tree::Direction;
use memprof_profile::{FrameFilter, Kind};
use memprof_sys::freeze::{Freeze, MAX_FREEZE};
use memprof_sys::ids::Pid;
use memprof_sys::process::{Cgroup, Selector};

/// The flags of `memprof` without a subcommand; `memprof top` includes them.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// Follow the process with this name: the running one, or the next one to start. When it ends, its last profile
    /// stays, and memprof waits for the next one
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    comm: Option<String>,
    /// Follow the process with this id
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,
    /// Follow every process in this control group and those below it, present and future: a directory
    /// below /sys/fs/cgroup, or a name as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH", conflicts_with = "follow_forks")]
    cgroup: Option<PathBuf>,
    /// Follow every process on this machine, present and future, except memprof. In a container: every process of its
    /// pid namespace
    #[arg(long, conflicts_with = "follow_forks")]
    all: bool,
    /// Start this command and follow it from its first page; memprof exits with its exit status
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Also follow child processes; the figures are sums over all of them
    #[arg(long)]
    follow_forks: bool,
    /// Stop the target for the milliseconds of each page scan, so that the figures are exact; otherwise they lie
    /// between the kernel's figures before and after the scan. Several processes are stopped together if the scan fits
    /// into --max-freeze, otherwise one after the other
    #[arg(long)]
    freeze: bool,
    /// Like --freeze, but stops all processes together or none of them, so that their sum is of a single moment
    #[arg(long)]
    freeze_group: bool,
    /// Stop the target for at most this many milliseconds, by --freeze or over HTTP. If that is too short, the target
    /// keeps running, and the report names a sufficient limit
    #[arg(long, value_name = "MS", default_value_t = MAX_FREEZE.as_millis() as u32, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    max_freeze: u32,
    /// Also count kernel memory that the target allocates, by stack: page tables, pipes, socket buffers, slabs.
    /// Approximate, and not part of any total. Costs every process on this machine a few hundred nanoseconds per page
    /// that it frees
    #[arg(long)]
    kernel: bool,
    /// Also count memory with shared pages counted once: a page that N processes map counts as 1/N in each, like the
    /// kernel's PSS. Included in --all and --cgroup. Needs CAP_SYS_ADMIN
    #[arg(long)]
    pss: bool,
    /// Also show the heap by the stacks that allocate it: live, allocated and temporary bytes and objects, estimated
    /// from about one sample per --heap-interval bytes. A small sampling library is preloaded into a command after
    /// `--`; other processes need a sampler of their own that follows OpenTelemetry's contract (USDTs
    /// `otel_memory:alloc`, `:free`). `--heap=exact` instead counts every call of the process's allocation functions
    /// for --duration seconds: exact, but each call costs the process microseconds
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "sampled")]
    pub(super) heap: Option<HeapHow>,
    /// With --heap=exact: count only allocations of at least this size
    #[arg(long, value_name = "SIZE", requires = "heap", value_parser = parse_size)]
    pub(super) min_size: Option<u64>,
    /// With --heap=exact: count only allocations of at most this size
    #[arg(long, value_name = "SIZE", requires = "heap", value_parser = parse_size)]
    pub(super) max_size: Option<u64>,
    /// With --heap=exact: count one call in N, chosen at random; the figures are then estimates. Calls that are not
    /// counted cost as much as counted ones
    #[arg(long, value_name = "N", requires = "heap", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) every: Option<u32>,
    /// With --heap=exact: at the end, write the histogram of sizes by stack to this file, as CSV
    #[arg(long, value_name = "FILE", requires = "heap")]
    pub(super) sizes: Option<PathBuf>,
    /// With --heap=exact: do not count the first N calls
    #[arg(long, value_name = "N", requires = "heap")]
    pub(super) skip: Option<u64>,
    /// With --heap: mean number of allocated bytes per sample in the preloaded library: `65536`, `512KiB` [default:
    /// 512KiB]. 0 samples every allocation
    #[arg(long, value_name = "SIZE", requires = "heap", value_parser = parse_interval)]
    pub(super) heap_interval: Option<u64>,
    /// With --heap: also listen to the probes of this provider, which follow the contract
    #[arg(long, value_name = "NAME", requires = "heap")]
    pub(super) heap_provider: Vec<String>,
    /// With --heap: count an allocation as temporary if it is freed within this many milliseconds [default: 10]
    #[arg(long, value_name = "MS", requires = "heap", value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    heap_temporary: Option<u32>,
    /// Serve HTTP at this address, `ADDR:PORT`, or at a Unix socket, `unix:PATH`, to which only memprof's user can connect
    #[arg(long, value_name = "WHERE", default_value_t = DEFAULT_LISTEN)]
    listen: Listen,
    /// Answer only requests with the header `Authorization: Bearer TOKEN`, with the token in this file, which only its
    /// owner may read. The page asks for the token or takes it from its URL: `http://ADDR:PORT/#token=TOKEN`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Serve no HTTP; end when the target ends
    #[arg(long, conflicts_with_all = ["listen", "token_file"])]
    pub(super) no_server: bool,
    /// After the COMMAND has ended, keep serving its last profile and its peak, until Ctrl-C
    #[arg(long, requires = "command", conflicts_with_all = ["no_server", "duration"])]
    serve_after_exit: bool,
    /// Allow cross-origin requests from this origin (`https://example.org`), in addition to loopback origins;
    /// `*` allows every origin and every Host header
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Accept this name in the Host header, in addition to loopback names and IP addresses
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// List this many functions in /metrics, both by self and by total memory
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    metrics_functions: u16,
    /// Wait for at most this many seconds for the process of --comm or --cgroup; if none appears, exit with status 124.
    /// 0 does not wait [default: no limit]
    #[arg(long, value_name = "SECS", conflicts_with_all = ["pid", "all", "command"], value_parser = parse_wait)]
    wait: Option<Duration>,
    /// Exit this many seconds after the target is found
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    pub(super) duration: Option<Duration>,
    /// Write a profile to this file at the end; `-` is stdout. Repeat the option to write one profile in several
    /// formats
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Format of --output [default: by the file's extension; json for stdout and for a file without one]
    #[arg(long, value_name = "FORMAT", requires = "output", value_parser = formats())]
    format: Option<String>,
    /// The moment that --output shows: `peak`, when the most memory was resident; `largest-process`, when the process that had
    /// the most had it; `end`, when the target ended; `now`, when memprof ends. With several --output, give it once for all or once for each, in their order [default: peak for a
    /// command that has ended, unless --heap is given; otherwise end]
    #[arg(long, value_name = "MOMENT", requires = "output", value_enum)]
    at: Vec<OutputMoment>,
    /// Exit with status 3 if this condition holds at the end, such as `peak > 512MiB`, `anon > 1GiB` or
    /// `function:parse > 64MiB`, unless the command itself has failed; may be repeated
    #[arg(long, value_name = "GATE", value_parser = parse_gate_of_one)]
    fail_if: Vec<Gate>,
    /// Whether the children of a function in --output are its callers or its callees [default: depends on the format]
    #[arg(long, value_name = "DIRECTION", requires = "output", value_parser = PossibleValuesParser::new(Direction::ALL.map(Direction::name)))]
    direction: Option<String>,
    /// Kind of memory in --output; `all` is anonymous, shared and page cache together. With several --output, give it
    /// once for all or once for each, in their order
    #[arg(long, value_name = "KIND", requires = "output", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Vec<String>,
    /// Aggregate nodes smaller than SIZE in --output: `65536`, `64KiB`, `1MiB`, `2GiB` [default: depends on the format]
    #[arg(long, value_name = "SIZE", requires = "output", value_parser = parse_size)]
    threshold: Option<u64>,
    /// Include only the sampled allocations in --output for which this CEL expression is true:
    /// `lifetime < 0.5 && size > 4096`, `live && 'parse' in functions`. Needs --heap and a --kind of the heap. The error
    /// for an unknown name lists the known ones
    #[arg(long, value_name = "EXPRESSION", requires_all = ["output", "heap"], value_parser = |text: &str| Filter::parse(text))]
    pub(super) filter: Option<Filter>,
    /// Which frames of interpreted programs (Python, Ruby) to include in --output: `source`, only functions of
    /// the program; `all`, also native ones; `native`, only native ones [default: all in the formats of other tools, else source]
    #[arg(long, value_name = "FRAMES", requires = "output", value_parser = PossibleValuesParser::new(FrameFilter::ALL.map(FrameFilter::name)))]
    frames: Option<String>,
    /// In --output, count functions that the compiler inlined for the function that they were inlined into
    #[arg(long, requires = "output")]
    no_inline: bool,
    /// When the kernel kills a followed process because memory has run out (OOM): write its last profile to this file,
    /// by default as a saved profile. `%p` in the file name is the process id; without it only the first kill is
    /// written. The target is scanned up to ten times a second for this
    #[arg(long, value_name = "FILE")]
    on_oom: Option<PathBuf>,
    /// Record reports to this file, at most one a second: a new one, or a recording to be continued. `memprof open FILE`
    /// shows its last moment, and FILE@peak, FILE@14:05 or FILE@-10m another one
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// With --record: maximum size of the file; the oldest moments go first [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_record_size)]
    record_size: Option<u64>,
    /// With --record: maximum age of a moment: `12h`, `30d` [default: 30d]. Moments older than an hour are thinned to
    /// intervals of 10 seconds, after a day of a minute, after 30 days of 10 minutes; their extremes stay
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    record_for: Option<Duration>,
    #[command(flatten)]
    push: PushArgs,
    /// How to unwind stacks
    #[arg(long, value_name = "HOW", default_value = "auto")]
    unwind: UnwindArg,
    /// Which page faults have their stack walked. `auto`: the first 16,384, then as many as fit into --max-overhead,
    /// chosen at random. `all`: every fault. `1/N`: after the first 16,384, one of N, chosen at random. `off`: none;
    /// memory is attributed to the call that mapped its range. Totals are always exact; bytes by stack are estimates if
    /// not all stacks are walked
    #[arg(long, value_name = "WHICH", default_value = "auto", value_parser = |text: &str| text.parse::<Stacks>())]
    stacks: Stacks,
    /// With --stacks auto: maximum share of CPU time that stack walks may take, of the faulting threads in all followed
    /// processes together [default: 2]
    #[arg(long, value_name = "PERCENT", value_parser = |text: &str| text.parse::<Overhead>())]
    max_overhead: Option<Overhead>,
    /// Keep at most this many frames of a stack, 128 to 1024. Stacks deeper than 128 are unwound on every fault, at
    /// about 60 ns a frame; their frames are not cached
    #[arg(long, value_name = "N", default_value_t = *FRAME_LIMITS.start(), value_parser = clap::value_parser!(u32).range(i64::from(*FRAME_LIMITS.start())..=i64::from(*FRAME_LIMITS.end())))]
    max_frames: u32,
    /// Show the hash at the end of Rust names (`::h0123456789abcdef`), which distinguishes instances of one function
    #[arg(long)]
    rust_hashes: bool,
    /// Fetch debug files of programs without symbols from debuginfod servers, in the background: from URLS, otherwise
    /// DEBUGINFOD_URLS, otherwise /etc/debuginfod, otherwise debuginfod.elfutils.org. The servers learn the build ids
    /// of these files. DEBUGINFOD_URLS alone has the same effect; `off` contacts no server
    #[arg(long, value_name = "URLS", num_args = 0..=1, require_equals = true, value_parser = DebuginfodMode::parse)]
    debuginfod: Option<Option<DebuginfodMode>>,
    /// Whether to read the frames of Python: `auto` reads them in processes that run a CPython version known to memprof
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    python: ReadFrames,
    /// Whether to read the frames of Ruby: `auto` reads them in processes that run a CRuby version known to memprof
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    ruby: ReadFrames,
    /// Print diagnostics to stderr: -v prints steps, -vv also each scan, unwind table and request, -vvv everything.
    /// MEMPROF_LOG=memprof::probe=trace,info selects by module
    #[arg(long, short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// When to use colour (NO_COLOR is honoured)
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub(super) color: ColorChoice,
}

/// The configuration given by these flags.
///
/// # Errors
/// Conflicting flags, or a control group that does not exist.
pub(super) fn config(args: ProfileArgs) -> Result<Config, clap::Error> {
    let options = ExportOptions {
        direction: args.direction.as_deref().and_then(Direction::by_name),
        kind: Kind::default(),
        threshold: args.threshold,
        frames: frames_of(args.frames.as_deref()),
        no_inline: args.no_inline,
        baseline: None,
    };
    let exact = exact_of(&args)?;
    let sampled = args.heap.is_some() && exact.is_none();
    let kinds = kinds_of(&args.kind);
    let shared_once = match args.all || args.cgroup.is_some() {
        _ if args.pss => PssMode::Required,
        // An output in PSS was requested.
        true if kinds.contains(&Kind::Column(PSS)) => PssMode::Required,
        true => PssMode::IfAvailable,
        false => PssMode::Off,
    };
    let options_of_measures = [
        (SHARED.option, shared_once != PssMode::Off),
        (KERNEL_MEMORY.option, args.kernel),
        (HEAP.option, args.heap.is_some()),
    ];
    let enabled: Vec<&str> = options_of_measures
        .into_iter()
        .filter_map(|(option, given)| option.filter(|_| given))
        .collect();
    let without = kinds.iter().find_map(|kind| {
        let option = kind.measure().option?;
        (!enabled.contains(&option)).then_some((kind.name(), option))
    });
    if let Some((kind, option)) = without {
        return Err(Cli::command().error(
            clap::error::ErrorKind::MissingRequiredArgument,
            format!("--kind {kind} requires {option}\n"),
        ));
    }
    let of_peak = |kind: &&Kind| kind.measure().name == HEAP_PEAK.name;
    if exact.is_some()
        && let Some(kind) = kinds.iter().find(of_peak)
    {
        let message = format!(
            "--heap=exact excludes --kind {}: calls are counted in the kernel, which keeps no earlier moment; use --heap\n",
            kind.name()
        );
        return Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message));
    }
    let loaded: Vec<&str> = [
        ("--kernel", args.kernel),
        ("--heap", sampled),
        (source::exact::OPTION, exact.is_some()),
    ]
    .into_iter()
    .filter_map(|(option, given)| given.then_some(option))
    .collect();
    let of_heap = |kind: &Kind| kind.measure().name == HEAP.name;
    if args.filter.is_some() && (kinds.is_empty() || !kinds.iter().all(of_heap)) {
        let message = "--filter needs --kind with a kind of the heap, such as alloc_space\n";
        return Err(Cli::command().error(clap::error::ErrorKind::MissingRequiredArgument, message));
    }
    let mut outputs = outputs(args.output, args.format.as_deref(), &kinds, &options)?;
    set_moments(&mut outputs, &args.at)?;
    if args.filter.is_some() && args.at.iter().any(OutputMoment::is_peak) {
        let message = "--filter excludes --at peak: only the newest state has single allocations\n";
        return Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message));
    }
    let on_oom = args.on_oom.map(file_on_oom).transpose()?;
    let record = recording(args.record, args.record_size, args.record_for)?;
    let target = match (args.comm, args.pid, args.cgroup) {
        (Some(name), ..) => Selector::Comm(name),
        (_, Some(pid), _) => Selector::Pid(pid),
        (_, _, Some(path)) => Selector::Cgroup(cgroup(&path)?),
        _ if args.all => Selector::All,
        _ => Selector::Command(args.command),
    };
    Ok(Config {
        target,
        follow_forks: args.follow_forks,
        shared_once,
        freeze: match (args.freeze_group, args.freeze) {
            (true, _) => Freeze::Group,
            (_, true) => Freeze::Each,
            _ => Freeze::No,
        },
        max_freeze: Duration::from_millis(args.max_freeze.into()),
        sources: source::chosen(&loaded),
        heap: args.heap.map(|_| HeapSampling {
            interval: args.heap_interval.unwrap_or(DEFAULT_INTERVAL),
            providers: args.heap_provider,
            exact,
            sizes: args.sizes,
            temporary: args
                .heap_temporary
                .map_or(TEMPORARY, |ms| Duration::from_millis(ms.into())),
            filter: args.filter,
            inlined: !args.no_inline,
        }),
        unwind: args.unwind.into(),
        stacks: stacks(args.stacks, args.max_overhead)?,
        max_frames: args.max_frames,
        rust_hashes: args.rust_hashes,
        debuginfod: match args.debuginfod {
            None => DebuginfodMode::Environment,
            Some(wish) => wish.unwrap_or(DebuginfodMode::Usual),
        },
        interpreters: EnabledInterpreters {
            python: args.python == ReadFrames::Auto,
            ruby: args.ruby == ReadFrames::Auto,
        },
        listen: (!args.no_server).then_some(args.listen),
        serve_after_exit: args.serve_after_exit,
        token_file: args.token_file,
        cors_origins: args.cors_origin,
        allow_hosts: args.allow_host,
        metrics_functions: args.metrics_functions.into(),
        wait: args.wait,
        duration: args.duration,
        outputs,
        gates: args.fail_if,
        on_oom,
        push: args.push.options(),
        record,
        growth: None,
        screen: None,
        takes_heap: false,
        verbosity: args.verbose,
    })
}

fn cgroup(path: &Path) -> Result<Cgroup, clap::Error> {
    Cgroup::find(path).map_err(|e| {
        let message = format!("{e:#}\n");
        Cli::command().error(clap::error::ErrorKind::ValueValidation, message)
    })
}
