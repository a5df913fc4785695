//! The thread that owns the probe: reads events, keeps the target followed, scans on request.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use tokio::sync::oneshot;

use freezing::Freezing;
pub use heap::{HeapRequest, OwnersRequest, SamplesRequest, TakenHeap};
pub use oom::Killed;
pub use report::Pace;
pub use samplers::SamplerOptions;

use super::collection::Collected;
use super::sweep::Sweeper;
use super::unwinding::{MappedFiles, Unwinding};
use crate::collect::aggregate::Aggregator;
use crate::collect::{ProviderError, Status};
use crate::probe::event::{CodeSeen, Event, ProcessChange};
use crate::probe::{Probe, SeenCalls};
use memprof_profile::allocations::Allocations;
use memprof_profile::{MapUsage, Profile, StackSizes};
use memprof_sys::freeze::{Freeze, Guard, now_ns};
use memprof_sys::ids::Pid;
use memprof_sys::messages;
use memprof_sys::process::Selector;

mod exact;
mod follow;
mod freezing;
mod heap;
mod oom;
mod own_allocators;
mod peak;
mod python_blocks;
mod report;
mod samplers;

/// How long events may wait in the ring buffer if there are too few of them to trigger a wakeup.
const TICK: Duration = Duration::from_millis(100);
/// [`TICK`] while a followed process has JIT code.
const NAMES_TICK: Duration = Duration::from_millis(10);
/// Time limits. `TURN` limits each of taking in events, reclaiming ledger entries and sweeping the ledger, before the collector
/// checks for commands again. `SETTLE` limits taking in events before a report.
const TURN: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(150);
/// A profile and its sequence number.
pub type Numbered = (u64, Arc<Profile>);

/// Requests to the collector.
pub enum Command {
    /// A profile of the current state, or the last one if the target has ended.
    Report {
        /// Whether to freeze the target for the scan, where possible.
        freeze: Freeze,
        /// Receives the profile.
        reply: oneshot::Sender<Result<Numbered, ProviderError>>,
    },
    /// The profile at the peak so far: of a process, or of all together.
    Peak {
        /// The process; `None` for all together.
        of: Option<Pid>,
        /// Receives the profile; `None` if there is none.
        reply: oneshot::Sender<Option<Numbered>>,
    },
    /// The status, without a scan.
    Status(oneshot::Sender<Status>),
    /// Numbers of entries and capacities of the probe's tables.
    Tables(oneshot::Sender<Vec<MapUsage>>),
    /// Take the command's last profile. Until the reply, the command is stopped while exiting, or remains a zombie.
    Final(SyncSender<()>),
    /// Build the unwind tables of these files, which a command is about to run. The reply is whether its memory will be readable
    /// after its end.
    Prepare(MappedFiles, SyncSender<bool>),
    /// Stop keeping the command's memory, because memprof is about to stop. The reply is whether it was kept.
    ReleaseMemory(SyncSender<bool>),
    /// Keep the command's memory again.
    RetainMemory(SyncSender<()>),
    /// Follow this process, which will become the command.
    Follow(Pid, SyncSender<Result<()>>),
    /// Take a heap snapshot, on another thread.
    Heap(HeapRequest),
    /// Look up the stacks that brought in pages of a heap.
    Owners(OwnersRequest),
    /// The individual sampled allocations that are stored.
    Allocations(oneshot::Sender<Allocations>),
    /// Look up the sampled allocations that were live when a process was stopped.
    Samples(SamplesRequest),
    /// Whether memprof is attached to a sampler of a followed process.
    HasSampler(SyncSender<bool>),
    /// Stop keeping frees of samples: the heap snapshot of this process was taken.
    HeapTaken(Pid),
    /// The sizes of the counted allocations.
    Sizes(SyncSender<Result<Vec<StackSizes>>>),
    /// Stop counting every call, and return the numbers of calls.
    StopCounting(SyncSender<Option<SeenCalls>>),
    /// Report processes that the out-of-memory killer has chosen, even if they have not ended.
    ReportVictims(SyncSender<()>),
    /// Detach from samplers, and from the functions of system calls. Until the reply, the kernel may change the samplers'
    /// processes.
    Detach(SyncSender<()>),
    /// End the thread.
    Stop,
}

/// Progress of the target, published by the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No target yet.
    Waiting,
    /// Following this process.
    Following {
        /// The target.
        pid: Pid,
        /// The name of the target.
        comm: String,
    },
    /// The target ended; its last profile stays. `Following` may never have been observed.
    Ended {
        /// The target.
        pid: Pid,
        /// The name of the target.
        comm: String,
    },
}

