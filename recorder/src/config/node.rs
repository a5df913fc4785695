//! The nodes of the file.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use toml::{Spanned, Value};

use super::{Config, ConfigError, DEFAULT_KEEP, Node, P2p, Text, file, none_if_0, values};
use crate::capture;
use crate::p2p::pow::Target;
use crate::reconnect::DEFAULT_RPC;
use crate::store::Keep;

/// Where the database of a node is by default. systemd names a service's directory in `STATE_DIRECTORY`.
pub fn default_db(name: &str) -> PathBuf {
    let directory = std::env::var_os("STATE_DIRECTORY").filter(|d| !d.is_empty());
    let directory =
        directory.map_or_else(|| PathBuf::from("/var/lib/tezos-recorder"), PathBuf::from);
    directory.join(name)
}

/// Checks the name of a node, which is also a part of paths.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn name(name: &str) -> Result<String, String> {
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let fits = (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.');
    fits.then(|| name.to_owned())
        .ok_or_else(|| "expected 1 to 100 letters, digits, `-`, `_` or `.`".into())
}

/// Checks a difficulty of proof of work.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn target(bits: f64) -> Result<Target, String> {
    Target::new(bits)
        .ok_or_else(|| "expected a number of bits from 0 to 256; mainnet has 26".into())
}

/// Reads the URL of a node's RPC. A name is none, because others decide where it leads.
///
/// # Errors
/// The value is not allowed; the text says which are.
pub fn rpc(url: &str) -> Result<SocketAddr, String> {
    let address = url.strip_prefix("http://");
    let address = address.and_then(|text| text.strip_suffix('/').unwrap_or(text).parse().ok());
    address.ok_or_else(|| {
        format!("expected `http://`, an IP address and a port, such as `http://{DEFAULT_RPC}`")
    })
}

