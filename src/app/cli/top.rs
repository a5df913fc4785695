//! The flags of `memprof top`.

use std::time::Duration;

use clap::{ArgGroup, Args, ColorChoice};

use super::profile::{ProfileArgs, config};
use super::values::parse_seconds;
use crate::app::config::Config;
use crate::tui::ScreenOptions;

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("target").args(["comm", "pid", "cgroup", "all", "command"]).required(true),
    after_help = "The first screen is an overview: what grows, what memory is made of, the heap, the peak; Tab shows the \
                  functions and the call tree. `?` shows the keys; `P` lists the processes and the control groups, each with a view of its own. A \
                  COMMAND has no standard input or output, because the view uses the terminal. To keep its output: \
                  `-- sh -c 'exec ./server >log 2>&1'`."
)]
pub(super) struct TopArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Seconds from the start of one report to the start of the next
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,
}

impl TopArgs {
    pub(super) fn config(self) -> Result<Config, clap::Error> {
        let screen = ScreenOptions {
            interval: self.interval,
            colour: colour(self.profile.color),
        };
        Ok(Config {
            screen: Some(screen),
            // The view stays until `q` in any case.
            serve_after_exit: false,
            ..config(self.profile)?
        })
    }
}

/// Whether to use colour. With `auto`, `NO_COLOR` and a dumb terminal disable it.
pub(super) fn colour(choice: ColorChoice) -> bool {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty());
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => set("NO_COLOR").is_none() && set("TERM").is_none_or(|t| t != "dumb"),
    }
}
