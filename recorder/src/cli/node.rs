//! Options that name a configuration, or a single node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory};

use super::{Cli, CliError};
use crate::capture;
use crate::config::{
    Config, DEFAULT_KEEP, DEFAULT_MODE, DEFAULT_P2P_PORT, DEFAULT_PORT, DEFAULT_RING, Log, Node,
    P2p, PLACES, check, log, node, values,
};
use crate::logs::Source;
use crate::p2p::pow::Target;
use crate::store::Keep;

/// A configuration, or a single node.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Read this configuration; without it and without the options of a node, config.toml here or in /etc
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    config: Option<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
    /// Serve at this IP address; may be repeated [default: 127.0.0.1]
    #[arg(long, value_name = "IP", value_parser = check::address, help_heading = "Server")]
    listen: Vec<IpAddr>,
    /// Serve the page and the API at this port; 0 for no server [default: 17732]
    #[arg(long, value_name = "PORT", help_heading = "Server")]
    port: Option<u16>,
    /// Serve only requests with the token in this file
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    token_file: Option<PathBuf>,
    /// Let pages of this origin read replies, besides those of this machine; may be repeated
    #[arg(long, value_name = "ORIGIN", value_parser = check::origin, help_heading = "Server")]
    cors_origin: Vec<String>,
}

/// A single node.
#[derive(Debug, Args)]
#[group(id = "node", multiple = true)]
struct NodeArgs {
    /// The node's identity.json; it may come later
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    identity: Option<PathBuf>,
    /// The node's data directory: the same as --identity DIR/identity.json, with the logs in DIR/daily-logs if they are there
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    data_dir: Option<PathBuf>,
    /// The port at which the node listens for peers [default: 9732]
    #[arg(long, value_name = "PORT", help_heading = "Node")]
    p2p_port: Option<u16>,
    /// The directory of the database [default: /var/lib/tezos-recorder/NAME]
    #[arg(long, value_name = "DIR", help_heading = "Node")]
    db: Option<PathBuf>,
    /// The node's name in the API [default: its port]
    #[arg(long, value_parser = node::name, help_heading = "Node")]
    name: Option<String>,
    /// The control group of the node, a directory
    #[arg(long, value_name = "DIR", group = "place", help_heading = "Node")]
    cgroup: Option<PathBuf>,
    /// The systemd unit of the node
    #[arg(long, group = "place", help_heading = "Node")]
    unit: Option<String>,
    /// A process of the node
    #[arg(long, group = "place", help_heading = "Node")]
    pid: Option<u32>,
    /// The proof of work of peers, in bits; 0 in sandboxes [default: 26]
    #[arg(long, value_name = "BITS", value_parser = target, help_heading = "Node")]
    pow: Option<Target>,
    /// Let the node drop peers whose connections are older than the recorder, one every 5 s, so that their next handshake is seen;
    /// by its RPC [default URL: http://127.0.0.1:8732]
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = "http://127.0.0.1:8732", value_parser = node::rpc, help_heading = "Node")]
    reconnect: Option<SocketAddr>,
    /// Receive logs by syslog, UDP, at this port of 127.0.0.1; 0 for none
    #[arg(long, value_name = "PORT", help_heading = "Logs")]
    log_port: Option<u16>,
    /// Receive logs by syslog at a Unix socket, which the recorder makes
    #[arg(long, value_name = "PATH", help_heading = "Logs")]
    log_socket: Option<PathBuf>,
    /// Follow a file with logs
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    log_file: Option<PathBuf>,
    /// Follow the journal of a systemd unit
    #[arg(long, value_name = "UNIT", help_heading = "Logs")]
    log_unit: Option<String>,
    /// Keep at most so much of the messages; 0 for all [default: 10GiB]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Node")]
    keep: Option<u64>,
    /// Keep messages and logs for this time, such as `30d`
    #[arg(long, value_name = "AGE", value_parser = values::age, help_heading = "Node")]
    keep_age: Option<Duration>,
}

fn target(bits: &str) -> Result<Target, String> {
    node::target(bits.parse().unwrap_or(f64::NAN))
}

