//! The command line: parses the flags into a checked [`Config`].

mod attach;
mod exact;
mod gate;
mod growth;
mod heap;
mod maps;
mod mistakes;
mod outputs;
mod profile;
mod push;
mod record;
mod saved;
mod top;
mod values;

use std::ffi::OsString;
use std::io;

use clap::{ArgGroup, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::profile::ProfileArgs;
use crate::app::config::{Config, DiffConfig, GrowthConfig, HeapConfig, MapsConfig, OpenConfig};
use memprof_heap::attach::AttachConfig;
use memprof_sys::process::ProcessTarget;

const EXAMPLES: &str = "\
Examples:
  memprof advise --pid 1234              which command answers what
  sudo memprof --comm light-node         a process with that name, now or later
  sudo memprof --pid 1234 --duration 60  a minute of a process, then a summary
  sudo memprof -- ./server --flag        a command, from its start to its end
  sudo memprof --cgroup /my.service      every process of a control group
  sudo memprof --all                     every process of this machine
  sudo memprof top --pid 1234            live on the terminal
  sudo memprof heap --pid 1234           its heap: in use, free, lost, types
  sudo memprof growth --pid 1234         what grows, how fast, how certainly
  sudo memprof record r.memprof.db --pid 1234
                                         its memory over time, to a file
  memprof open r.memprof.db@peak         a moment of a recording
  memprof open p.memprof.json            a saved profile: page, API, formats
  memprof diff a.memprof.json b.memprof.json --fail-if 'growth > 5%'
                                         compare two, and fail on growth
  memprof maps --pid 1234                the memory of a process by mapping
  memprof doctor                         what this machine allows and lacks

Exit status: 0, or that of the command after `--` (127 if it is not found, 126 \
if it cannot be executed); 1 for an error; 2 for a wrong command line; 3 if a \
gate of `--fail-if` fires; 124 if no process came within --wait.";

/// Shows which code owns the physical memory that a running Linux process holds.
#[derive(Debug, Parser)]
#[command(
    name = "memprof",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    group = ArgGroup::new("target").args(["comm", "pid", "cgroup", "all", "command"]).required(true)
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
    /// Break down the memory of a process by mapping: heap, stacks, libraries, …, in the kernel's figures
    Maps(maps::MapsArgs),
    /// Show the live and free chunks in the heap of a running process, or of a command at its end, and the pages that
    /// they take. The process is stopped for milliseconds
    Heap(heap::HeapArgs),
    /// Make a running process load the library that samples allocations, for `memprof --heap --pid`. This changes the
    /// process until it ends
    AttachHeap(attach::AttachArgs),
    /// Record the memory of a process over time to a file, without a server
    Record(Box<record::RecordArgs>),
    /// Open a saved profile or a moment of a recording: serve the page and the API from it, show it on the terminal, or convert it
    Open(saved::OpenArgs),
    /// Compare two saved profiles or moments of recordings, and check limits on the change
    Diff(saved::DiffArgs),
    /// Rank what grew in a recording, or what grows in a process, how fast and how certainly, and check limits on the rate
    Growth(growth::GrowthArgs),
    /// Say what a process is, and which memprof commands answer which question about it. Reads no memory of the process
    Advise(maps::AdviseArgs),
    /// Check what this kernel and these privileges allow, what is missing, and how to get it
    Doctor,
    /// Make and hold copy-on-write children of processes for heap snapshots; memprof starts this itself
    #[command(hide = true)]
    ForkGuard,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page
    Man {
        /// The page of `memprof COMMAND`
        #[arg(value_name = "COMMAND", value_parser = ["top", "record", "maps", "heap", "attach-heap", "open", "diff", "growth", "advise", "doctor"])]
        of: Option<String>,
    },
}