impl Text<'_> {
    pub(super) fn with_nodes(
        &self,
        mut config: Config,
        nodes: Vec<Spanned<file::Node>>,
    ) -> Result<Config, ConfigError> {
        if nodes.is_empty() {
            return Err(self.error(None, "no node is configured", "add a section [[nodes]]"));
        }
        for raw in nodes {
            let span = raw.span();
            let node = self.node(raw)?;
            self.conflicts(&config, &node, &span)?;
            config.nodes.push(node);
        }
        Ok(config)
    }

    fn node(&self, raw: Spanned<file::Node>) -> Result<Node, ConfigError> {
        let span = raw.span();
        let mut raw = raw.into_inner();
        let port = self.either(
            raw.http_v3.take(),
            "http_v3",
            raw.rpc_port.take(),
            "rpc_port",
        )?;
        let db = self.either(raw.db.take(), "db", raw.db_path.take(), "db_path")?;
        let given = raw.name.take();
        let log = self.log(raw.log.take(), raw.syslog_port.take())?;
        let p2p = self.p2p(&mut raw)?;
        if p2p.is_none() && log.is_none() {
            let remedy = "add `p2p = { identity = … }` or `log = { port = … }`";
            return Err(self.error(Some(span), "nothing of this node is recorded", remedy));
        }
        let name = match given {
            Some(given) => self.parsed(given.span(), "name", name(given.get_ref()))?,
            // In July 2021 nodes had no name but their port.
            None => match p2p.as_ref().and_then(|p2p| p2p.port) {
                Some(port) => port.to_string(),
                None => {
                    return Err(self.error(Some(span), "this node has no name", "add `name = …`"));
                }
            },
        };
        Ok(Node {
            port: port.and_then(|port| none_if_0(port.into_inner())),
            db: db.map_or_else(|| default_db(&name), |db| db.into_inner().into()),
            name,
            p2p,
            log,
        })
    }

    fn p2p(&self, raw: &mut file::Node) -> Result<Option<P2p>, ConfigError> {
        let given = self.place(raw)?;
        let p2p = raw.p2p.take();
        let span = p2p.as_ref().map(Spanned::span);
        let (identity, port, limit) = match p2p.map(Spanned::into_inner) {
            Some(p2p) => (p2p.identity, p2p.port, p2p.store_limit),
            None => (None, None, None),
        };
        let old = raw.identity_path.take();
        let identity = self.either(identity, "p2p.identity", old, "identity_path")?;
        let port = self.either(port, "p2p.port", raw.p2p_port.take(), "p2p_port")?;
        let span = span.or(port.as_ref().map(Spanned::span));
        let Some(identity) = identity else {
            return match span {
                Some(_) => Err(self.error(
                    span,
                    "the node's identity is missing",
                    "add `identity = …`, the path of its identity.json",
                )),
                None => Ok(None),
            };
        };
        let port = port.and_then(|port| none_if_0(port.into_inner()));
        let Some(place) = given.or(port.map(capture::Target::Port)) else {
            let what = "nothing says where the node's sockets are";
            let remedy = "add `port = …` in `p2p`, or one of `cgroup`, `unit` and `pid`";
            return Err(self.error(Some(identity.span()), what, remedy));
        };
        let target = match raw.pow.take() {
            Some(bits) => self.parsed(bits.span(), "pow", target(*bits.get_ref()))?,
            None => Target::MAINNET,
        };
        let keep = raw.keep.take().unwrap_or_default();
        let messages = self.either(keep.messages, "keep.messages", limit, "p2p.store_limit")?;
        Ok(Some(P2p {
            identity: identity.into_inner().into(),
            port,
            place,
            target,
            raw: raw.raw.unwrap_or(true),
            keep: self.keep(messages, keep.bytes, keep.age, DEFAULT_KEEP.0)?,
            reconnect: self.reconnect(raw.reconnect.take())?,
        }))
    }

    fn reconnect(&self, value: Option<Spanned<Value>>) -> Result<Option<SocketAddr>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        let address = match value.get_ref() {
            Value::Boolean(on) => Ok(on.then_some(DEFAULT_RPC)),
            other => rpc(other.as_str().unwrap_or_default()).map(Some),
        };
        self.parsed(value.span(), "reconnect", address)
    }

    /// Where the node's sockets are, if it is said.
    fn place(&self, raw: &mut file::Node) -> Result<Option<capture::Target>, ConfigError> {
        let cgroup = raw
            .cgroup
            .take()
            .map(|c| (c.span(), capture::Target::Cgroup(c.into_inner().into())));
        let unit = raw
            .unit
            .take()
            .map(|u| (u.span(), capture::Target::Unit(u.into_inner())));
        let pid = raw
            .pid
            .take()
            .map(|p| (p.span(), capture::Target::Process(p.into_inner())));
        let mut places = [cgroup, unit, pid].into_iter().flatten();
        match (places.next(), places.next()) {
            (_, Some((span, _))) => {
                let what = "more than one of `cgroup`, `unit` and `pid`";
                Err(self.error(Some(span), what, "leave one of them"))
            }
            (first, None) => Ok(first.map(|(_, place)| place)),
        }
    }

    pub(super) fn keep(
        &self,
        rows: Option<Spanned<u64>>,
        bytes: Option<Spanned<Value>>,
        age: Option<Spanned<String>>,
        default: u64,
    ) -> Result<Keep, ConfigError> {
        let some = |limit: u64| (limit > 0).then_some(limit);
        let age = age.map(|age| self.parsed(age.span(), "keep.age", values::age(age.get_ref())));
        Ok(Keep {
            rows: rows.and_then(|rows| some(rows.into_inner())),
            bytes: self.size(bytes, "keep.bytes")?.map_or(Some(default), some),
            age: age.transpose()?,
        })
    }

    /// Refuses what two nodes, or two servers, cannot share.
    fn conflicts(
        &self,
        config: &Config,
        node: &Node,
        span: &Range<usize>,
    ) -> Result<(), ConfigError> {
        let sources = |node: &Node| node.log.clone().map_or(Vec::new(), |log| log.sources);
        let conflict =
            |what: String, remedy: &str| Err(self.error(Some(span.clone()), what, remedy));
        let own = sources(node);
        for other in &config.nodes {
            let shared = sources(other)
                .into_iter()
                .find(|source| own.contains(source));
            if other.name == node.name {
                return conflict(
                    format!("two nodes have the name {}", node.name),
                    "give them different names",
                );
            }
            if other.db == node.db {
                return conflict(
                    format!("two nodes have the database {}", node.db.display()),
                    "give each a directory of its own",
                );
            }
            if let Some(source) = shared {
                return conflict(
                    format!("two nodes have the same logs ({source})"),
                    "give each node a source of its own",
                );
            }
        }
        let mut ports = config
            .nodes
            .iter()
            .map(|node| node.port)
            .chain([config.port]);
        match node.port {
            Some(port) if ports.any(|other| other == Some(port)) => conflict(
                format!("port {port} is used twice"),
                "give each `http_v3`, and `http_v2`, a port of its own",
            ),
            _ => Ok(()),
        }
    }
}
