//! Ctrl-Z: memprof stops with its command.
//!
//! The thread that keeps the command's memory for the last scan waits in the kernel for a page. There the kernel lets it not
//! stop: it tries again at once, and again, and the shell never learns that memprof has stopped. So the memory is let go before,
//! and kept again afterwards. SIGSTOP cannot be
//! handled: the thread runs until memprof is continued, and the collector then replaces it (`keep_quietly`).

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{self, SignalKind};

use super::signals::is_ignored;
use crate::collect::CollectorHandle;
use crate::collect::collector::Command;

/// How long the collector may take, which may be scanning. After that, memprof stops as far as it can.
const LONGEST: Duration = Duration::from_secs(2);

/// Waits for Ctrl-Z.
pub(super) struct Pauses(Option<unix::Signal>);

impl Pauses {
    /// Takes SIGTSTP over, unless it is ignored. Needs a tokio runtime.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub(super) fn new() -> Result<Pauses> {
        let signal = Signal::SIGTSTP;
        if is_ignored(signal) {
            return Ok(Pauses(None));
        }
        let kind = SignalKind::from_raw(signal as i32);
        let came = unix::signal(kind).with_context(|| format!("cannot wait for {signal}"))?;
        Ok(Pauses(Some(came)))
    }

    /// Waits for the next one, for ever if it is ignored.
    pub(super) async fn next(&mut self) {
        match &mut self.0 {
            Some(came) => drop(came.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Stops memprof until it is continued.
pub(super) fn stop(collecting: &CollectorHandle) {
    let was_kept = collecting.wait_for(LONGEST, Command::LetGo);
    let _ = raise(Signal::SIGSTOP);
    if was_kept == Some(true) {
        let _ = collecting.wait_for(LONGEST, Command::KeepAgain);
    }
}
