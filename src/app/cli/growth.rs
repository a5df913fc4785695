//! The flags of `memprof growth`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};

use super::Run;
use super::gate::parse_rate_gate;
use super::values::{parse_pid, parse_seconds};
use crate::app::config::{Config, GrowthConfig, RateGate, ShownGrowth, TableFormat};
use crate::export::growth::GrowthBy;
use memprof_profile::Kind;
use memprof_recording::At;
use memprof_sys::ids::Pid;
use memprof_sys::process::Selector;

/// Default of `--duration`.
const WATCHED: Duration = Duration::from_secs(60);

const HELP: &str = "\
The rate is the slope of a straight line through the means of 40 equal intervals; time in which memprof was not running does not \
count. Growth is steady if two standard errors of the slope are less than the slope, and if it goes on until the end: growth \
that stopped (a cache that is full) and jumps are listed below it. The youngest tenth of the span is left out, because what \
it brought may yet be freed.

A gate is `[function:NAME] growth_rate > SIZE/UNIT`, such as `growth_rate > 1MiB/h`; UNIT is s, min, h or d. It fires if growth is \
steady and its rate minus two standard errors is above the limit.

Examples:
  memprof growth night.memprof.db
  memprof growth night.memprof.db --since -2h --by stack -n 3
  sudo memprof growth --pid 1234 --duration 300
  memprof growth night.memprof.db --fail-if 'growth_rate > 1MiB/h'

Exit status: 0; 1 for an error, such as a recording that is too short; 2 for a wrong command line; 3 if a gate fires.";

#[derive(Debug, Args)]
#[command(
    after_help = HELP,
    group = ArgGroup::new("source").args(["file", "pid"]).required(true)
)]
pub(super) struct GrowthArgs {
    /// The recording, to its end or to the moment of FILE@MOMENT (see `memprof open --help`)
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Watch this running process for --duration seconds instead, without a file (as root, like `memprof --pid`)
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,
    /// How long to watch the process of --pid, in seconds; Ctrl-C ends it earlier [default: 60]
    #[arg(long, value_name = "SECS", value_parser = parse_seconds, conflicts_with = "file")]
    duration: Option<Duration>,
    /// Where the span begins, as in FILE@MOMENT: `-2h`, `14:05` [default: the first moment]
    #[arg(
        long,
        value_name = "MOMENT",
        allow_hyphen_values = true,
        conflicts_with = "pid"
    )]
    since: Option<At>,
    /// What is summed up in a row: functions of the program, or whole stacks
    #[arg(long, value_name = "WHAT", default_value = "function",
        value_parser = PossibleValuesParser::new(GrowthBy::ALL.map(|(name, _)| name)))]
    by: String,
    /// Kind of memory; `all` is anonymous, shared and page cache together
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Option<String>,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 15)]
    limit: usize,
    /// Format of the table
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: TableFormat,
    /// Exit with status 3 if this condition holds, such as `growth_rate > 1MiB/h`; may be repeated
    #[arg(long, value_name = "GATE", value_parser = parse_rate_gate)]
    fail_if: Vec<RateGate>,
}

impl GrowthArgs {
    pub(super) fn run(self) -> Run {
        let shown = ShownGrowth {
            by: GrowthBy::by_name(&self.by).unwrap_or_default(),
            kind: self
                .kind
                .as_deref()
                .and_then(Kind::by_name)
                .unwrap_or_default(),
            limit: self.limit,
            format: self.format,
            gates: self.fail_if,
        };
        match (self.pid, self.file) {
            (Some(pid), _) => {
                let duration = self.duration.unwrap_or(WATCHED);
                let config = Config::for_growth(Selector::Pid(pid), duration, shown);
                Run::Profile(Box::new(config))
            }
            (None, file) => Run::Growth(Box::new(GrowthConfig {
                file: file.unwrap_or_default(),
                since: self.since,
                shown,
            })),
        }
    }
}
