//! The flags of `memprof open` and `memprof diff`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ColorChoice, CommandFactory};

use super::Cli;
use super::gate::parse_gate;
use super::outputs::{format_of, kinds_of, outputs};
use super::top::colour;
use super::values::{formats, frames_of, parse_size};
use crate::app::config::{DiffConfig, OpenConfig, Output};
use crate::export::ExportOptions;
use crate::http::server::{DEFAULT_LISTEN, Listen};
use crate::tui::{INTERVAL, ScreenOptions};
use memprof_profile::gate::Gate;
use memprof_profile::tree::Direction;
use memprof_profile::{FrameFilter, Kind};

/// The flags that select the written part of a profile.
#[derive(Debug, Args)]
struct WhatArgs {
    /// Whether the children of a function are its callers or its callees [default: depends on the format]
    #[arg(long, value_name = "DIRECTION", value_parser = PossibleValuesParser::new(Direction::ALL.map(Direction::name)))]
    direction: Option<String>,
    /// Aggregate nodes smaller than SIZE: `65536`, `64KiB`, `1MiB`, `2GiB` [default: depends on the format]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    threshold: Option<u64>,
    /// Which frames of interpreted programs (Python, Ruby) to include: `source`, only functions of the program; `all`, also
    /// native ones; `native`, only native ones [default: all in the formats of other tools, else source]
    #[arg(long, value_name = "FRAMES", value_parser = PossibleValuesParser::new(FrameFilter::ALL.map(FrameFilter::name)))]
    frames: Option<String>,
    /// Count functions that the compiler inlined for the function that they were inlined into
    #[arg(long)]
    no_inline: bool,
}

impl WhatArgs {
    fn options(&self, kind: Kind) -> ExportOptions {
        ExportOptions {
            direction: self.direction.as_deref().and_then(Direction::by_name),
            kind,
            threshold: self.threshold,
            frames: frames_of(self.frames.as_deref()),
            no_inline: self.no_inline,
            baseline: None,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "A profile is saved with `--output FILE.memprof.json`, by /v2/export/profile, or by the \
                        page's Export. Opening one needs neither root nor BPF."
)]
pub(super) struct OpenArgs {
    /// The saved profile, a .memprof.json file, or a recording: its last moment, or the one of FILE@MOMENT. A moment is
    /// `end`, `peak` (the highest total), a time of day such as `14:05`, a time before the end such as `-10m`, or a date
    /// and time such as `2026-11-27T14:05:00Z`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show the profile on the terminal, as `memprof top` does
    #[arg(long, conflicts_with = "output")]
    top: bool,
    /// Serve HTTP at this address, `ADDR:PORT`, or at a Unix socket, `unix:PATH`, to which only memprof's user can connect
    /// [default: 127.0.0.1:17832, unless --top or --output is given]
    #[arg(long, value_name = "WHERE", conflicts_with = "output")]
    listen: Option<Listen>,
    /// Answer only requests with the header `Authorization: Bearer TOKEN`, with the token in this file, which only its
    /// owner may read. The page asks for the token or takes it from its URL: `http://ADDR:PORT/#token=TOKEN`
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    token_file: Option<PathBuf>,
    /// Allow cross-origin requests from this origin, in addition to loopback origins
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Accept this name in the Host header, in addition to loopback names and IP addresses
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Write the profile to this file in another format, and exit; `-` is stdout. Repeat the option for several formats
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Format of --output [default: by the file's extension, otherwise json]
    #[arg(long, value_name = "FORMAT", requires = "output", value_parser = formats())]
    format: Option<String>,
    /// Kind of memory; `all` is anonymous, shared and page cache together. With several --output, give it once for all or once
    /// for each, in their order
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Vec<String>,
    #[command(flatten)]
    what: WhatArgs,
}

impl OpenArgs {
    pub(super) fn config(self, color: ColorChoice) -> Result<OpenConfig, clap::Error> {
        let options = self.what.options(Kind::default());
        let kinds = kinds_of(&self.kind);
        let outputs = outputs(self.output, self.format.as_deref(), &kinds, &options)?;
        let serves = !self.top && outputs.is_empty();
        Ok(OpenConfig {
            file: self.file,
            listen: self.listen.or(serves.then_some(DEFAULT_LISTEN)),
            token_file: self.token_file,
            cors_origins: self.cors_origin,
            allow_hosts: self.allow_host,
            outputs,
            screen: self.top.then(|| ScreenOptions {
                interval: INTERVAL,
                colour: colour(color),
            }),
        })
    }
}

const GATES: &str = "\
A gate is `[WHAT] growth > LIMIT` or `WHAT > SIZE`. WHAT is `total` (the default), `peak` (the highest resident memory, \
VmHWM), a kind of memory such as `anon`, or `function:NAME`, whose total memory counts, of the kind of --kind. LIMIT is a size such as `65536` or `10MiB`, or per \
cent of the earlier profile, such as `5%`. `>=` fires at the limit, too. All gates are checked, and each one that fires \
is printed with its figure and its limit.

Examples:
  memprof diff before.memprof.json after.memprof.json
  memprof diff before.memprof.json after.memprof.json -o growth.svg
  memprof diff day.memprof.db@-1h day.memprof.db@end
  memprof diff before.memprof.json after.memprof.json --fail-if 'growth > 5%' --fail-if 'function:parse growth > 1MiB'

Exit status: 0; 1 for an error, such as a file that cannot be read; 2 for a wrong command line; 3 if a gate fires.";

#[derive(Debug, Args)]
#[command(after_help = GATES)]
pub(super) struct DiffArgs {
    /// The earlier saved profile, or FILE@MOMENT of a recording (see `memprof open --help`)
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The later saved profile, or FILE@MOMENT of a recording
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Write the difference to this file; `-` is stdout
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Format of the difference [default: by the file's extension, otherwise text]
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<String>,
    /// Kind of memory; `all` is anonymous, shared and page cache together
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)))]
    kind: Option<String>,
    #[command(flatten)]
    what: WhatArgs,
    /// Exit with status 3 if this condition holds, such as `growth > 5%`; may be repeated
    #[arg(long, value_name = "GATE", value_parser = parse_gate)]
    fail_if: Vec<Gate>,
}

/// The format of a difference if neither `--format` nor a file extension selects one.
const DEFAULT_FORMAT: &str = "text";

impl DiffArgs {
    pub(super) fn config(self) -> Result<DiffConfig, clap::Error> {
        let kind = self.kind.as_deref().and_then(Kind::by_name);
        let options = self.what.options(kind.unwrap_or_default());
        let format = format_of(&self.output, self.format.as_deref(), DEFAULT_FORMAT)?;
        options.check_difference(format).map_err(|e| {
            let kind = clap::error::ErrorKind::ArgumentConflict;
            Cli::command().error(kind, format!("{e}\n"))
        })?;
        Ok(DiffConfig {
            before: self.before,
            after: self.after,
            output: Output {
                path: self.output,
                format,
                options,
                at: None,
            },
            gates: self.fail_if,
        })
    }
}