/// The parsed command line.
pub enum Run {
    /// Profile.
    Profile(Box<Config>),
    /// `memprof maps`.
    Maps(MapsConfig),
    /// `memprof advise`.
    Advise(ProcessTarget),
    /// `memprof heap`.
    Heap(HeapConfig),
    /// `memprof attach-heap`.
    AttachHeap(AttachConfig),
    /// `memprof fork-guard`.
    ForkGuard,
    /// `memprof open`.
    Open(OpenConfig),
    /// `memprof diff`.
    Diff(Box<DiffConfig>),
    /// `memprof growth`.
    Growth(Box<GrowthConfig>),
    /// `memprof doctor`.
    Doctor,
    /// Print this text.
    Print(Vec<u8>),
}

impl Run {
    /// Whether the command reads files of other processes.
    pub fn reads_targets(&self) -> bool {
        !matches!(
            self,
            Run::ForkGuard | Run::Open(_) | Run::Diff(_) | Run::Growth(_) | Run::Print(_)
        )
    }
}

/// Parses the command line. Prints and exits on an error, `--help` or `--version`.
pub fn parse() -> Run {
    parse_from(std::env::args_os()).unwrap_or_else(|e| e.exit())
}

/// Parses a command line.
///
/// # Errors
/// clap's error, whose `exit()` prints it and ends with status 2 (0 for `--help` and `--version`).
///
/// # Examples
///
/// ```
/// use memprof::app::cli::{self, Run};
/// use memprof_sys::ids::Pid;
/// use memprof_sys::process::Selector;
///
/// let line = "memprof --pid 1234 --no-server --output out.svg";
/// let Ok(Run::Profile(config)) = cli::parse_from(line.split(' ').map(Into::into)) else {
///     panic!("{line} starts a profile");
/// };
/// assert_eq!(config.target, Selector::Pid(Pid(1234)));
/// assert_eq!(config.outputs[0].format.name, "svg");
/// // Exactly one target is required.
/// assert!(cli::parse_from(["memprof".into()]).is_err());
/// ```
pub fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Run, clap::Error> {
    let args: Vec<OsString> = args.into_iter().collect();
    let command = Cli::command().color(color_of(&args));
    let matches = command.try_get_matches_from(&args);
    let matches = matches.map_err(|e| mistakes::explained(e, &Cli::command(), &args))?;
    let cli = Cli::from_arg_matches(&matches)?;
    match cli.action {
        Some(Action::Top(args)) => args.config().map(|c| Run::Profile(Box::new(c))),
        Some(Action::Record(args)) => {
            let given = matches.subcommand().map_or(&matches, |(_, given)| given);
            args.config(given).map(|c| Run::Profile(Box::new(c)))
        }
        Some(Action::Maps(args)) => Ok(Run::Maps(args.config())),
        Some(Action::Advise(args)) => Ok(Run::Advise(args.target())),
        Some(Action::Heap(args)) => args.config().map(Run::Heap),
        Some(Action::AttachHeap(args)) => Ok(Run::AttachHeap(args.config())),
        Some(Action::ForkGuard) => Ok(Run::ForkGuard),
        Some(Action::Open(args)) => args.config(cli.profile.color).map(Run::Open),
        Some(Action::Diff(args)) => args.config().map(|c| Run::Diff(Box::new(c))),
        Some(Action::Growth(args)) => Ok(args.run()),
        Some(Action::Doctor) => Ok(Run::Doctor),
        Some(Action::Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "memprof", &mut text);
            Ok(Run::Print(text))
        }
        Some(Action::Man { of }) => Ok(Run::Print(man_page(of)?)),
        None => profile::config(cli.profile).map(|c| Run::Profile(Box::new(c))),
    }
}

/// The man page of memprof or of one of its subcommands.
fn man_page(of: Option<String>) -> io::Result<Vec<u8>> {
    let mut all = Cli::command();
    // Adds the global options to each subcommand.
    all.build();
    let part = of.and_then(|name| all.find_subcommand(name).cloned());
    let mut text = Vec::new();
    clap_mangen::Man::new(part.unwrap_or(all)).render(&mut text)?;
    Ok(text)
}

/// Reads the colour choice before parsing, because clap colours its own errors.
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

#[cfg(test)]
mod tests;
