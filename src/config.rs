//! What memprof is told to do: checked, wherever it comes from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::breakdown::Show;
use crate::event::Pid;
use crate::export::{ExportOptions, Exporter};
use crate::freeze::Freeze;
use crate::probe::Unwind;
use crate::screen::ScreenOptions;
use crate::source::Source;
use crate::target::Selector;

/// A profile run.
pub struct Config {
    /// Whom to follow.
    pub target: Selector,
    /// Follow children too.
    pub follow_forks: bool,
    /// Whether to hold the target still for each report.
    pub freeze: Freeze,
    /// The longest that it is held still.
    pub max_freeze: Duration,
    /// The event sources that are loaded.
    pub sources: Vec<&'static Source>,
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
    /// How much is said of what memprof does: 0 for nothing ([`console::show_diagnostics`](crate::console)).
    pub verbosity: u8,
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

/// How `memprof maps` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapsFormat {
    /// Tables in KiB
    Text,
    /// JSON, in bytes
    Json,
}

/// Which process `memprof maps` looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapsTarget {
    /// The one with this id.
    Pid(Pid),
    /// The one of this name.
    Comm(String),
}

/// What `memprof maps` was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsConfig {
    /// MapsTarget memory.
    pub target: MapsTarget,
    /// Which mappings are listed.
    pub show: Show,
    /// How it is written.
    pub format: MapsFormat,
}
