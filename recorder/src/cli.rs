//! The command line.

mod node;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use self::node::ConfigArgs;
use crate::config::{Config, ConfigError};
use crate::logs;
use crate::time::Timestamp;

const EXAMPLES: &str = "\
Examples:
  sudo tezos-recorder run --data-dir ~/.tezos-node
                                         an Octez node and its daily logs
  sudo tezos-recorder run --identity identity.json --log-port 10000
                                         a node, and its logs by syslog
  sudo tezos-recorder run --config /etc/tezos-recorder/config.toml
                                         the nodes of a configuration
  sudo tezos-recorder doctor --config /etc/tezos-recorder/config.toml
                                         what this machine allows and lacks
  tezos-recorder export peers.pcapng --db /var/lib/tezos-recorder/9732
                                         what was recorded, for Wireshark
  tezos-recorder completions bash > \\
    /etc/bash_completion.d/tezos-recorder

Then open http://127.0.0.1:17732/.

Exit status: 0; 1 for an error, or if `doctor` finds that nothing can be \
recorded; 2 for a wrong command line or configuration.";

/// Records the peer-to-peer messages and the logs of Tezos nodes, and serves them over HTTP.
#[derive(Debug, Parser)]
#[command(name = "tezos-recorder", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Record nodes until Ctrl-C or SIGTERM
    Run {
        #[command(flatten)]
        config: Box<ConfigArgs>,
    },
    /// Check what this kernel, these privileges and the configuration allow, what is missing, and how to get it
    Doctor {
        #[command(flatten)]
        config: Box<ConfigArgs>,
        /// Print the checks as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write recorded messages to a pcapng file, encrypted packets and plain messages
    Export(ExportArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// What is exported.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ExportArgs {
    /// The file to write; `-` is stdout
    pub output: PathBuf,
    /// The directory of a node's database
    #[arg(long, value_name = "DIR")]
    pub db: PathBuf,
    /// From this time on, such as `2026-01-02T03:04:05Z`
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<Timestamp>,
    /// Up to this time, inclusive
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to: Option<Timestamp>,
    /// Only connections with this peer's address
    #[arg(long, value_name = "IP")]
    pub host: Option<IpAddr>,
    /// Only connections with this peer
    #[arg(long, value_name = "ID")]
    pub peer_id: Option<String>,
}

fn time(text: &str) -> Result<Timestamp, String> {
    logs::full_time(text)
        .ok_or_else(|| "expected a time with a zone, such as `2026-01-02T03:04:05Z`".into())
}

/// The parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Run {
    /// `tezos-recorder run`.
    Record(Box<Config>),
    /// `tezos-recorder doctor`.
    Doctor {
        /// What would be recorded; `None` checks only the machine.
        config: Option<Box<Config>>,
        /// Whether the checks are printed as JSON.
        json: bool,
    },
    /// `tezos-recorder export`.
    Export(ExportArgs),
    /// Print this text.
    Print(Vec<u8>),
}

/// Why a command line is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// It is wrong, or asks for help. clap's error prints it and exits with the right status.
    #[error(transparent)]
    Line(#[from] clap::Error),
    /// The configuration is wrong.
    #[error("{0}")]
    Config(#[from] ConfigError),
}

/// Parses a command line, and reads the configuration that it names.
///
/// # Errors
/// If either is wrong.
///
/// # Examples
///
/// ```
/// use tezos_recorder::cli::{self, Run};
///
/// let line = "tezos-recorder run --identity i.json --p2p-port 9733 --log-port 0";
/// let Ok(Run::Record(config)) = cli::parse_from(line.split(' ').map(Into::into)) else {
///     panic!("{line} records a node");
/// };
/// assert_eq!(config.nodes[0].name, "9733");
/// assert_eq!(config.nodes[0].log, None);
/// ```
pub fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Run, CliError> {
    match Cli::try_parse_from(args)?.action {
        Action::Run { config } => Ok(Run::Record(Box::new(config.required()?))),
        Action::Doctor { config, json } => Ok(Run::Doctor {
            config: config.found()?.map(Box::new),
            json,
        }),
        Action::Export(args) => Ok(Run::Export(args)),
        Action::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tezos-recorder", &mut text);
            Ok(Run::Print(text))
        }
    }
}
