//! What the threads of a run tell the server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Error, anyhow};
use tokio::sync::Notify;

use crate::api::{CaptureHealth, NodeState};
use crate::config::Config;

/// What is told.
#[derive(Debug)]
pub(super) struct Shared {
    told: Mutex<Told>,
    failed: Notify,
}

#[derive(Debug, Default)]
struct Told {
    capture: CaptureHealth,
    nodes: Vec<NodeState>,
    failure: Option<Error>,
}

impl Shared {
    pub(super) fn new(config: &Config) -> Self {
        let told = Told {
            nodes: config.nodes.iter().map(|_| NodeState::default()).collect(),
            ..Told::default()
        };
        Self {
            told: Mutex::new(told),
            failed: Notify::new(),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the capture.
    pub(super) fn health(&self) -> CaptureHealth {
        self.told().capture.clone()
    }

    pub(super) fn set_health(&self, health: CaptureHealth) {
        self.told().capture = health;
    }

    /// The state of the node with that number.
    pub(super) fn node(&self, number: usize) -> NodeState {
        self.told().nodes.get(number).cloned().unwrap_or_default()
    }

    pub(super) fn set_node(&self, number: usize, state: NodeState) {
        if let Some(node) = self.told().nodes.get_mut(number) {
            *node = state;
        }
    }

    /// Ends the run with an error.
    pub(super) fn fail(self: &Arc<Self>, failure: Error) {
        self.told().failure = Some(failure);
        self.failed.notify_one();
    }

    /// Completes when the run has failed.
    pub(super) async fn failed(&self) -> Error {
        self.failed.notified().await;
        let failure = self.told().failure.take();
        failure.unwrap_or_else(|| anyhow!("the capture ended"))
    }
}