impl ConfigArgs {
    /// The configuration.
    ///
    /// # Errors
    /// If it is wrong, or there is none.
    pub fn required(self) -> Result<Config, CliError> {
        self.found()?.ok_or_else(|| {
            let places = PLACES.join(", ");
            let text = format!("no node is named: give --data-dir, --identity or --config (there is none of {places})\n");
            Cli::command().error(ErrorKind::MissingRequiredArgument, text).into()
        })
    }

    /// The configuration; `None` if there is none.
    ///
    /// # Errors
    /// If it is wrong.
    pub fn found(self) -> Result<Option<Config>, CliError> {
        let given = match self.config {
            Some(path) => Some(Config::read(&path)?),
            None => self.node.config()?,
        };
        let config = match given {
            Some(config) => Some(config),
            None => Config::find()?,
        };
        Ok(config.map(|mut config| {
            config.port = self
                .port
                .map_or(config.port, |port| (port > 0).then_some(port));
            config.token_file = self.token_file.or(config.token_file);
            config.cors_origins.extend(self.cors_origin);
            if !self.listen.is_empty() {
                config.listen = self.listen;
            }
            config
        }))
    }
}

impl NodeArgs {
    /// The configuration of a single node; `None` if no option names one.
    fn config(self) -> Result<Option<Config>, CliError> {
        let keep = |bytes: Option<u64>| Keep {
            rows: None,
            bytes,
            age: self.keep_age,
        };
        let sources = self.log_sources();
        let log = Log {
            sources,
            search: true,
            keep: keep(Some(DEFAULT_KEEP.1)),
        };
        let log = Some(log).filter(|log| !log.sources.is_empty());
        let in_data_dir = self
            .data_dir
            .map(|directory| directory.join("identity.json"));
        let port = self.p2p_port.unwrap_or(DEFAULT_P2P_PORT);
        let place = match (self.cgroup, self.unit, self.pid) {
            (Some(directory), ..) => capture::Target::Cgroup(directory),
            (_, Some(unit), _) => capture::Target::Unit(unit),
            (.., Some(pid)) => capture::Target::Process(pid),
            _ => capture::Target::Port(port),
        };
        let p2p = self.identity.or(in_data_dir).map(|identity| P2p {
            identity,
            port: (port > 0).then_some(port),
            place,
            target: self.pow.unwrap_or(Target::MAINNET),
            raw: true,
            keep: keep(
                self.keep
                    .map_or(Some(DEFAULT_KEEP.0), |bytes| (bytes > 0).then_some(bytes)),
            ),
            reconnect: self.reconnect,
        });
        if p2p.is_none() && log.is_none() {
            return match self.p2p_port.is_some() || self.db.is_some() || self.name.is_some() {
                true => Err(refused(
                    "these options need --identity, --data-dir or one of --log-…\n",
                )),
                false => Ok(None),
            };
        }
        if p2p
            .as_ref()
            .is_some_and(|p2p| p2p.place == capture::Target::Port(0))
        {
            return Err(refused(
                "--p2p-port 0 needs --cgroup, --unit or --pid, where the node's sockets are\n",
            ));
        }
        let name = self.name.unwrap_or_else(|| port.to_string());
        Ok(Some(Config {
            file: None,
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            port: Some(DEFAULT_PORT),
            ring: DEFAULT_RING,
            source: capture::Source::Auto,
            token_file: None,
            cors_origins: Vec::new(),
            nodes: vec![Node {
                port: None,
                db: self.db.unwrap_or_else(|| node::default_db(&name)),
                name,
                p2p,
                log,
            }],
        }))
    }

    fn log_sources(&self) -> Vec<Source> {
        let port = self.log_port.filter(|port| *port > 0);
        let daily = self
            .data_dir
            .as_ref()
            .map(|directory| log::daily_logs(directory));
        let daily =
            daily.filter(|source| matches!(source, Source::Daily(directory) if directory.is_dir()));
        let socket = |path: &PathBuf| Source::Socket {
            path: path.clone(),
            mode: DEFAULT_MODE,
        };
        let unit = self.log_unit.clone();
        let all = [
            port.map(|port| Source::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))),
            self.log_socket.as_ref().map(socket),
            self.log_file.clone().map(Source::File),
            daily,
            unit.map(|unit| Source::Journal { unit }),
        ];
        all.into_iter().flatten().collect()
    }
}

fn refused(text: &str) -> CliError {
    Cli::command()
        .error(ErrorKind::MissingRequiredArgument, text)
        .into()
}
