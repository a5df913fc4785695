//! Heap snapshots of followed processes. Each is taken by a thread of its own, with fewer privileges than the collector's, because
//! the analysis takes seconds. The thread is started here because threads of the server may not stop processes.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{Collector, Command, SETTLE};
use crate::collect::CollectorHandle;
use crate::collect::aggregate::{ReportError, SampledHeap};
use memprof_heap::{
    self as heap, HeapOptions, HeapPages, HeapSnapshot, Joint, Measured, Moment, Origin,
    SnapshotOptions,
};
use memprof_profile::Profile;
use memprof_sys::freeze::Guard;
use memprof_sys::ids::Pid;
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::process::{self, Selector};
use memprof_sys::{allocator, priority};

/// Maximum time to wait for the collector to look up samples.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request for a heap snapshot.
pub struct HeapRequest {
    /// The process.
    pub pid: Pid,
    /// Whether the process runs or exits.
    pub moment: Moment,
    /// Options for the snapshot.
    pub how: HeapOptions,
    /// Receives the snapshot and the heap's resident pages, or the reason for their absence.
    pub reply: oneshot::Sender<Result<TakenHeap, String>>,
    /// For requests to the collector while the snapshot is taken.
    pub collecting: CollectorHandle,
    /// Released at the end, even if nothing waits for the reply any more.
    pub turn: OwnedMutexGuard<()>,
}

/// A heap snapshot without the parts that need the collector.
pub struct TakenHeap {
    /// The snapshot.
    pub snapshot: HeapSnapshot,
    /// The heap's resident pages.
    pub pages: HeapPages,
    /// The heap joined with samples of allocations, and these samples' stacks.
    pub joint: Option<(Joint, SampledHeap)>,
}

/// A request for the sampled allocations that were live when a process was stopped.
pub struct SamplesRequest {
    /// The process.
    pub pid: Pid,
    /// When it was stopped, in ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Receives the samples; `None` if allocations are not sampled.
    pub reply: SyncSender<Option<SampledHeap>>,
}

/// A request for the stacks that brought in pages of a heap.
pub struct OwnersRequest {
    /// The process.
    pub pid: Pid,
    /// The pages.
    pub pages: HeapPages,
    /// Receives a profile of these pages alone, or the reason for its absence.
    pub reply: oneshot::Sender<Result<Profile, String>>,
}

impl Collector {
    /// Sets the guards that stop processes: `forking` for heap snapshots, `freezing` for reports.
    pub fn stop_by(&mut self, forking: Guard, freezing: Guard) {
        self.guards = [&forking, &freezing]
            .into_iter()
            .filter_map(|guard| guard.pid())
            .collect();
        self.guard = Arc::new(Mutex::new(forking));
        self.freezing.guard = freezing;
    }

    /// Whether a process is a guard, or was started by one. Following it would make the guard stop itself.
    pub(super) fn is_of_guards(&self, pid: Pid) -> bool {
        self.guards.contains(&pid)
            || process::parent(pid).is_some_and(|parent| self.guards.contains(&parent))
    }

    /// Looks up the stacks that brought in these pages.
    pub(super) fn find_owners(&mut self, request: OwnersRequest) {
        let OwnersRequest { pid, pages, reply } = request;
        let found = match self.aggregator.owners(pid, pages, &self.probe) {
            Ok(found) => {
                // Frames of some stacks may be in the ring buffer.
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

    /// Looks up the samples that were live when a process was stopped. Frees have been kept since before.
    pub(super) fn find_samples(&mut self, request: SamplesRequest) {
        let SamplesRequest { pid, at, reply } = request;
        let space = self.aggregator.space_of(pid);
        let space = space.filter(|_| self.samplers.is_listening());
        let found = space.map(|mm| {
            // Earlier events may be in the ring buffer.
            let until = Instant::now() + PATIENCE / 2;
            while Instant::now() < until {
                let taken = self.take_events(SETTLE);
                let all = matches!(taken, Ok(true));
                self.tolerate(taken.map(drop));
                if all {
                    break;
                }
            }
            // Other processes may have run before memprof attached to their samplers.
            let is_ours = matches!(self.selector, Selector::Command(_));
            let preloaded = self.samplers.preloaded().filter(|_| is_ours);
            let origin = Origin {
                from_start: preloaded.is_some(),
                interval: preloaded.map(|library| library.interval),
            };
            self.aggregator.sampled(mm, at, origin, &self.probe)
        });
        // The receiver may be gone.
        let _ = reply.send(found);
    }

    /// Stops keeping frees of samples.
    pub(super) fn forget_freed(&mut self, pid: Pid) {
        if let Some(mm) = self.aggregator.space_of(pid) {
            self.aggregator.samples_mut().forget_freed(mm);
        }
    }

    /// Starts a thread that takes a heap snapshot.
    pub(super) fn take_heap(&mut self, request: HeapRequest) {
        let pid = request.pid;
        let Some(mm) = self.aggregator.space_of(pid) else {
            let why = format!("process {pid} has ended, or memprof does not follow it");
            let _ = request.reply.send(Err(why));
            return;
        };
        if self.samplers.is_listening() {
            self.aggregator.samples_mut().keep_freed(mm);
        }
        let guard = Arc::clone(&self.guard);
        let preloaded = self.samplers.preloaded().cloned();
        let HeapOptions { top, limit, .. } = request.how;
        let options = SnapshotOptions {
            approach: request.how.approach,
            max_stop: request.how.max_stop.unwrap_or(self.freezing.max),
            limit,
        };
        let taking = move || {
            priority::restore();
            privileges::reduce(ThreadRole::Heap);
            let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
            let collecting = request.collecting;
            let mut sampled: Option<SampledHeap> = None;
            let mut samples = |at| {
                let asked = |reply| Command::Samples(SamplesRequest { pid, at, reply });
                sampled = collecting.wait_for(PATIENCE, asked).flatten();
                let stats = preloaded
                    .as_ref()
                    .and_then(|library| library.stats(pid).ok());
                let found = sampled.as_mut()?;
                found.samples.lost += stats.flatten().map_or(0, |stats| stats.dropped);
                Some(found.samples.clone())
            };
            let measured = match request.moment {
                Moment::Running => {
                    heap::measure_with_samples(pid, &options, top, &mut guard, &mut samples)
                }
                Moment::Exiting(registers) => {
                    heap::measure_exiting(pid, registers, top, &mut samples)
                }
            };
            drop(guard);
            // If this cannot be sent, the next snapshot resets the kept frees.
            let _ = collecting.send(Command::HeapTaken(pid));
            let taken = measured.map(
                |Measured {
                     heap, pages, joint, ..
                 }| TakenHeap {
                    snapshot: HeapSnapshot {
                        heap,
                        taken: SystemTime::now(),
                        grown_by: None,
                        zero_by: None,
                        by_stack: None,
                    },
                    pages,
                    joint: joint.zip(sampled),
                },
            );
            // The analysis used small blocks, which the allocator retains.
            allocator::give_back();
            // Released before the reply, because the reply's receiver may request the next snapshot.
            drop(request.turn);
            // The receiver may be gone.
            let _ = request.reply.send(taken.map_err(|e| format!("{e:#}")));
        };
        let thread = thread::Builder::new().name("memprof-heap".into());
        // Without a thread the request is dropped, which its receiver notices.
        let _ = thread.spawn(taking);
    }
}
