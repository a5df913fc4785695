//! The flags of `memprof record`, and the recording of `--record`.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgGroup, ArgMatches, Args, CommandFactory};

use super::Cli;
use super::profile::{ProfileArgs, config};
use crate::app::config::{Config, RecordConfig};
use memprof_recording::Options;

const HELP: &str = "\
`memprof record FILE` is `memprof --no-server --record FILE`: it serves no HTTP, and ends when the target ends. Started again, \
by a service manager for example, it continues the same file.

Examples:
  sudo memprof record day.memprof.db --comm light-node
  sudo memprof record job.memprof.db -- python3 job.py
  memprof open day.memprof.db@peak
  memprof diff day.memprof.db@-10m day.memprof.db@end";

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("target").args(["comm", "pid", "cgroup", "all", "command"]).required(true),
    after_help = HELP
)]
pub(super) struct RecordArgs {
    /// The recording: a new file, or one to be continued
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    profile: ProfileArgs,
}

impl RecordArgs {
    pub(super) fn config(self, matches: &ArgMatches) -> Result<Config, clap::Error> {
        let given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(option) = ["listen", "serve_after_exit", "token_file", "record"]
            .into_iter()
            .find(|id| given(id))
        {
            let option = option.replace('_', "-");
            let message = format!(
                "--{option} does not go with `memprof record FILE`, which serves no HTTP: use `memprof --record FILE`\n"
            );
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
        let mut profile = self.profile;
        profile.record = Some(self.file);
        profile.no_server = true;
        config(profile)
    }
}

/// The file to record to, and its bounds.
///
/// # Errors
/// There are bounds without a file.
pub(super) fn recording(
    path: Option<PathBuf>,
    size: Option<u64>,
    keep: Option<Duration>,
) -> Result<Option<RecordConfig>, clap::Error> {
    let usual = Options::default();
    let options = Options {
        size: size.unwrap_or(usual.size),
        keep: keep.unwrap_or(usual.keep),
    };
    match path {
        None if options != usual => Err(Cli::command().error(
            ErrorKind::MissingRequiredArgument,
            "--record-size and --record-for require --record FILE\n",
        )),
        path => Ok(path.map(|path| RecordConfig { path, options })),
    }
}
