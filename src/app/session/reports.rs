//! Makes reports: takes profiles from the collector and adds symbol names.

mod allocations;
mod heap;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};

use crate::collect::collector::{Command, Numbered, Progress};
use crate::collect::{CollectorHandle, ProviderError, Status};
use crate::export::push::{self, PushHandle};
use crate::http::api::{ApiError, BoxFuture, Provider, Recorded};
use crate::probe::{FaultsSeen, Missing, SharedFaultsSeen, SyscallHooks};
use memprof_code::debuginfod::{self, FetchStatus};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_heap::{HeapOptions, HeapSnapshot, Moment};
use memprof_profile::allocations::NamedAllocations;
use memprof_profile::symbol::{Symbol, Symbols};
use memprof_profile::{Frame, FrameKind, FreezeOutcome, MapUsage, Profile, Report};
use memprof_recording::Place;
use memprof_sys::freeze::Freeze;
use memprof_sys::ids::Pid;
use memprof_sys::process::Selector;

/// Minimum time that the target runs between two reports that freeze it: the larger of `RUN` and `RUN_SHARE` times the
/// duration of the freeze.
const RUN: Duration = Duration::from_millis(100);
const RUN_SHARE: u32 = 9;

/// Maximum time to wait for an answer from the collector that needs no scan; then the previous answer is used.
const STATUS_WAIT: Duration = Duration::from_millis(30);

/// Maximum time that a view waits for source lines and inlined functions; then it is shown without, and a later one has them.
const LINES_WAIT: Duration = Duration::from_secs(2);

/// Maximum time that a recorded moment waits for them. There is one each second, and later ones have the lines.
const RECORDED_LINES_WAIT: Duration = Duration::from_millis(300);

/// How long a recording uses the names of one report for the next ones.
const NAMES_HOLD: Duration = Duration::from_secs(60);

/// Makes reports; concurrent requests share one.
pub struct Reports {
    awaited: Option<String>,
    collecting: CollectorHandle,
    progress: watch::Receiver<Progress>,
    symbolizer: Symbolizer,
    newest: Mutex<Option<Newest>>,
    freeze: Freeze,
    /// The target is not frozen again before this time; requests that need a freeze wait for this lock.
    runs_until: Mutex<Instant>,
    /// Downloads from debuginfod servers, if enabled.
    fetching: Option<FetchStatus>,
    /// Pushes to a store, if enabled.
    pushing: Option<PushHandle>,
    /// Where the probe hooks system calls.
    syscall_hooks: Option<SyscallHooks>,
    /// Where the probe sees page faults.
    faults_seen: Option<SharedFaultsSeen>,
    /// The probe's optional programs that could not be attached on this kernel.
    missing: Vec<Missing>,
    /// The recorded moments of the target.
    recorded: Option<Arc<Recorded>>,
    /// The names of the newest report for a recording.
    recorded_names: Mutex<Option<RecordedNames>>,
    /// Held while source lines are looked up for a view.
    lines: Arc<Mutex<()>>,
    /// Whether inlined functions are frames of heap snapshots.
    inlined: bool,
    /// The newest report of the peak.
    peak: Mutex<Option<Newest>>,
    status: Mutex<Option<Status>>,
    tables: Mutex<Option<Vec<MapUsage>>>,
    /// Held by the request that takes a heap snapshot.
    heaps: Arc<tokio::sync::Mutex<()>>,
}

/// The newest report, and when it was requested.
struct Newest {
    report: Arc<Report>,
    asked: Instant,
    /// Number of debug files fetched before the report.
    fetched: u64,
}

/// The names of a report for a recording, and when they were looked up.
struct RecordedNames {
    symbols: Arc<Symbols>,
    asked: Instant,
    /// Number of debug files fetched before.
    fetched: u64,
}

impl RecordedNames {
    /// Whether they are those of a profile, too. Positions in JIT code without a name may have one by now.
    fn are_of(&self, profile: &Profile) -> bool {
        let frames = profile.samples.iter().flat_map(|s| &s.stack.frames);
        let known = |frame: &Frame| match (frame.kind(), self.symbols.get(*frame)) {
            (FrameKind::Code(..), None) => false,
            (FrameKind::Code(id, _), Some(Symbol::Unknown(_))) => {
                !profile.module(id).is_some_and(|module| module.is_jit())
            }
            _ => true,
        };
        self.asked.elapsed() < NAMES_HOLD && frames.into_iter().all(known)
    }
}

