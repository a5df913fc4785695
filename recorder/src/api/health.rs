//! `/v4/health`: whether all is recorded, and what was lost.

use memprof_server::Reply;
use serde::Serialize;

use super::Shared;
use super::failure::Failure;
use super::nodes::{ApiNode, LogHealth};
use super::reply::json;
use crate::reconnect::ReconnectHealth;

/// The state of the capture at this time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CaptureHealth {
    /// Where bytes come from: `sockets` or `calls`; empty if nothing is captured.
    pub source: String,
    /// Control groups to which programs are attached.
    pub cgroups: Vec<String>,
    /// Events that did not fit into the ring buffer.
    pub lost_events: u64,
    /// Bytes of these events, and those that the kernel did not let the programs copy.
    pub lost_bytes: u64,
    /// Events that did not fit into the queue to the decoders.
    pub dropped_events: u64,
    /// Bytes of these events.
    pub dropped_bytes: u64,
    /// IPv6 packets that are not recorded, because of their extension headers.
    pub unread_packets: u64,
    /// Events at which the kernel did not run the programs.
    pub skipped_events: u64,
    /// System calls that were not noted (source `calls`).
    pub missed_calls: u64,
    /// Connections of a node that are open now.
    pub open_connections: u64,
    /// Connections that are none of a node's, or cannot be recorded.
    pub ignored_connections: u64,
    /// Connections that are not followed any more because there were too many.
    pub given_up_connections: u64,
    /// Reasons why something is not captured.
    pub problems: Vec<String>,
}

impl CaptureHealth {
    fn is_whole(&self) -> bool {
        let lost = [
            self.lost_events,
            self.lost_bytes,
            self.dropped_events,
            self.unread_packets,
            self.skipped_events,
            self.missed_calls,
            self.given_up_connections,
        ];
        lost == [0; 7] && self.problems.is_empty()
    }
}

/// All that is known.
#[derive(Serialize)]
struct HealthReply<'a> {
    /// `ok`, or `degraded` if anything was lost or is wrong.
    status: &'static str,
    version: &'a str,
    capture: CaptureHealth,
    nodes: Vec<NodeHealth<'a>>,
}

#[derive(Serialize)]
struct NodeHealth<'a> {
    name: &'a str,
    identity: String,
    /// Entries that wait to be written.
    waiting: u64,
    /// Entries that did not fit into the queue, and their size.
    dropped: u64,
    dropped_bytes: u64,
    /// Entries that could not be written.
    failed: u64,
    errors: u64,
    last_error: Option<String>,
    damaged_files: Vec<String>,
    /// Size on disk.
    bytes: u64,
    /// Sources of logs.
    logs: Vec<LogHealth>,
    /// Peers that the node is asked to drop; null if it is not.
    reconnect: Option<ReconnectHealth>,
}

impl<'a> From<&'a ApiNode> for NodeHealth<'a> {
    fn from(node: &'a ApiNode) -> Self {
        let (health, state) = (node.store.health(), node.state());
        let shown = |path: &std::path::PathBuf| path.display().to_string();
        Self {
            name: &node.name,
            identity: state.identity,
            waiting: health.queue.entries,
            dropped: health.queue.dropped,
            dropped_bytes: health.queue.dropped_bytes,
            failed: health.failed,
            errors: health.errors,
            last_error: health.last_error,
            damaged_files: health.damaged.iter().map(shown).collect(),
            bytes: health.bytes,
            logs: state.logs,
            reconnect: state.reconnect,
        }
    }
}

impl NodeHealth<'_> {
    fn is_whole(&self) -> bool {
        [self.dropped, self.failed, self.errors] == [0; 3]
            && self.damaged_files.is_empty()
            && self.logs.iter().all(LogHealth::is_whole)
            && self.reconnect.iter().all(ReconnectHealth::is_whole)
    }
}

pub(super) fn answer(shared: &Shared) -> Result<Reply, Failure> {
    let capture = shared.capture();
    let nodes: Vec<_> = shared.nodes.all().iter().map(NodeHealth::from).collect();
    let is_whole = capture.is_whole() && nodes.iter().all(NodeHealth::is_whole);
    json(&HealthReply {
        status: if is_whole { "ok" } else { "degraded" },
        version: &shared.options.version,
        capture,
        nodes,
    })
}
