//! Flags → a checked [`Config`].

mod maps;
mod top;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{
    ArgGroup, Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};

use crate::event::Pid;
use crate::export::{self, EXPORTERS, ExportOptions, Exporter};
use crate::freeze::{Freeze, MAX_FREEZE};
use crate::probe::{FRAME_LIMITS, Unwind};
use crate::profile::Kind;
use crate::screen::ScreenOptions;
use crate::server::DEFAULT_LISTEN;
use crate::target::{Cgroup, Selector};
use crate::tree::Direction;

pub use maps::{MapsConfig, MapsFormat, Whose};

const EXAMPLES: &str = "\
Examples:
  sudo memprof --comm light-node          the process of that name, running already or the next to start
  sudo memprof --pid 1234 --duration 60   a minute of a running process, then a summary
  sudo memprof -- ./server --flag         a command, from its first page to its end
  sudo memprof --cgroup /my.service       every process of a control group, present and future
  sudo memprof top --pid 1234             the same, live on the terminal
  memprof maps --pid 1234                 what the memory of a process is made of
  memprof doctor                          what this machine allows, and what is missing

Exit status: 0, or the command's own after `--`; 1 for an error; 2 for a wrong command line.";

/// Shows which code owns the physical memory that a running Linux process holds.
#[derive(Debug, Parser)]
#[command(
    name = "memprof",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    group = ArgGroup::new("target").args(["comm", "pid", "cgroup", "command"]).required(true)
)]
struct Cli {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    profile: ProfileArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Watch the memory of a process live on the terminal: functions, call tree, changes
    Top(Box<top::TopArgs>),
    /// Say what the memory of a process is made of: heap, stacks, libraries, …, by the kernel's figures
    Maps(maps::MapsArgs),
    /// Say what this kernel and these privileges allow, what is missing and how to get it
    Doctor,
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page
    Man {
        /// That of `memprof COMMAND`
        #[arg(value_name = "COMMAND", value_parser = ["top", "maps"])]
        of: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnwindArg {
    /// By tables, and by frame pointers where code has none
    Auto,
    /// By tables made of each file's .eh_frame
    Tables,
    /// By the chain of frame pointers
    Fp,
    /// Take no stacks
    Off,
}

impl From<UnwindArg> for Unwind {
    fn from(arg: UnwindArg) -> Unwind {
        match arg {
            UnwindArg::Auto => Unwind::Auto,
            UnwindArg::Tables => Unwind::Tables,
            UnwindArg::Fp => Unwind::FramePointers,
            UnwindArg::Off => Unwind::Off,
        }
    }
}

#[derive(Debug, Args)]
struct ProfileArgs {
    /// Follow the process of this name: the one that runs already, or the next to start; when it ends,
    /// its last profile stays and the next one is waited for
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    comm: Option<String>,
    /// Follow the process with this id
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,
    /// Follow every process in this control group and those below it, present and future: a directory
    /// below /sys/fs/cgroup, or a name as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH", conflicts_with = "follow_forks")]
    cgroup: Option<PathBuf>,
    /// Start this command and follow it from its first page; its exit status is passed on
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Follow child processes too; the figures are then sums over all of them
    #[arg(long)]
    follow_forks: bool,
    /// Hold the target still for each report, for the milliseconds of its page scan, so that the figures
    /// are exact; else they lie between the kernel's before and after. Several processes are held still at once
    /// where that is shorter than --max-freeze, else one after the other
    #[arg(long)]
    freeze: bool,
    /// As --freeze, but all processes at once or not at all, so that their sum is of one moment
    #[arg(long)]
    freeze_group: bool,
    /// Hold the target still for so many milliseconds at most, by --freeze or over HTTP. Where that is too
    /// short it runs, and the report says what would be enough
    #[arg(long, value_name = "MS", default_value_t = MAX_FREEZE.as_millis() as u32, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    max_freeze: u32,
    /// Count kernel memory that the target has allocated as well, by stack: page tables, pipes, socket
    /// buffers, slabs. Approximate, and in no total. Costs every process on this machine some
    /// hundred nanoseconds for each page that it frees
    #[arg(long)]
    kernel: bool,
    /// Serve HTTP at this address
    #[arg(long, value_name = "ADDR:PORT", default_value_t = DEFAULT_LISTEN)]
    listen: SocketAddr,
    /// Serve no HTTP; end when the target ends
    #[arg(long, conflicts_with = "listen")]
    no_server: bool,
    /// Let pages of this origin read, beside loopback ones (`https://example.org`); `*` lets every
    /// origin read and accepts every Host header
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Accept this name in the Host header, beside loopback names and IP addresses
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// List so many functions in /metrics, by what they hold themselves and with all they call
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000))]
    metrics_functions: u16,
    /// End so many seconds after the target was found
    #[arg(long, value_name = "SECS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Write a profile to this file at the end; `-` is stdout. May be given several times, for one
    /// profile in several formats
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Format of a single --output [default: by the file's ending, else json]
    #[arg(long, value_name = "FORMAT", requires = "output", value_parser = formats())]
    format: Option<String>,
    /// What stands below a function in --output: who called it, or what it calls [default: the
    /// format's own]
    #[arg(long, value_name = "DIRECTION", requires = "output", value_parser = PossibleValuesParser::new(Direction::ALL.map(Direction::name)))]
    direction: Option<String>,
    /// Memory that --output counts; `all` is anonymous, shared and page cache together
    #[arg(long, value_name = "KIND", requires = "output", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Option<String>,
    /// Sum up in --output what counts fewer bytes than this: `65536`, `64KiB`, `1MiB`, `2GiB`
    /// [default: the format's own]
    #[arg(long, value_name = "SIZE", requires = "output", value_parser = parse_size)]
    threshold: Option<u64>,
    /// How stacks are taken
    #[arg(long, value_name = "HOW", default_value = "auto")]
    unwind: UnwindArg,
    /// Frames of a stack at most, 128 to 1024. A stack of more than 128 is walked anew for each page, at
    /// some 60 ns a frame
    #[arg(long, value_name = "N", default_value_t = *FRAME_LIMITS.start(), value_parser = clap::value_parser!(u32).range(i64::from(*FRAME_LIMITS.start())..=i64::from(*FRAME_LIMITS.end())))]
    max_frames: u32,
    /// When to use colour; NO_COLOR is honoured
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    color: ColorChoice,
}

