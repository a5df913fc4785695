//! The sources of logs that are followed.

use std::sync::Arc;

use anyhow::Result;

use super::say;
use crate::api::LogHealth;
use crate::config::Config;
use crate::logs;
use crate::store::{Entry, Store};

/// A source of logs that is followed.
pub(super) struct Followed {
    /// Number of the node.
    pub(super) node: usize,
    source: logs::Source,
    running: logs::Running,
}

impl Followed {
    pub(super) fn health(&self) -> LogHealth {
        LogHealth {
            source: self.source.to_string(),
            counts: self.running.counts(),
            error: self.running.error(),
        }
    }
}

/// Starts to follow the logs of all nodes.
///
/// # Errors
/// A source cannot be opened.
pub(super) fn follow(config: &Config, stores: &[Arc<Store>]) -> Result<Vec<Followed>> {
    let mut running = Vec::new();
    for (number, (node, store)) in config.nodes.iter().zip(stores).enumerate() {
        for source in node.log.iter().flat_map(|log| &log.sources) {
            let writer = store.writer();
            let sink = move |line| writer.put(Entry::Log(line));
            let name = node.name.clone();
            let warn = move |error: &str| say(&format!("warning: {name}: {error}"));
            let followed = logs::start(source, &node.db, sink, warn)?;
            say(&format!("{}: following logs: {source}", node.name));
            running.push(Followed {
                node: number,
                source: source.clone(),
                running: followed,
            });
        }
    }
    Ok(running)
}
