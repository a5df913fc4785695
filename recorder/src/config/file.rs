//! The keys of `config.toml`: both forms of the original, and ours. [`super::Config`] has the values that they mean.

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::{Spanned, Value};

type Text = Option<Spanned<String>>;
type Port = Option<Spanned<u16>>;

/// The whole file. Keys of July 2021 have another name later: `rpc_port` is `http_v2`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Of no use here.
    #[serde(rename = "bpf_sniffer_path")]
    pub _sniffer: Option<IgnoredAny>,
    pub rpc_port: Port,
    pub http_v2: Port,
    pub listen: Option<Spanned<Value>>,
    pub ring: Option<Spanned<Value>>,
    pub source: Text,
    pub token_file: Text,
    #[serde(default)]
    pub cors_origins: Vec<Spanned<String>>,
    #[serde(default)]
    pub nodes: Vec<Spanned<Node>>,
}

/// `[[nodes]]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub db_path: Text,
    pub identity_path: Text,
    pub p2p_port: Port,
    pub rpc_port: Port,
    pub syslog_port: Port,
    pub name: Text,
    pub http_v3: Port,
    pub db: Text,
    pub p2p: Option<Spanned<P2p>>,
    pub log: Option<Spanned<Log>>,
    pub cgroup: Text,
    pub unit: Text,
    pub pid: Option<Spanned<u32>>,
    pub pow: Option<Spanned<f64>>,
    pub keep: Option<Keep>,
    pub raw: Option<bool>,
    pub reconnect: Option<Spanned<Value>>,
}

/// `p2p = { … }`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct P2p {
    pub identity: Text,
    pub port: Port,
    pub store_limit: Option<Spanned<u64>>,
}

/// `log = { … }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub port: Port,
    pub disable_search: Option<bool>,
    pub store_limit: Option<Spanned<u64>>,
    pub listen: Text,
    pub socket: Text,
    pub mode: Text,
    pub file: Text,
    pub data_dir: Text,
    pub unit: Text,
    pub keep: Option<LogKeep>,
}

/// `keep = { … }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    pub messages: Option<Spanned<u64>>,
    pub bytes: Option<Spanned<Value>>,
    pub age: Text,
}

/// `log.keep = { … }`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogKeep {
    pub lines: Option<Spanned<u64>>,
    pub bytes: Option<Spanned<Value>>,
    pub age: Text,
}