/// What to do.
pub enum Run {
    /// Profile.
    Profile(Box<Config>),
    /// `memprof maps`.
    Maps(MapsConfig),
    /// `memprof doctor`.
    Doctor,
    /// Print this text.
    Print(Vec<u8>),
}

/// A checked configuration.
pub struct Config {
    /// Whom to follow.
    pub target: Selector,
    /// Follow children too.
    pub follow_forks: bool,
    /// Whether to hold the target still for each report.
    pub freeze: Freeze,
    /// The longest that it is held still.
    pub max_freeze: Duration,
    /// Count kernel memory too.
    pub kernel: bool,
    /// How stacks are taken.
    pub unwind: Unwind,
    /// Frames of a stack that are taken at most.
    pub max_frames: u32,
    /// Where to serve HTTP; `None` for not at all.
    pub listen: Option<SocketAddr>,
    /// Origins that may read beside loopback ones.
    pub cors_origins: Vec<String>,
    /// Host names accepted beside loopback ones.
    pub allow_hosts: Vec<String>,
    /// Functions that `/metrics` lists.
    pub metrics_functions: usize,
    /// How long to profile.
    pub duration: Option<Duration>,
    /// The files to write at the end.
    pub outputs: Vec<Output>,
    /// How it is shown live on the terminal; `None` for not at all.
    pub screen: Option<ScreenOptions>,
}

/// A file to write a profile to.
pub struct Output {
    /// Where; `-` is stdout.
    pub path: PathBuf,
    /// In which format.
    pub format: &'static Exporter,
    /// What of the profile, and how.
    pub options: ExportOptions,
}

impl Output {
    /// Whether it is standard output.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }
}

/// Reads the command line. On a wrong one, `--help` and `--version` it prints and exits.
pub fn parse() -> Run {
    parse_from(std::env::args_os()).unwrap_or_else(|e| e.exit())
}

