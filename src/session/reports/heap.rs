//! Heap snapshots on request: one at a time, and as rarely as reports that stop the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{RUN, RUN_SHARE, Reports};
use crate::api::{ApiError, GrownBy, HeapOptions, HeapSnapshot, Report};
use crate::event::Pid;
use crate::heap::HeapPages;
use crate::session::collector::{Command, HeapRequest, OwnersRequest};
use crate::symbolize::Detail;

impl Reports {
    /// Takes a heap snapshot of a followed process.
    ///
    /// # Errors
    /// Another one is being taken, the process has ended, or it could not be stopped and copied in time.
    pub(super) async fn take_heap(
        &self,
        pid: Pid,
        how: HeapOptions,
    ) -> Result<Arc<HeapSnapshot>, ApiError> {
        let turn = Arc::clone(&self.heaps).try_lock_owned();
        let turn = turn.map_err(|_| {
            ApiError::Busy("another heap snapshot is being taken: try again later".to_owned())
        })?;
        {
            // The target runs for a share of the time, however often it is stopped.
            let mut runs_until = self.runs_until.lock().await;
            tokio::time::sleep_until((*runs_until).into()).await;
            *runs_until = Instant::now() + RUN;
        }
        let failed = |why: String| {
            ApiError::Failed(format!(
                "cannot take a heap snapshot of process {pid}: {why}"
            ))
        };
        let (reply, answer) = oneshot::channel();
        let request = HeapRequest {
            pid,
            max_stop: how.max_stop,
            limit: how.limit,
            top: how.top,
            reply,
            turn,
        };
        let begun = Instant::now();
        let sent = self.collecting.send(Command::Heap(request));
        sent.map_err(|e| failed(e.to_string()))?;
        let taken = answer.await.map_err(|_| {
            failed("the thread that takes it could not be started, or ended early".to_owned())
        })?;
        let (mut taken, pages) = taken.map_err(failed)?;
        let stop = Duration::from_secs_f64(taken.heap.taken.stop_ms / 1e3);
        let mut runs_until = self.runs_until.lock().await;
        *runs_until = (*runs_until).max(begun + stop * (RUN_SHARE + 1));
        drop(runs_until);
        if how.grown_by && pages.bytes() > 0 {
            let grown_by = self.grown_by(pid, pages, how.top).await;
            taken.grown_by = Some(grown_by.unwrap_or_else(GrownBy::failed));
        }
        Ok(Arc::new(taken))
    }

    /// The stacks that brought in these pages.
    async fn grown_by(&self, pid: Pid, pages: HeapPages, top: usize) -> Result<GrownBy, String> {
        let shared = pages.shared();
        let (reply, answer) = oneshot::channel();
        let request = OwnersRequest { pid, pages, reply };
        let sent = self.collecting.send(Command::Owners(request));
        sent.map_err(|e| e.to_string())?;
        let profile = answer.await.map_err(|_| "the collector has ended")??;
        let profile = Arc::new(profile);
        let symbols = self.names(&profile, Detail::Names).await;
        let report = Report {
            profile,
            symbols: symbols.map_err(|e| e.to_string())?,
            sequence: 0,
        };
        let rows = tokio::task::spawn_blocking(move || GrownBy::of(&report, shared, top));
        rows.await.map_err(|e| e.to_string())
    }
}