impl Reports {
    /// Takes profiles from the collector and names from the symbolizer. `freeze` is the minimum extent of freezing for
    /// every report.
    pub fn new(
        target: &Selector,
        collecting: CollectorHandle,
        progress: watch::Receiver<Progress>,
        symbolizer: Symbolizer,
        freeze: Freeze,
    ) -> Reports {
        Reports {
            awaited: target.awaited(),
            collecting,
            progress,
            symbolizer,
            newest: Mutex::new(None),
            freeze,
            runs_until: Mutex::new(Instant::now()),
            fetching: None,
            pushing: None,
            syscall_hooks: None,
            faults_seen: None,
            missing: Vec::new(),
            recorded: None,
            recorded_names: Mutex::default(),
            lines: Arc::default(),
            inlined: true,
            peak: Mutex::default(),
            status: Mutex::default(),
            tables: Mutex::default(),
            heaps: Arc::default(),
        }
    }

    /// Sets whether inlined functions are frames of the stacks of heap snapshots.
    pub fn with_inlined(self, inlined: bool) -> Reports {
        Reports { inlined, ..self }
    }

    /// Adds the place of the recording that is being made.
    #[must_use]
    pub fn with_moments(self, place: Option<Place>) -> Reports {
        Reports {
            recorded: place.map(|place| Arc::new(Recorded::live(place))),
            ..self
        }
    }

    /// Adds the status of memprof's HTTP clients.
    pub fn with_clients(
        self,
        fetching: Option<FetchStatus>,
        pushing: Option<PushHandle>,
    ) -> Reports {
        Reports {
            fetching,
            pushing,
            ..self
        }
    }

    /// Adds where system calls and page faults are seen, and which programs of the probe are missing.
    pub fn with_hooks(
        self,
        syscalls: SyscallHooks,
        faults: SharedFaultsSeen,
        missing: Vec<Missing>,
    ) -> Reports {
        Reports {
            syscall_hooks: Some(syscalls),
            faults_seen: Some(faults),
            missing,
            ..self
        }
    }

