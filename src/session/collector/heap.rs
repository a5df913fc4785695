//! Heap snapshots of followed processes. Each is taken by a thread of its own, with fewer privileges than the
//! collector's, because the analysis takes seconds. It is started here because threads of the server may not stop processes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::Collector;
use crate::allocator;
use crate::api::HeapSnapshot;
use crate::event::Pid;
use crate::heap::{self, Approach, SnapshotOptions};
use crate::priority;
use crate::privileges::{self, Role};

/// A request for a heap snapshot.
pub struct HeapRequest {
    /// Of this process.
    pub pid: Pid,
    /// Maximum time for which it is stopped; `None` for that of `--max-freeze`.
    pub max_stop: Option<Duration>,
    /// Number of chunks and of other single things that are listed.
    pub top: usize,
    /// Receives the snapshot, or why there is none.
    pub reply: oneshot::Sender<Result<Arc<HeapSnapshot>, String>>,
    /// Released at the end, also if nobody waits for the reply any more.
    pub turn: OwnedMutexGuard<()>,
}

impl Collector {
    /// Starts to take a heap snapshot.
    pub(super) fn take_heap(&self, request: HeapRequest) {
        let pid = request.pid;
        if !self.aggregator.spaces().iter().any(|(_, of)| *of == pid) {
            let why = format!("process {pid} has ended, or memprof does not follow it");
            let _ = request.reply.send(Err(why));
            return;
        }
        // A child would be made by a program that this thread may not start. The child would be followed like any other,
        // and making one of a large process may last longer than the limit.
        let options = SnapshotOptions {
            approach: Approach::Copy,
            max_stop: request.max_stop.unwrap_or(self.freezing.max),
        };
        let taking = move || {
            priority::restore();
            privileges::reduce(Role::Heap);
            let taken = heap::measure(pid, &options, request.top).map(|heap| {
                let taken = SystemTime::now();
                Arc::new(HeapSnapshot { heap, taken })
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
