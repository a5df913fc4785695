//! Sets marks without an HTTP request: on SIGUSR1, and on the program's own probe `memprof:mark`.

use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::http::api::Api;
use crate::probe::event::MarkSet;
use memprof_sys::ids::Pid;
use memprof_sys::messages;
use memprof_sys::text::printable;

/// Sets marks from now on; each trigger has its own task. Needs a tokio runtime.
///
/// # Errors
/// The signal handler cannot be installed.
pub(super) fn make(api: &Arc<Api>, mut set: mpsc::Receiver<(Pid, MarkSet)>) -> Result<()> {
    let mut asked = signal(SignalKind::user_defined1()).context("cannot wait for SIGUSR1")?;
    let by_signal = Arc::clone(api);
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            make_one(&by_signal, None, None, "SIGUSR1").await;
        }
    });
    let by_program = Arc::clone(api);
    tokio::spawn(async move {
        while let Some((pid, mark)) = set.recv().await {
            let who = format!("process {pid}");
            make_one(&by_program, mark.name, Some(mark.at), &who).await;
        }
    });
    Ok(())
}

async fn make_one(api: &Api, name: Option<String>, at_ns: Option<u64>, who: &str) {
    let called = match &name {
        Some(name) => format!(" {:?}", printable(name)),
        None => String::new(),
    };
    match api.make_mark(name, at_ns).await {
        Ok(id) => messages::print(&format!("mark {id}{called} (set by {who})")),
        Err(e) => messages::print(&format!("no mark{called}, which {who} has set: {e}")),
    }
}
