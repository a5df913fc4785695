//! The threads that decode, between the capture and the stores.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use crate::budget::Budget;
use crate::config::Config;
use crate::connection::Nodes;
use crate::privileges;
use crate::reconnect::Reports;
use crate::recording::{ConnectionIds, Settings};
use crate::store::{Entry, Store, Writer};
use crate::workers::{Sink, Workers};

/// Limit of what all connections hold, in bytes.
const BUDGET: usize = 32 << 20;
/// Size of the queues to the decoders, in bytes.
const QUEUE: usize = 16 << 20;
/// Maximum number of connections that a decoder follows.
const MAX_CONNECTIONS: usize = 8192;

/// Starts the decoders, whose entries go to the stores of the nodes.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn start(config: &Config, stores: &[Arc<Store>], reports: Reports) -> Result<Workers> {
    let ports = config.nodes.iter().filter_map(|node| {
        let port = node.p2p.as_ref()?.port?;
        Some((node.name.clone(), port))
    });
    let settings = Settings {
        ports: ports.collect(),
        budget: Budget::new(BUDGET),
        max_connections: MAX_CONNECTIONS,
        ids: ConnectionIds::default(),
        reports,
    };
    let names = config.nodes.iter().map(|node| node.name.clone());
    let writers: HashMap<String, Writer> = names
        .zip(stores.iter().map(|store| store.writer()))
        .collect();
    let sink: Sink = Arc::new(move |node: &str, entry: Entry| {
        // What does not fit is counted by the store.
        let _ = writers.get(node).is_some_and(|writer| writer.put(entry));
    });
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let number = processors.div_ceil(2);
    let nodes = Arc::new(Nodes {
        known: Vec::new(),
        awaited: true,
    });
    let prepare = || privileges::reduce(&[]);
    Workers::start(number, QUEUE, &settings, &nodes, &sink, prepare)
        .context("cannot start the threads that decode")
}
