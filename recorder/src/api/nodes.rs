//! The nodes whose records are served, and questions to their stores, which block, on threads of their own.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::failure::Failure;
use super::reply::internal;
use crate::logs;
use crate::reconnect::ReconnectHealth;
use crate::store::{Reader, Store};

/// Questions that are answered at the same time.
const AT_ONCE: usize = 4;

/// The node that the original API means without a name.
const USUAL_NAME: &str = "tezedge";
const USUAL_PORT: u16 = 9732;

/// A node whose records are served.
#[derive(Clone)]
pub struct ApiNode {
    /// The name.
    pub name: String,
    /// The port on which the node accepts peers.
    pub p2p_port: u16,
    /// The records.
    pub store: Arc<Store>,
    /// The state of its identity at this time.
    pub state: Option<Arc<dyn Fn() -> NodeState + Send + Sync>>,
}

/// State of a node, beside its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The peer id, once the identity was read.
    pub peer_id: Option<String>,
    /// Whether the identity is known, or why not, in words.
    pub identity: String,
    /// The sources of logs.
    pub logs: Vec<LogHealth>,
    /// The numbers of `--reconnect`, if it is on.
    pub reconnect: Option<ReconnectHealth>,
}

/// State of a source of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogHealth {
    /// The source, in words.
    pub source: String,
    /// What was received and lost.
    #[serde(flatten)]
    pub counts: logs::Counts,
    /// Why nothing can be read at present.
    pub error: Option<String>,
}

impl LogHealth {
    pub(super) fn is_whole(&self) -> bool {
        [self.counts.dropped, self.counts.overruns] == [0; 2] && self.error.is_none()
    }
}

impl ApiNode {
    pub(super) fn state(&self) -> NodeState {
        self.state.as_ref().map(|state| state()).unwrap_or_default()
    }
}

impl fmt::Debug for ApiNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiNode")
            .field("name", &self.name)
            .field("p2p_port", &self.p2p_port)
            .finish_non_exhaustive()
    }
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    all: Vec<ApiNode>,
    turns: Semaphore,
}

impl Nodes {
    pub(super) fn new(all: Vec<ApiNode>) -> Self {
        let turns = Semaphore::new(AT_ONCE);
        Self { all, turns }
    }

    pub(super) fn all(&self) -> &[ApiNode] {
        &self.all
    }

    /// The node with that name or port. Without either: the only node, else the one with the usual port, else with the usual name.
    pub(super) fn find(&self, wanted: Option<&str>) -> Result<&ApiNode, Failure> {
        let of_port = |port| self.all.iter().find(|node| node.p2p_port == port);
        let of_name = |name: &str| self.all.iter().find(|node| node.name == name);
        let found = match (wanted, self.all.as_slice()) {
            (Some(wanted), _) => of_name(wanted).or_else(|| wanted.parse().ok().and_then(of_port)),
            (None, [only]) => Some(only),
            (None, _) => of_port(USUAL_PORT).or_else(|| of_name(USUAL_NAME)),
        };
        found.ok_or_else(|| Failure::Node(wanted.unwrap_or(USUAL_NAME).to_owned()))
    }

    /// Asks the store of a node, on a thread that may block.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        node: &ApiNode,
        question: impl FnOnce(&Reader) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.turns.acquire().await.map_err(internal)?;
        let store = Arc::clone(&node.store);
        let answer = spawn_blocking(move || question(&store.reader()?)).await;
        answer.map_err(internal)?
    }
}