    /// The collector's answer to a command, and true; if the collector is busy, its previous answer, and false. `None`
    /// if the collector has ended.
    async fn ask_at_once<T: Clone>(
        &self,
        last: &Mutex<Option<T>>,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Option<(T, bool)> {
        let mut last = last.lock().await;
        let (reply, answer) = oneshot::channel();
        // If its queue is full, the collector will answer the next request.
        let _ = self.collecting.send(command(reply));
        let fresh = match &*last {
            None => answer.await.ok(),
            Some(_) => {
                let answer = tokio::time::timeout(STATUS_WAIT, answer).await;
                answer.ok().and_then(Result::ok)
            }
        };
        match fresh {
            Some(fresh) => Some((last.insert(fresh).clone(), true)),
            None if self.progress.has_changed().is_err() => None,
            None => Some((last.clone()?, false)),
        }
    }

    /// A report, with the target frozen as `freeze` says if possible. The target is frozen for at most a tenth of the
    /// time, however many clients request reports.
    ///
    /// # Errors
    /// See [`Provider::profile`].
    pub async fn report(&self, freeze: Freeze) -> Result<Arc<Report>, ProviderError> {
        let arrived = Instant::now();
        let freeze = freeze.max(self.freeze);
        if freeze == Freeze::No {
            return self.since(arrived, freeze).await;
        }
        let mut runs_until = self.runs_until.lock().await;
        let known = self.known(&*self.newest.lock().await, arrived, freeze);
        if let Some(report) = known {
            return Ok(report);
        }
        tokio::time::sleep_until((*runs_until).into()).await;
        // Set before the wait: this future may be dropped while the target is frozen.
        *runs_until = Instant::now() + RUN;
        let report = self.since(arrived, freeze).await?;
        let frozen = report.profile.freeze.cost();
        *runs_until = Instant::now() + RUN.max(frozen * RUN_SHARE);
        Ok(report)
    }

    /// The newest report, if it shows the state at some time after `arrived`.
    fn known(
        &self,
        newest: &Option<Newest>,
        arrived: Instant,
        freeze: Freeze,
    ) -> Option<Arc<Report>> {
        let as_asked = |n: &&Newest| match freeze {
            Freeze::No => true,
            Freeze::Each => n.report.profile.freeze != FreezeOutcome::Ran,
            Freeze::Group => !matches!(
                n.report.profile.freeze,
                FreezeOutcome::Ran | FreezeOutcome::InTurn { .. }
            ),
        };
        let newest = newest
            .as_ref()
            .filter(|n| n.asked >= arrived)
            .filter(as_asked);
        newest.map(|n| Arc::clone(&n.report))
    }

    /// A report of the state at some time after `arrived`.
    async fn since(&self, arrived: Instant, freeze: Freeze) -> Result<Arc<Report>, ProviderError> {
        // Locked while a report is made. Requests that arrived before that report was begun share it: it shows
        // the state at some time after they arrived.
        let mut newest = self.newest.lock().await;
        if let Some(report) = self.known(&newest, arrived, freeze) {
            return Ok(report);
        }
        let asked = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.collecting.send(Command::Report { freeze, reply })?;
        let gone = |_| ProviderError::Failed("the collector has ended".into());
        let (sequence, profile) = answer.await.map_err(gone)??;
        // Names that arrive later are added to the last report of an ended target.
        let fetched = self.fetching.as_ref().map_or(0, |f| f.status().fetched);
        let same = |n: &&mut Newest| n.report.sequence == sequence && n.fetched == fetched;
        if let Some(n) = newest.as_mut().filter(same) {
            n.asked = asked;
            return Ok(Arc::clone(&n.report));
        }
        let symbols = self.names(&profile, Detail::Names).await?;
        let report = Arc::new(Report {
            profile,
            symbols,
            sequence,
        });
        *newest = Some(Newest {
            report: Arc::clone(&report),
            asked,
            fetched,
        });
        Ok(report)
    }

    /// A report of the state at the peak so far, of a process or of all together; `None` if there is none.
    ///
    /// # Errors
    /// As for [`Provider::profile`].
    pub async fn at_peak(&self, of: Option<Pid>) -> Result<Option<Arc<Report>>, ProviderError> {
        let mut newest = self.peak.lock().await;
        let asked = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.collecting.send(Command::Peak { of, reply })?;
        let gone = |_| ProviderError::Failed("the collector has ended".into());
        let Some((sequence, profile)) = answer.await.map_err(gone)? else {
            return Ok(None);
        };
        let fetched = self.fetching.as_ref().map_or(0, |f| f.status().fetched);
        let same = |n: &&Newest| n.report.sequence == sequence && n.fetched == fetched;
        if let Some(known) = newest.as_ref().filter(same) {
            return Ok(Some(Arc::clone(&known.report)));
        }
        let report = self.named((sequence, profile)).await?;
        *newest = Some(Newest {
            report: Arc::clone(&report),
            asked,
            fetched,
        });
        Ok(Some(report))
    }

    /// Like [`Reports::named`], with the names of the report before while they are all known: most scans find no new stack.
    ///
    /// # Errors
    /// The symbol lookup fails as a whole.
    pub async fn named_for_recording(
        &self,
        (sequence, profile): Numbered,
    ) -> Result<Arc<Report>, ProviderError> {
        if let Some(report) = Provider::known(self, sequence).await {
            return Ok(report);
        }
        let fetched = self.fetching.as_ref().map_or(0, |f| f.status().fetched);
        let mut last = self.recorded_names.lock().await;
        let known = last.as_ref();
        let known = known.filter(|names| {
            names.fetched == fetched && names.symbols.has_lines() && names.are_of(&profile)
        });
        let symbols = match known {
            Some(names) => Arc::clone(&names.symbols),
            None => {
                let asked = Instant::now();
                let report = self.named((sequence, Arc::clone(&profile))).await?;
                let report = self.with_lines_soon(report, RECORDED_LINES_WAIT).await?;
                let symbols = Arc::clone(&report.symbols);
                *last = Some(RecordedNames {
                    symbols: Arc::clone(&symbols),
                    asked,
                    fetched,
                });
                symbols
            }
        };
        Ok(Arc::new(Report {
            profile,
            symbols,
            sequence,
        }))
    }

    /// A named report from a profile of the collector.
    ///
    /// # Errors
    /// The symbol lookup fails as a whole.
    pub async fn named(&self, (sequence, profile): Numbered) -> Result<Arc<Report>, ProviderError> {
        let symbols = self.names(&profile, Detail::Names).await?;
        Ok(Arc::new(Report {
            profile,
            symbols,
            sequence,
        }))
    }

    /// The same report with source lines and inlined functions, for files with debug information. This takes seconds
    /// for a large program.
    ///
    /// # Errors
    /// The symbol lookup fails as a whole.
    pub async fn with_lines(&self, report: &Report) -> Result<Arc<Report>, ProviderError> {
        let symbols = self.names(&report.profile, Detail::Inlined).await?;
        Ok(Arc::new(Report {
            profile: Arc::clone(&report.profile),
            symbols,
            sequence: report.sequence,
        }))
    }

    /// Like [`Reports::with_lines`], but the report as it is if the lookup takes long or another one is running.
    async fn with_lines_soon(
        &self,
        report: Arc<Report>,
        wait: Duration,
    ) -> Result<Arc<Report>, ProviderError> {
        if report.symbols.has_lines() {
            return Ok(report);
        }
        let Ok(turn) = Arc::clone(&self.lines).try_lock_owned() else {
            return Ok(report);
        };
        let symbols = self.look_up(&report.profile, Detail::Inlined, Some(turn));
        match tokio::time::timeout(wait, symbols).await {
            Ok(symbols) => Ok(Arc::new(Report {
                profile: Arc::clone(&report.profile),
                symbols: symbols?,
                sequence: report.sequence,
            })),
            // The lookup goes on, for a later report.
            Err(_) => Ok(report),
        }
    }

    async fn names(
        &self,
        profile: &Arc<Profile>,
        detail: Detail,
    ) -> Result<Arc<Symbols>, ProviderError> {
        self.look_up(profile, detail, None).await
    }

    /// Looks names up on another thread, which holds `turn` until it is done, even if nobody waits any more.
    async fn look_up(
        &self,
        profile: &Arc<Profile>,
        detail: Detail,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Result<Arc<Symbols>, ProviderError> {
        let (symbolizer, profile) = (self.symbolizer.clone(), Arc::clone(profile));
        let symbols = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut symbols = symbolizer.resolve_with(&frames(&profile), &profile.modules, detail);
            symbols.set_advice(symbolizer.advice(&profile, &symbols));
            symbols
        });
        symbols
            .await
            .map(Arc::new)
            .map_err(|e| ProviderError::Failed(format!("cannot look up names: {e}")))
    }
}

