//! Ctrl-Z: stops memprof together with its command.
//!
//! The thread that keeps the command's memory for the last scan waits in the kernel for a page. The kernel cannot stop
//! the thread there: it retries the fault again and again, and the shell never learns that memprof has stopped. So
//! memprof releases the memory before it stops, and keeps it again afterwards. SIGSTOP cannot be handled: the thread
//! spins until memprof is continued, and the collector then replaces it (`keep_quietly`).

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{self, SignalKind};

use super::signals::is_ignored;
use crate::collect::CollectorHandle;
use crate::collect::collector::Command;

/// Maximum time to wait for the collector, which may be scanning. Then memprof stops as far as possible.
const LONGEST: Duration = Duration::from_secs(2);

/// Waits for Ctrl-Z.
pub(super) struct Pauses(Option<unix::Signal>);

impl Pauses {
    /// Handles SIGTSTP, unless it is ignored. Needs a tokio runtime.
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

    /// Waits for the next SIGTSTP, forever if it is ignored.
    pub(super) async fn next(&mut self) {
        match &mut self.0 {
            Some(came) => drop(came.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Stops memprof until SIGCONT.
pub(super) fn stop(collecting: &CollectorHandle) {
    let was_kept = collecting.wait_for(LONGEST, Command::ReleaseMemory);
    let _ = raise(Signal::SIGSTOP);
    if was_kept == Some(true) {
        let _ = collecting.wait_for(LONGEST, Command::RetainMemory);
    }
}
