//! The threads that ask nodes to drop peers whose connections are older than the recorder.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result};

use super::say;
use super::shared::Shared;
use crate::config::Config;
use crate::reconnect::{Node, PAUSE, Reconnect, ReconnectHealth, Report, Reports};
use crate::workers::Workers;

/// The nodes that may be asked, before the threads start: number and name of each, the address of its RPC, and the reports.
pub(super) struct Prepared(Vec<(usize, Arc<str>, SocketAddr, Receiver<Report>)>);

/// The threads, with the numbers of their nodes.
#[derive(Clone, Default)]
pub(super) struct Reconnects(Vec<(usize, Reconnect)>);

/// The nodes with `reconnect`, and the senders of reports to their threads.
pub(super) fn prepare(config: &Config) -> (Reports, Prepared) {
    let mut reports = Reports::default();
    let mut nodes = Vec::new();
    for (number, node) in config.nodes.iter().enumerate() {
        if let Some(rpc) = node.p2p.as_ref().and_then(|p2p| p2p.reconnect) {
            let receiver = reports.add(&node.name);
            nodes.push((number, Arc::from(&*node.name), rpc, receiver));
        }
    }
    (reports, Prepared(nodes))
}

impl Prepared {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(self, shared: &Arc<Shared>, workers: &Arc<Workers>) -> Result<Reconnects> {
        let start = |(number, name, rpc, reports): (_, Arc<str>, SocketAddr, _)| {
            greet(&name, rpc);
            let (shared, workers) = (shared.clone(), workers.clone());
            let node = Node {
                name,
                rpc,
                pause: PAUSE,
                peer_id: Box::new(move || shared.node(number).peer_id),
                note: Box::new(move |note| workers.note(note)),
                say,
            };
            let thread = Reconnect::start(node, reports);
            let thread = thread.context("cannot start the thread that asks a node to reconnect")?;
            Ok((number, thread))
        };
        self.0
            .into_iter()
            .map(start)
            .collect::<Result<_>>()
            .map(Reconnects)
    }
}

impl Reconnects {
    /// The numbers of a node, if it is asked.
    pub(super) fn health(&self, node: usize) -> Option<ReconnectHealth> {
        let thread = self.0.iter().find(|(number, _)| *number == node);
        thread.map(|(_, thread)| thread.health())
    }
}

fn greet(node: &str, rpc: SocketAddr) {
    say(&format!(
        "{node}: peers with older connections are dropped by http://{rpc}/"
    ));
    if !rpc.ip().is_loopback() {
        say(&format!(
            "warning: {rpc} is not a loopback address: the requests to drop peers cross the network in plain HTTP"
        ));
    }
}