/// Reads a command line.
///
/// # Errors
/// clap's, whose `exit()` prints it and ends with status 2 (0 for `--help` and `--version`).
pub fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Run, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    let command = Cli::command().color(color_of(&args));
    let cli = Cli::from_arg_matches(&command.try_get_matches_from(args)?)?;
    match cli.action {
        Some(Action::Top(args)) => args.config().map(|c| Run::Profile(Box::new(c))),
        Some(Action::Maps(args)) => Ok(Run::Maps(args.config())),
        Some(Action::Doctor) => Ok(Run::Doctor),
        Some(Action::Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "memprof", &mut text);
            Ok(Run::Print(text))
        }
        Some(Action::Man { of }) => Ok(Run::Print(man_page(of)?)),
        None => config(cli.profile).map(|c| Run::Profile(Box::new(c))),
    }
}

/// The man page of memprof or of one of its subcommands.
fn man_page(of: Option<String>) -> io::Result<Vec<u8>> {
    let mut all = Cli::command();
    // So that options which all subcommands have are in each.
    all.build();
    let part = of.and_then(|name| all.find_subcommand(name).cloned());
    let mut text = Vec::new();
    clap_mangen::Man::new(part.unwrap_or(all)).render(&mut text)?;
    Ok(text)
}

/// clap colours its own errors: the choice must be known before the rest is read.
fn color_of(args: &[OsString]) -> ColorChoice {
    let words = args
        .iter()
        .take_while(|a| *a != "--")
        .map(|a| a.to_string_lossy());
    let mut choice = ColorChoice::Auto;
    let mut value_next = false;
    for word in words {
        if let Some(value) = word
            .strip_prefix("--color=")
            .or(value_next.then_some(&*word))
        {
            choice = value.parse().unwrap_or(choice);
        }
        value_next = word == "--color";
    }
    choice
}

fn config(args: ProfileArgs) -> Result<Config, clap::Error> {
    let options = ExportOptions {
        direction: args.direction.as_deref().and_then(Direction::by_name),
        kind: args
            .kind
            .as_deref()
            .and_then(Kind::by_name)
            .unwrap_or_default(),
        threshold: args.threshold,
        baseline: None,
    };
    if options.kind == Kind::Kernel && !args.kernel {
        return Err(Cli::command().error(
            clap::error::ErrorKind::MissingRequiredArgument,
            "--kind kernel needs --kernel\n",
        ));
    }
    let outputs = outputs(args.output, args.format.as_deref(), &options)?;
    let target = match (args.comm, args.pid, args.cgroup) {
        (Some(name), ..) => Selector::Comm(name),
        (_, Some(pid), _) => Selector::Pid(pid),
        (_, _, Some(path)) => Selector::Cgroup(cgroup(&path)?),
        _ => Selector::Command(words(args.command)?),
    };
    Ok(Config {
        target,
        follow_forks: args.follow_forks,
        freeze: match (args.freeze_group, args.freeze) {
            (true, _) => Freeze::Group,
            (_, true) => Freeze::Each,
            _ => Freeze::No,
        },
        max_freeze: Duration::from_millis(args.max_freeze.into()),
        kernel: args.kernel,
        unwind: args.unwind.into(),
        max_frames: args.max_frames,
        listen: (!args.no_server).then_some(args.listen),
        cors_origins: args.cors_origin,
        allow_hosts: args.allow_host,
        metrics_functions: args.metrics_functions.into(),
        duration: args.duration,
        outputs,
        screen: None,
    })
}

fn cgroup(path: &Path) -> Result<Cgroup, clap::Error> {
    Cgroup::find(path).map_err(|e| {
        let message = format!("{e:#}\n");
        Cli::command().error(clap::error::ErrorKind::ValueValidation, message)
    })
}

fn outputs(
    paths: Vec<PathBuf>,
    format: Option<&str>,
    options: &ExportOptions,
) -> Result<Vec<Output>, clap::Error> {
    let conflict = |message: String| {
        Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message + "\n")
    };
    if paths.len() > 1 && format.is_some() {
        let message = "--format is for one --output; several have the formats of their endings";
        return Err(conflict(message.to_owned()));
    }
    let named = format.and_then(export::by_name);
    let output = |path: PathBuf| {
        let format = named.unwrap_or_else(|| export::by_ending(&path));
        options.check(format).map_err(|e| conflict(e.to_string()))?;
        Ok(Output {
            path,
            format,
            options: options.clone(),
        })
    };
    paths.into_iter().map(output).collect()
}

