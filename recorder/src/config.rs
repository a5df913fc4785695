//! The configuration: what is recorded, how much of it is kept, and where it is served.
//!
//! It comes from `config.toml`, in both forms of the original and with keys of our own, or from the command line.

pub mod check;
mod file;
pub mod log;
pub mod node;
pub mod values;

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;

use crate::capture::{self, CaptureOptions};
use crate::logs::Source;
use crate::p2p::pow::Target;
use crate::store::{Keep, Settings};

/// The port of the HTTP server, as in the original.
pub const DEFAULT_PORT: u16 = 17_732;

/// The P2P port of Tezos nodes.
pub const DEFAULT_P2P_PORT: u16 = 9732;

/// Default size of the ring buffer in bytes.
pub const DEFAULT_RING: u64 = CaptureOptions::RING as u64;

/// Default limits of what is kept of a node, in bytes of messages and of log lines.
pub const DEFAULT_KEEP: (u64, u64) = (10 << 30, 1 << 30);

/// Default permissions of a Unix socket for logs.
pub const DEFAULT_MODE: u32 = 0o660;

/// Where a file is looked for without `--config`. The last one is where the original's container has it.
pub const PLACES: [&str; 3] = [
    "config.toml",
    "/etc/config.toml",
    "/home/appuser/config.toml",
];

/// Maximum size of a file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file that it is from.
    pub file: Option<PathBuf>,
    /// Addresses at which HTTP is served.
    pub listen: Vec<IpAddr>,
    /// The port for all nodes (`/v2`, `/v4`, the page); `None` for no such server.
    pub port: Option<u16>,
    /// Size of the ring buffer between kernel and recorder, in bytes; a power of two.
    pub ring: u64,
    /// How bytes are captured.
    pub source: capture::Source,
    /// The file with the token that requests must carry.
    pub token_file: Option<PathBuf>,
    /// Origins of pages that may read replies, besides those of this machine; `*` is any.
    pub cors_origins: Vec<String>,
    /// The nodes, at least one.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name, unique.
    pub name: String,
    /// The port for this node alone (`/v3`); `None` for no such server.
    pub port: Option<u16>,
    /// The directory of its database, unique.
    pub db: PathBuf,
    /// What is recorded of its connections.
    pub p2p: Option<P2p>,
    /// Its logs.
    pub log: Option<Log>,
}

/// What is recorded of a node's connections.
#[derive(Clone, Debug, PartialEq)]
pub struct P2p {
    /// The node's `identity.json`. It may come later.
    pub identity: PathBuf,
    /// The port at which the node listens for peers. It finds the node, and is a name for it in `/v2`.
    pub port: Option<u16>,
    /// Where the node's sockets are.
    pub place: capture::Target,
    /// The proof of work that peers must have.
    pub target: Target,
    /// Whether encrypted bytes are kept besides plain ones.
    pub raw: bool,
    /// How many messages are kept.
    pub keep: Keep,
    /// Address of the node's RPC, by which peers are dropped whose connections are older than the recorder; `None`: none are.
    pub reconnect: Option<SocketAddr>,
}

/// The logs of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Where they come from, at least one.
    pub sources: Vec<Source>,
    /// Whether an index for full-text search is kept.
    pub search: bool,
    /// How many lines are kept.
    pub keep: Keep,
}

/// What is wrong with a configuration, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}; {}", self.what, self.remedy)
    }
}

impl Config {
    /// Reads the first file of [`PLACES`] that exists; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub fn find() -> Result<Option<Self>, ConfigError> {
        let there = |path: &&Path| fs::symlink_metadata(path).is_ok();
        let path = PLACES.iter().map(Path::new).find(there);
        path.map(Self::read).transpose()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |e: io::Error| ConfigError {
            file: path.to_owned(),
            line: None,
            what: format!("cannot be read: {e}"),
            remedy: "give a readable file with --config".into(),
        };
        let size = fs::metadata(path).map_err(failed)?.len();
        if size > MAX_SIZE {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        Self::parse(&fs::read_to_string(path).map_err(failed)?, path)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is wrong: an unknown key, a value of another type, or one that contradicts others.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let source = Text { text, path };
        let file: file::File = toml::from_str(text).map_err(|e| {
            let what = e.message().trim_end().replace('\n', ", ");
            source.error(
                e.span(),
                what,
                "see recorder.toml.example for all keys and their values",
            )
        })?;
        let port = source.either(file.http_v2, "http_v2", file.rpc_port, "rpc_port")?;
        let config = Self {
            file: Some(path.to_owned()),
            listen: source.addresses(file.listen)?,
            port: port.map_or(Some(DEFAULT_PORT), |port| none_if_0(port.into_inner())),
            ring: source.ring(file.ring)?,
            source: source.capture_source(file.source)?,
            token_file: file.token_file.map(|path| path.into_inner().into()),
            cors_origins: source.origins(file.cors_origins)?,
            nodes: Vec::new(),
        };
        source.with_nodes(config, file.nodes)
    }
}

impl Config {
    /// The options of capturing; `None` if no connections are recorded.
    pub fn capture_options(&self) -> Option<CaptureOptions> {
        let p2p = self.nodes.iter().filter_map(|node| node.p2p.as_ref());
        let targets: Vec<_> = p2p.map(|p2p| p2p.place.clone()).collect();
        (!targets.is_empty()).then_some(CaptureOptions {
            targets,
            source: self.source,
            ring: self.ring as usize,
        })
    }
}

impl Node {
    /// The settings of the node's store.
    pub fn store_settings(&self) -> Settings {
        let (p2p, log) = (self.p2p.as_ref(), self.log.as_ref());
        Settings {
            messages: p2p.map(|p2p| p2p.keep).unwrap_or_default(),
            logs: log.map(|log| log.keep).unwrap_or_default(),
            raw: p2p.is_none_or(|p2p| p2p.raw),
            search: log.is_none_or(|log| log.search),
            ..Settings::default()
        }
    }
}

/// Ports of 0 mean none, as in the original.
fn none_if_0(port: u16) -> Option<u16> {
    (port > 0).then_some(port)
}

/// A file while it is checked.
struct Text<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Text<'_> {
    fn error(
        &self,
        span: Option<Range<usize>>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        let before = span.and_then(|span| self.text.as_bytes().get(..span.start));
        let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
        ConfigError {
            file: self.path.to_owned(),
            line,
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The value of a key that had another name before. Both at once are an error.
    fn either<T>(
        &self,
        new: Option<Spanned<T>>,
        new_name: &str,
        old: Option<Spanned<T>>,
        old_name: &str,
    ) -> Result<Option<Spanned<T>>, ConfigError> {
        match (new, old) {
            (Some(_), Some(old)) => Err(self.error(
                Some(old.span()),
                format!("`{old_name}` is another name of `{new_name}`, and both are there"),
                format!("remove `{old_name}`"),
            )),
            (new, old) => Ok(new.or(old)),
        }
    }
}