/// State of the collector thread.
pub struct Collector {
    /// The probe.
    pub probe: Probe,
    /// Which processes to follow.
    pub selector: Selector,
    /// Also follow children.
    pub follow_forks: bool,
    /// Receives progress.
    pub progress: tokio::sync::watch::Sender<Progress>,
    /// Receives the most recent profile, from a periodic scan or from a request.
    pub newest: tokio::sync::watch::Sender<Option<Numbered>>,
    pub(crate) aggregator: Aggregator,
    /// `None` if stacks are walked without unwind tables.
    unwinding: Option<Unwinding>,
    target: Option<Pid>,
    last: Option<Last>,
    activity: Activity,
    pub(super) collected: Option<Collected>,
    /// Events taken from the ring buffer, but not yet applied.
    waiting: VecDeque<Event>,
    sweeper: Sweeper,
    /// Whether the probe has ledger entries to reclaim.
    reclaiming: bool,
    /// Number of lost process events at the last reconciliation.
    reconciled: u64,
    /// Number of processes that the newest report omits because they could not be scanned. `told_unscanned` is set once the reason
    /// was printed for one of them.
    unscanned: u64,
    /// Number of processes with an outdated state in the newest report, because time was up.
    older: u64,
    /// Number of processes with an outdated state in the newest report, because their mmap lock was held.
    held: u64,
    told_unscanned: bool,
    /// Number of failures that did not end memprof.
    failures: u64,
    sequence: u64,
    /// Number of scans that became a profile.
    scans: u64,
    searched: Option<Instant>,
    /// Processes of the control group without memory of their own: zombies, kernel threads, and processes that
    /// share another's address space or are heap snapshots of others.
    refused: BTreeSet<Pid>,
    /// The guards: processes that stop others for memprof.
    guards: Vec<Pid>,
    /// Settings and cost estimates for freezing targets.
    pub freezing: Freezing,
    /// How often the target is scanned without a request.
    pub pace: Pace,
    samplers: samplers::Samplers,
    exact: exact::ExactCalls,
    kills: oom::Kills,
    /// Forks processes for heap snapshots.
    guard: Arc<Mutex<Guard>>,
    peaks: peak::Peaks,
    /// Number of peaks whose profile failed.
    missed_peaks: u64,
    /// Pending report requests, each with its freeze mode.
    report_wanted: Vec<(Freeze, oneshot::Sender<Result<Numbered, ProviderError>>)>,
}

/// The newest profile.
struct Last {
    profile: Numbered,
    at: Instant,
    took: Duration,
    /// `None` if events were left unread, or if the target was active just before.
    idle: Option<Idle>,
}

/// How long the target had been idle when it was scanned.
struct Idle {
    /// The probe's activity count, which did not change meanwhile.
    activity: u64,
    pause: Duration,
}

/// The last observed change of the probe's activity count.
struct Activity {
    count: u64,
    changed: Instant,
}

impl Collector {
    /// Creates a collector that follows no process yet.
    pub fn new(
        probe: Probe,
        selector: Selector,
        follow_forks: bool,
        progress: tokio::sync::watch::Sender<Progress>,
        unwinding: Option<Unwinding>,
    ) -> Collector {
        Collector {
            probe,
            selector,
            follow_forks,
            progress,
            newest: tokio::sync::watch::Sender::default(),
            aggregator: Aggregator::new(unwinding.is_some()),
            unwinding,
            target: None,
            last: None,
            activity: Activity {
                count: 0,
                changed: Instant::now(),
            },
            collected: None,
            waiting: VecDeque::new(),
            sweeper: Sweeper::default(),
            reclaiming: false,
            reconciled: 0,
            unscanned: 0,
            older: 0,
            held: 0,
            told_unscanned: false,
            failures: 0,
            sequence: 0,
            scans: 0,
            searched: None,
            refused: BTreeSet::new(),
            guards: Vec::new(),
            freezing: Freezing::default(),
            samplers: samplers::Samplers::default(),
            pace: Pace::default(),
            exact: exact::ExactCalls::default(),
            kills: oom::Kills::default(),
            guard: Arc::default(),
            peaks: peak::Peaks::default(),
            missed_peaks: 0,
            report_wanted: Vec::new(),
        }
    }