fn words(command: Vec<OsString>) -> Result<Vec<String>, clap::Error> {
    let text = |w: OsString| {
        w.into_string().map_err(|w| {
            let message = format!("the argument {} is not UTF-8\n", w.to_string_lossy());
            Cli::command().error(clap::error::ErrorKind::InvalidUtf8, message)
        })
    };
    command.into_iter().map(text).collect()
}

fn parse_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err("a process's name, without directories: `light-node`".into());
    }
    Ok(name.to_owned())
}

fn parse_pid(pid: &str) -> Result<Pid, String> {
    match pid.parse() {
        Ok(pid) if pid > 0 && pid <= i32::MAX as u32 => Ok(Pid(pid)),
        _ => Err("a process id is a whole number above 0".into()),
    }
}

/// Every format, with what it is.
fn formats() -> PossibleValuesParser {
    let value = |format: &Exporter| PossibleValue::new(format.name).help(format.about);
    PossibleValuesParser::new(EXPORTERS.iter().map(value))
}

fn parse_seconds(seconds: &str) -> Result<Duration, String> {
    let seconds: f64 = seconds.parse().map_err(|_| "a number of seconds")?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or_else(|| "a number of seconds above 0".into())
}

/// A number of bytes, with or without a binary unit.
fn parse_size(size: &str) -> Result<u64, String> {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &size[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("a number of bytes, or of KiB, MiB or GiB: `64KiB`".into()),
    };
    // `parse` takes a plus sign; a size has none.
    let number = digits
        .parse::<u64>()
        .ok()
        .filter(|_| !size.starts_with('+'));
    number
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| "a whole number of bytes below 16 EiB: `65536`, `64KiB`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("12B", 12),
            ("64KiB", 65_536),
            ("3MiB", 3 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "+1",
            "1k",
            "1 KiB",
            "1.5MiB",
            "1KB",
            "99999999999GiB",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_format_is_asked_only_for_what_it_can_hold() {
        let options = |line| config_of(line).map(|c| c.outputs[0].options.clone());
        let found = options("memprof --pid 1 -o x.txt --direction callers --threshold 64KiB");
        let Ok(found) = found else { panic!("refused") };
        assert_eq!(found.direction, Some(Direction::InnermostFirst));
        assert_eq!((found.threshold, found.kind), (Some(65_536), Kind::All));
        let Err(e) = config_of("memprof --pid 1 -o x.json --kind swap") else {
            panic!("accepted")
        };
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains("the format json cannot hold"), "{e}");
    }

    fn config_of(line: &str) -> Result<Box<Config>, clap::Error> {
        match parse_from(line.split(' ').map(OsString::from))? {
            Run::Profile(config) => Ok(config),
            _ => panic!("not a profile run: {line}"),
        }
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exactly_one_target() {
        for line in [
            "memprof",
            "memprof --pid 1 --comm x",
            "memprof --comm x -- y",
            "memprof --cgroup / --pid 1",
            "memprof --cgroup /no/such/group",
            "memprof --cgroup / --follow-forks",
        ] {
            let Err(e) = config_of(line) else {
                panic!("{line} was accepted")
            };
            assert_eq!(e.exit_code(), 2, "{line}");
        }
        let target = |line| config_of(line).map(|c| c.target).ok();
        assert_eq!(
            target("memprof --comm light-node"),
            Some(Selector::Comm("light-node".into()))
        );
        assert_eq!(target("memprof --pid 7"), Some(Selector::Pid(Pid(7))));
        let words = vec!["ls".to_owned(), "-l".to_owned()];
        assert_eq!(target("memprof -- ls -l"), Some(Selector::Command(words)));
    }

    #[test]
    fn bad_values_are_refused() {
        for line in [
            "memprof --pid 0",
            "memprof --pid -3",
            "memprof --pid x",
            "memprof --comm a/b",
            "memprof --pid 1 --duration 0",
            "memprof --pid 1 --duration x",
            "memprof --pid 1 --listen here",
            "memprof --pid 1 --format json",
            "memprof --pid 1 --output f --format gif",
            "memprof --pid 1 --output f --output g --format svg",
            "memprof --pid 1 --kind swap",
            "memprof --pid 1 --output f --kind some",
            "memprof --pid 1 --output f --direction up",
            "memprof --pid 1 --output f --threshold many",
            "memprof --pid 1 --unwind dwarf",
            "memprof --pid 1 --max-frames 127",
            "memprof --pid 1 --max-frames 1025",
            "memprof --pid 1 --max-freeze 0",
            "memprof --pid 1 --max-freeze 60001",
            "memprof --pid 1 --no-server --listen 127.0.0.1:1",
            "memprof doctor --pid 1",
            "memprof top",
            "memprof top --pid 1 --comm x",
            "memprof top --pid 1 --interval 0",
            "memprof top --pid 1 --interval x",
            "memprof maps",
            "memprof maps --pid 1 --comm x",
            "memprof maps --pid 1 --all --top 3",
            "memprof maps --pid 1 --top -1",
            "memprof maps --pid 1 --format gif",
        ] {
            assert!(
                parse_from(line.split(' ').map(OsString::from)).is_err(),
                "{line}"
            );
        }
    }

    #[test]
    fn the_format_follows_the_name() {
        let format = |line: &str| {
            config_of(line)
                .ok()
                .and_then(|c| Some(c.outputs.first()?.format.name))
        };
        assert_eq!(format("memprof --pid 1 -o x.folded"), Some("folded"));
        assert_eq!(format("memprof --pid 1 -o x.txt"), Some("text"));
        assert_eq!(format("memprof --pid 1 -o x"), Some("json"));
        assert_eq!(format("memprof --pid 1 -o a.b.pb.gz"), Some("pprof"));
        assert_eq!(format("memprof --pid 1 -o pb.gz"), Some("json"));
        for e in EXPORTERS {
            let line = format!("memprof --pid 1 -o dir/x.{}", e.extension);
            assert_eq!(format(&line), Some(e.name), "{line}");
        }
        assert_eq!(
            format("memprof --pid 1 -o x.txt --format json"),
            Some("json")
        );
    }

    #[test]
    fn man_pages_name_their_options() {
        let page = |line: &str| match parse_from(line.split(' ').map(OsString::from)) {
            Ok(Run::Print(text)) => String::from_utf8_lossy(&text).replace('\\', ""),
            _ => panic!("no page: {line}"),
        };
        for (line, parts) in [
            ("memprof man", ["--follow-forks", "memprof-top(1)", "maps"]),
            ("memprof man top", ["memprof-top", "--interval", "--color"]),
            ("memprof man maps", ["memprof-maps", "--all", "--comm"]),
        ] {
            let text = page(line);
            for part in parts {
                assert!(text.contains(part), "{line}: no {part} in {text}");
            }
        }
        for shell in ["bash", "zsh", "fish"] {
            let text = page(&format!("memprof completions {shell}"));
            assert!(
                text.contains("interval") && text.contains("maps"),
                "{shell}"
            );
        }
    }

    #[test]
    fn top_is_a_profile_run_with_a_screen() {
        let config = |line| config_of(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let top = config("memprof top --interval 0.5 --color never --no-server -- ls -l");
        let words = vec!["ls".to_owned(), "-l".to_owned()];
        assert_eq!(top.target, Selector::Command(words));
        assert!(top.listen.is_none());
        let screen = ScreenOptions {
            interval: Duration::from_millis(500),
            colour: false,
        };
        assert_eq!(top.screen, Some(screen));
        let always = config("memprof top --pid 1 --color always");
        assert!(always.screen.is_some_and(|s| s.colour));
        assert_eq!(config("memprof --pid 1").screen, None);
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let Ok(c) = config_of("memprof --pid 1") else {
            panic!("refused")
        };
        assert_eq!(
            c.listen.map(|a| a.to_string()),
            Some("127.0.0.1:17832".into())
        );
        assert!(
            c.unwind == Unwind::Auto
                && c.freeze == Freeze::No
                && c.max_freeze == Duration::from_millis(50)
                && !c.follow_forks
                && c.outputs.is_empty()
                && c.duration.is_none()
        );
    }
}
