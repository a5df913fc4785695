//! Heap snapshots on request: one at a time, and no more often than reports that stop the target.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{RUN, RUN_SHARE, Reports};
use crate::collect::aggregate::SampledHeap;
use crate::collect::collector::{Command, HeapRequest, OwnersRequest, TakenHeap};
use crate::export::{grown_by, stack_names};
use crate::http::api::ApiError;
use memprof_code::symbolize::Detail;
use memprof_heap::{
    ByStack, GrownBy, HeapOptions, HeapPages, HeapSnapshot, Joint, Moment, StackNames,
};
use memprof_profile::{FrameFilter, LOST_STACK, Report};
use memprof_sys::ids::{Pid, StackId};

impl Reports {
    /// Takes a heap snapshot of a followed process.
    ///
    /// # Errors
    /// Another snapshot is being taken, the process has ended, or it could not be stopped and copied in time.
    pub async fn take_heap(
        &self,
        pid: Pid,
        moment: Moment,
        how: HeapOptions,
    ) -> Result<Arc<HeapSnapshot>, ApiError> {
        let turn = Arc::clone(&self.heaps).try_lock_owned();
        let turn = turn.map_err(|_| {
            ApiError::Busy("another heap snapshot is being taken: try again later".to_owned())
        })?;
        {
            // The target runs for a minimum share of the time, however often it is stopped.
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
            moment,
            how,
            reply,
            collecting: self.collecting.clone(),
            turn,
        };
        let begun = Instant::now();
        let sent = self.collecting.send(Command::Heap(request));
        sent.map_err(|e| failed(e.to_string()))?;
        let taken = answer.await.map_err(|_| {
            failed("the thread that takes it could not be started, or ended early".to_owned())
        })?;
        let TakenHeap {
            snapshot: mut taken,
            pages,
            joint,
        } = taken.map_err(failed)?;
        let stop = Duration::from_secs_f64(taken.heap.taken.stop_ms / 1e3);
        let mut runs_until = self.runs_until.lock().await;
        *runs_until = (*runs_until).max(begun + stop * (RUN_SHARE + 1));
        drop(runs_until);
        if how.grown_by && pages.bytes() > 0 {
            let grown_by = self.grown_by(pid, pages.clone(), how.top).await;
            taken.grown_by = Some(grown_by.unwrap_or_else(GrownBy::failed));
        }
        let zero = pages.only_zeroes();
        if how.grown_by && zero.bytes() > 0 {
            let zero_by = self.grown_by(pid, zero, how.top).await;
            taken.zero_by = Some(zero_by.unwrap_or_else(GrownBy::failed));
        }
        if let Some((joint, sampled)) = joint {
            let by_stack = self.by_stack(pid, joint, sampled, &pages, how);
            taken.by_stack = Some(by_stack.await.map_err(failed)?);
        }
        Ok(Arc::new(taken))
    }

    /// The heap by the stacks that allocated it.
    async fn by_stack(
        &self,
        pid: Pid,
        joint: Joint,
        sampled: SampledHeap,
        pages: &HeapPages,
        how: HeapOptions,
    ) -> Result<ByStack, String> {
        let mut grown_by = Vec::new();
        let free = pages.only(joint.free_pages());
        if how.grown_by && free.bytes() > 0 {
            // Without these rows, the origin of the free pages is unknown.
            let found = self.grown_by(pid, free, how.top).await;
            let found = found.unwrap_or_else(GrownBy::failed);
            let rows = found.rows.into_iter();
            grown_by.extend(rows.map(|row| (Some(row.stack), row.bytes)));
            grown_by.push((None, found.left_out_bytes + found.shared));
        }
        let profile = Arc::new(sampled.profile);
        let symbols = self.names(&profile, Detail::Inlined).await;
        let symbols = symbols.map_err(|e| e.to_string())?;
        let inlined = self.inlined;
        let build = move || {
            let report = Report {
                profile,
                symbols,
                sequence: 0,
            };
            let report = report.showing(FrameFilter::default());
            let names = stack_names(&report, inlined).into_iter();
            let names: HashMap<StackId, StackNames> = sampled
                .stacks
                .iter()
                .zip(names)
                .filter_map(|(id, names)| Some((*id, names?)))
                .collect();
            let lost = || LOST_STACK.to_owned().into();
            let name = |id| names.get(&id).cloned().unwrap_or_else(lost);
            joint.by_stack(name, &grown_by, how.stacks)
        };
        let built = tokio::task::spawn_blocking(build);
        built.await.map_err(|e| e.to_string())
    }

    /// The stacks that faulted in these pages.
    async fn grown_by(&self, pid: Pid, pages: HeapPages, top: usize) -> Result<GrownBy, String> {
        let shared = pages.shared();
        let (reply, answer) = oneshot::channel();
        let request = OwnersRequest { pid, pages, reply };
        let sent = self.collecting.send(Command::Owners(request));
        sent.map_err(|e| e.to_string())?;
        let profile = answer.await.map_err(|_| "the collector has ended")??;
        let profile = Arc::new(profile);
        let symbols = self.names(&profile, Detail::Inlined).await;
        let report = Report {
            profile,
            symbols: symbols.map_err(|e| e.to_string())?,
            sequence: 0,
        };
        let inlined = self.inlined;
        let rows = tokio::task::spawn_blocking(move || {
            grown_by(
                &report.showing(FrameFilter::default()),
                shared,
                top,
                inlined,
            )
        });
        rows.await.map_err(|e| e.to_string())
    }
}