    /// Runs until [`Command::Stop`], or until the command channel is closed.
    pub fn run(&mut self, commands: &Receiver<Command>, wake: &EventFd) {
        loop {
            self.sleep(wake);
            let taken = self.take_events(TURN);
            self.tolerate(taken.map(drop));
            loop {
                match commands.try_recv() {
                    Ok(Command::Report { freeze, reply }) => {
                        self.report_wanted.push((freeze, reply));
                    }
                    Ok(Command::Peak { of, reply }) => {
                        let taken = self.take_events(SETTLE);
                        self.tolerate(taken.map(drop));
                        let _ = reply.send(match of {
                            Some(pid) => self.peak_of(pid),
                            None => self.peak(),
                        });
                    }
                    // The receiver may be gone.
                    Ok(Command::Status(reply)) => drop(reply.send(self.status())),
                    Ok(Command::Tables(reply)) => {
                        drop(reply.send(self.probe.tables()));
                    }
                    Ok(Command::Final(done)) => {
                        let taken = self.take_events(SETTLE);
                        self.tolerate(taken.map(drop));
                        if self.target.is_some() {
                            // A failure leaves the last profile in place.
                            let _ = self.scan(Freeze::No);
                        }
                        let _ = done.send(());
                    }
                    Ok(Command::Prepare(files, done)) => {
                        let prepared = self.prepare(&files);
                        self.tolerate(prepared);
                        let _ = done.send(self.is_kept());
                    }
                    Ok(Command::Follow(pid, done)) => {
                        let followed = self.follow(pid);
                        self.aggregator.starts_as(pid);
                        let _ = done.send(followed);
                    }
                    Ok(Command::Heap(request)) => self.take_heap(request),
                    Ok(Command::Owners(request)) => self.find_owners(request),
                    Ok(Command::Allocations(reply)) => {
                        let taken = self.take_events(SETTLE);
                        self.tolerate(taken.map(drop));
                        let _ = reply.send(self.aggregator.allocations(now_ns()));
                    }
                    Ok(Command::Samples(request)) => self.find_samples(request),
                    Ok(Command::HasSampler(reply)) => {
                        let _ = reply.send(self.samplers.are_found());
                    }
                    Ok(Command::HeapTaken(pid)) => self.forget_freed(pid),
                    Ok(Command::Sizes(reply)) => {
                        let _ = reply.send(self.aggregator.sizes(&self.probe));
                    }
                    Ok(Command::StopCounting(done)) => {
                        let _ = done.send(self.stop_counting());
                    }
                    Ok(Command::ReportVictims(done)) => {
                        let taken = self.take_events(SETTLE);
                        self.tolerate(taken.map(drop));
                        self.report_all_victims();
                        let _ = done.send(());
                    }
                    Ok(Command::ReleaseMemory(done)) => {
                        let was_kept = self.is_kept();
                        self.aggregator.let_go();
                        let _ = done.send(was_kept);
                    }
                    Ok(Command::RetainMemory(done)) => {
                        self.keep_again();
                        let _ = done.send(());
                    }
                    Ok(Command::Detach(done)) => {
                        self.stop_listening();
                        self.probe.detach_from_functions();
                        let _ = done.send(());
                    }
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.answer_reports();
            self.keep_last();
            self.restart_spinning_keeper();
            self.report_overdue();
            let collected = self.collect_stacks();
            self.tolerate(collected);
            self.reclaiming = !self.probe.reclaim(Instant::now() + TURN);
            self.sweeper.turn(&self.probe, Instant::now() + TURN);
            let searched = self.search();
            self.tolerate(searched);
        }
    }

    /// Counts a failure, which does not end a recording, and prints the first one.
    fn tolerate(&mut self, outcome: Result<()>) {
        if let Err(e) = outcome {
            tracing::warn!("{e:#}");
            if self.failures == 0 {
                messages::print(&format!("memprof continues despite an error: {e:#}"));
            }
            self.failures += 1;
        }
    }

    /// Waits for the ring buffer, for a command, or for the next tick.
    fn sleep(&self, wake: &EventFd) {
        // SAFETY: the ring buffer's descriptor lives as long as the probe, which `self` holds.
        let ring = unsafe { BorrowedFd::borrow_raw(self.probe.ring_fd()) };
        let mut fds = [
            PollFd::new(ring, PollFlags::POLLIN),
            PollFd::new(wake.as_fd(), PollFlags::POLLIN),
        ];
        let busy = self.reclaiming || self.sweeper.is_busy() || !self.waiting.is_empty();
        let timeout = match busy {
            true => Duration::ZERO,
            // Names of JIT code are read as they are written.
            false if self.aggregator.has_runtime_code() => NAMES_TICK,
            false => TICK.min(self.pace.pause / 2),
        };
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut fds, timeout);
        if fds[1].any().unwrap_or(false) {
            let _ = wake.read();
        }
    }

    /// Takes in pending events until none is left or `limit` has passed, without the time for scans of processes that end; more may
    /// arrive meanwhile. Returns whether none is left.
    pub(super) fn take_events(&mut self, limit: Duration) -> Result<bool> {
        let (until, spent) = (Instant::now() + limit, self.peaks.spent);
        let mut seen = Vec::new();
        let mut in_time = true;
        while in_time {
            if self.waiting.is_empty() {
                self.bind_seen(&mut seen)?;
                self.probe.bind_left()?;
                self.waiting.extend(self.probe.take_events()?);
            }
            let Some(event) = self.waiting.pop_front() else {
                break;
            };
            let applied = self.apply(&event, &mut seen);
            self.tolerate(applied);
            in_time = Instant::now() < until + self.peaks.spent.saturating_sub(spent);
        }
        self.bind_seen(&mut seen)?;
        if self.probe.sees_runtime_code() {
            let seen = self.probe.see_names_written();
            self.tolerate(seen);
        }
        self.aggregator.read_code_names(&mut self.probe);
        self.look_for_samplers();
        self.look_for_allocators();
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.bind_moved(&mut self.aggregator, &mut self.probe)?;
            let aggregator = &self.aggregator;
            unwinding.update(|| aggregator.pids(), &mut self.probe)?;
        }
        if in_time {
            self.scan_peaks_in_time();
            self.resolve_peaks();
        }
        Ok(in_time)
    }

