//! A handle to the collector thread.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use nix::sys::eventfd::EventFd;

use crate::collect::ProviderError;
use crate::collect::collector::Command;

/// A handle to the collector thread.
#[derive(Clone, Debug)]
pub struct CollectorHandle {
    commands: SyncSender<Command>,
    wake: Arc<EventFd>,
}

impl CollectorHandle {
    /// A handle to the thread that reads `commands` and is woken through `wake`.
    pub fn new(commands: SyncSender<Command>, wake: Arc<EventFd>) -> CollectorHandle {
        CollectorHandle { commands, wake }
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The collector has ended, or its queue is full.
    pub fn send(&self, command: Command) -> Result<(), ProviderError> {
        let sent = self.commands.try_send(command);
        let _ = self.wake.write(1);
        sent.map_err(|e| ProviderError::Failed(format!("the collector does not answer: {e}")))
    }

    /// Sends a command and waits up to `timeout` for its answer.
    pub fn wait_for<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Option<T> {
        let (done, ready) = sync_channel(1);
        self.send(command(done)).ok()?;
        ready.recv_timeout(timeout).ok()
    }
}
