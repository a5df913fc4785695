//! The thread that looks for identity files.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use super::say;
use super::shared::Shared;
use crate::api::NodeState;
use crate::config::Config;
use crate::identities::{IdentityFile, nodes};
use crate::privileges;
use crate::workers::Workers;

/// Time between looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The thread.
pub(super) struct IdentityThread {
    /// Dropped to end it.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// The files, with the numbers of their nodes.
struct Files {
    numbers: Vec<usize>,
    files: Vec<IdentityFile>,
    shared: Arc<Shared>,
    workers: Arc<Workers>,
}

impl IdentityThread {
    /// Looks once, and then again and again.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        config: &Config,
        shared: &Arc<Shared>,
        workers: &Arc<Workers>,
    ) -> Result<Self> {
        let with_p2p = config.nodes.iter().enumerate();
        let files = with_p2p.filter_map(|(number, node)| {
            let p2p = node.p2p.as_ref()?;
            let file = IdentityFile::new(node.name.clone(), p2p.identity.clone(), p2p.target);
            Some((number, file))
        });
        let (numbers, files) = files.unzip();
        let mut files = Files {
            numbers,
            files,
            shared: shared.clone(),
            workers: workers.clone(),
        };
        files.look(true);
        for file in &files.files {
            if let Err(reason) = file.known() {
                say(&format!(
                    "{}: waiting for the identity: {reason}",
                    file.name()
                ));
            }
        }
        let (stop, stopped) = channel();
        let thread = thread::Builder::new()
            .name("identities".into())
            .spawn(move || {
                privileges::reduce(privileges::READ_FILES);
                while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    files.look(false);
                }
            });
        let thread = thread.context("cannot start the thread that looks for identities")?;
        Ok(Self { stop, thread })
    }

    pub(super) fn stop(self) {
        drop(self.stop);
        // A panic was printed when it happened.
        let _ = self.thread.join();
    }
}

impl Files {
    fn look(&mut self, first: bool) {
        let mut changed = first;
        for file in &mut self.files {
            if file.look() {
                changed = true;
                if let Ok(node) = file.known() {
                    let peer_id = node.identity.peer_id();
                    say(&format!("{}: the identity is {peer_id}", file.name()));
                }
            }
        }
        for (number, file) in self.numbers.iter().zip(&self.files) {
            self.shared.set_node(*number, state(file));
        }
        if changed {
            self.workers.set_nodes(&Arc::new(nodes(&self.files)));
        }
    }
}

fn state(file: &IdentityFile) -> NodeState {
    match file.known() {
        Ok(node) => NodeState {
            peer_id: Some(node.identity.peer_id().to_string()),
            identity: "known".into(),
            ..NodeState::default()
        },
        Err(reason) => NodeState {
            identity: format!("awaited: {reason}"),
            ..NodeState::default()
        },
    }
}
