//! Settings of the workers, and the ids that they give to connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::budget::Budget;
use crate::reconnect::Reports;
use crate::store::ConnectionId;
use crate::time::Timestamp;

/// A time of a connection that is so much earlier than that of the one before was taken after the wall clock was set back. It is more
/// than one decoder lags behind another.
const SET_BACK: Duration = Duration::from_secs(10);

/// Settings that all workers share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of the nodes and the ports on which their peers reach them, to list connections whose first bytes were not seen.
    pub ports: Vec<(String, u16)>,
    /// Limit of the bytes that connections hold.
    pub budget: Budget,
    /// Maximum number of connections that a worker follows; the one without traffic for the longest time is given up first.
    pub max_connections: usize,
    /// Ids of connections.
    pub ids: ConnectionIds,
    /// Receivers of reports about connections that were opened before the recorder.
    pub reports: Reports,
}

/// Gives connections their ids.
#[derive(Clone, Debug, Default)]
pub struct ConnectionIds(Arc<AtomicU64>);

impl ConnectionIds {
    /// The id of a connection that was first seen at that time: the time itself, or the next one that is free. If the wall clock was set
    /// back, the ids go back, too, so that they are still times.
    pub(super) fn next(&self, time: Timestamp) -> ConnectionId {
        let after = |last: u64| match last.saturating_sub(time.0) {
            ahead if u128::from(ahead) > SET_BACK.as_nanos() => time.0,
            _ => time.0.max(last + 1),
        };
        let update = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(after(last))
            });
        ConnectionId(after(update.unwrap_or_default()))
    }
}

impl Settings {
    /// The node one of whose ports is that of the connection: the local port, else the peer's.
    pub(super) fn node_of_ports(&self, (local, remote): (SocketAddr, SocketAddr)) -> Option<&str> {
        let ports = &self.ports;
        let find = |port| ports.iter().find(|(_, own)| *own == port && port != 0);
        let found = find(local.port()).or_else(|| find(remote.port()));
        found.map(|(node, _)| &node[..])
    }
}