    /// Registers and binds code that the probe could not bind.
    fn bind_seen(&mut self, seen: &mut Vec<CodeSeen>) -> Result<()> {
        match &mut self.unwinding {
            Some(unwinding) if !seen.is_empty() => {
                let seen = std::mem::take(seen);
                unwinding.seen(&seen, &mut self.aggregator, &mut self.probe)
            }
            _ => Ok(()),
        }
    }

    /// Builds the unwind tables of a command that is about to start.
    fn prepare(&mut self, files: &MappedFiles) -> Result<()> {
        self.take_events(SETTLE)?;
        let seen = self.look_at_code(&[Pid(std::process::id())])?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.prepare(files, &seen, &mut self.aggregator)?;
            unwinding.published(&mut self.probe);
        }
        self.count_calls_of_command(files.paths());
        Ok(())
    }

    /// Applies an event; collects code that the probe could not bind for [`Collector::bind_seen`].
    fn apply(&mut self, event: &Event, seen: &mut Vec<CodeSeen>) -> Result<()> {
        // Handled before the aggregator, which forgets a process that has ended.
        if let Event::Process(e) = event {
            self.scan_peak_before(e);
            self.forget_peak_before_exec(e);
        }
        match event {
            Event::Code(code) => {
                seen.push(*code);
                return Ok(());
            }
            Event::Process(e) => match e.change {
                ProcessChange::Matched if !self.is_wanted(e.pid) => {
                    // Another program whose name has the same first 15 bytes.
                    self.probe.forget(&[e.pid])?;
                    self.probe.set_waiting(true);
                    return Ok(());
                }
                ProcessChange::Exited {
                    has_memory,
                    page_tables,
                    highest_rss,
                } => {
                    let is_kept = self.aggregator.is_kept(e.mm, e.pid);
                    self.note_end(e.mm, (has_memory || is_kept).then_some(highest_rss));
                    if is_kept {
                        self.aggregator.ended_with(e.mm, page_tables);
                        // The process's memory is kept. If the scan fails, the last profile stays.
                        let _ = self.scan(Freeze::No);
                    }
                    // After the scan, which may be the last profile that contains the victim.
                    self.report_victim(e.pid);
                }
                _ => {}
            },
            Event::OomKill(victim) => self.note_victim(victim),
            Event::Peak(seen) => self.note_peak(seen),
            _ => {}
        }
        self.aggregator.apply(event, &self.probe);
        if let Some(mm) = event.maps_code_in() {
            self.samplers.note_code(mm);
            self.exact.note_code(mm);
        }
        match event {
            Event::Mark(mark) => self.pass_on(mark),
            Event::Process(e) => {
                let changed = self.process_changed(e);
                self.watch_peaks();
                changed?;
            }
            _ => {}
        }
        Ok(())
    }
}