impl Provider for Reports {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(self.report(Freeze::No))
    }

    fn known(&self, number: u64) -> BoxFuture<'_, Option<Arc<Report>>> {
        Box::pin(async move {
            let newest = self.newest.lock().await;
            let known = newest.as_ref().filter(|n| n.report.sequence == number);
            known.map(|n| Arc::clone(&n.report))
        })
    }

    fn frozen(&self, how: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(self.report(how))
    }

    fn peak(&self, of: Option<Pid>) -> BoxFuture<'_, Result<Option<Arc<Report>>, ProviderError>> {
        Box::pin(self.at_peak(of))
    }

    fn heap(
        &self,
        pid: Pid,
        how: HeapOptions,
    ) -> BoxFuture<'_, Result<Arc<HeapSnapshot>, ApiError>> {
        Box::pin(self.take_heap(pid, Moment::Running, how))
    }

    fn allocations(&self) -> BoxFuture<'_, Result<NamedAllocations, ApiError>> {
        Box::pin(self.named_allocations())
    }

    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(self.with_lines_soon(report, LINES_WAIT))
    }

    fn status(&self) -> BoxFuture<'_, Option<Status>> {
        Box::pin(async {
            let (mut status, fresh) = self.ask_at_once(&self.status, Command::Status).await?;
            if let Some(last) = &mut status.last {
                last.current &= fresh;
            }
            Some(status)
        })
    }

    fn tables(&self) -> BoxFuture<'_, Vec<MapUsage>> {
        Box::pin(async {
            let tables = self.ask_at_once(&self.tables, Command::Tables);
            tables.await.map(|(tables, _)| tables).unwrap_or_default()
        })
    }

    fn awaited(&self) -> Option<String> {
        self.awaited.clone()
    }

    fn debuginfod(&self) -> Option<debuginfod::Status> {
        self.fetching.as_ref().map(FetchStatus::status)
    }

    fn pushed(&self) -> Option<push::Status> {
        self.pushing.as_ref().map(PushHandle::status)
    }

    fn recorded(&self) -> Option<Arc<Recorded>> {
        self.recorded.clone()
    }

    fn syscall_hooks(&self) -> Option<SyscallHooks> {
        self.syscall_hooks.clone()
    }

    fn faults_seen(&self) -> FaultsSeen {
        let seen = self.faults_seen.as_ref();
        seen.map(|seen| seen.lock().unwrap_or_else(|e| e.into_inner()).clone())
            .unwrap_or_default()
    }

    fn missing_programs(&self) -> Vec<Missing> {
        self.missing.clone()
    }

    fn pid(&self) -> Option<Pid> {
        match *self.progress.borrow() {
            Progress::Following { pid, .. } | Progress::Ended { pid, .. } => Some(pid),
            Progress::Waiting => None,
        }
    }
}

/// Every distinct code frame of a profile.
fn frames(profile: &Profile) -> Vec<Frame> {
    let distinct: BTreeSet<Frame> = profile
        .samples
        .iter()
        .flat_map(|s| s.stack.frames.iter().copied())
        .collect();
    distinct
        .into_iter()
        .filter(|f| matches!(f.kind(), FrameKind::Code(..)))
        .collect()
}
