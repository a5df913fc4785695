//! Heap snapshots of followed processes. Each is taken by a thread of its own, with fewer privileges than the
//! collector's, because the analysis takes seconds. It is started here because threads of the server may not stop processes.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{Collector, SETTLE};
use crate::aggregate::ReportError;
use crate::allocator;
use crate::api::HeapSnapshot;
use crate::event::Pid;
use crate::freeze::Guard;
use crate::heap::{self, Approach, HeapPages, SnapshotOptions};
use crate::priority;
use crate::privileges::{self, Role};
use crate::profile::Profile;

/// A request for a heap snapshot.
pub struct HeapRequest {
    /// Of this process.
    pub pid: Pid,
    /// Maximum time for which it is stopped; `None` for that of `--max-freeze`.
    pub max_stop: Option<Duration>,
    /// What sets that limit, for messages.
    pub limit: &'static str,
    /// Number of chunks and of other single things that are listed.
    pub top: usize,
    /// Receives the snapshot and the heap's resident pages, or why there is none.
    pub reply: oneshot::Sender<Result<(HeapSnapshot, HeapPages), String>>,
    /// Released at the end, also if nobody waits for the reply any more.
    pub turn: OwnedMutexGuard<()>,
}

/// A request for the stacks that brought in pages of a heap.
pub struct OwnersRequest {
    /// Of this process.
    pub pid: Pid,
    /// The pages.
    pub pages: HeapPages,
    /// Receives a profile of these pages alone, or why there is none.
    pub reply: oneshot::Sender<Result<Profile, String>>,
}

impl Collector {
    /// Has a guard fork processes for heap snapshots from now on.
    pub fn fork_by(&mut self, guard: Guard) {
        self.refused.extend(guard.pid());
        self.guard = Arc::new(Mutex::new(guard));
    }

    /// Looks up whose pages these are.
    pub(super) fn find_owners(&mut self, request: OwnersRequest) {
        let OwnersRequest { pid, pages, reply } = request;
        let found = match self.aggregator.owners(pid, pages, &self.probe) {
            Ok(found) => {
                // Frames of some stacks may still be in the ring buffer.
                let taken = self.take_events(SETTLE);
                self.tolerate(taken.map(drop));
                Ok(self.aggregator.profile(found, &self.probe))
            }
            Err(ReportError::NoTarget) => Err(format!("process {pid} has ended")),
            Err(ReportError::Failed(e)) => Err(format!("{e:#}")),
        };
        // The receiver may be gone.
        let _ = reply.send(found);
    }

    /// Starts to take a heap snapshot.
    pub(super) fn take_heap(&self, request: HeapRequest) {
        let pid = request.pid;
        if !self.aggregator.spaces().iter().any(|(_, of)| *of == pid) {
            let why = format!("process {pid} has ended, or memprof does not follow it");
            let _ = request.reply.send(Err(why));
            return;
        }
        let guard = Arc::clone(&self.guard);
        let options = SnapshotOptions {
            approach: Approach::Auto,
            max_stop: request.max_stop.unwrap_or(self.freezing.max),
            limit: request.limit,
        };
        let taking = move || {
            priority::restore();
            privileges::reduce(Role::Heap);
            let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
            let measured = heap::measure_with_pages(pid, &options, request.top, &mut guard);
            drop(guard);
            let taken = measured.map(|(heap, pages)| {
                let snapshot = HeapSnapshot {
                    heap,
                    taken: SystemTime::now(),
                    grown_by: None,
                };
                (snapshot, pages)
            });
            // What the search needed was in small blocks, which the allocator keeps.
            allocator::give_back();
            // Whoever reads the reply may take the next one.
            drop(request.turn);
            // The receiver may be gone.
            let _ = request.reply.send(taken.map_err(|e| format!("{e:#}")));
        };
        let thread = thread::Builder::new().name("memprof-heap".into());
        // Without a thread the request is dropped, which its receiver notices.
        let _ = thread.spawn(taking);
    }
}
