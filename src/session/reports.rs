//! Reports for whoever asks: a profile from the collector, with its names looked up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use tokio::sync::{Mutex, oneshot, watch};

use super::collector::{Command, Progress};
use crate::api::{BoxFuture, Provider, ProviderError, Report, Status};
use crate::event::Pid;
use crate::freeze::Freeze;
use crate::profile::{Frame, FrameKind, FreezeOutcome, MapUsage, Profile};
use crate::symbol::Symbols;
use crate::symbolize::{Detail, Symbolizer};

/// How long the target runs, at least, between two reports that it is held still for; and how much
/// longer than it stood still.
const RUN: Duration = Duration::from_millis(100);
const RUN_SHARE: u32 = 9;

/// How long the collector may take to say what needs no scan; then what it said last has to do.
const GLANCE: Duration = Duration::from_millis(30);

/// Asks the collector thread for things.
#[derive(Clone, Debug)]
pub struct Collecting {
    commands: SyncSender<Command>,
    wake: Arc<EventFd>,
}

impl Collecting {
    /// A handle to the thread that reads `commands` when `wake` is written to.
    pub fn new(commands: SyncSender<Command>, wake: Arc<EventFd>) -> Collecting {
        Collecting { commands, wake }
    }

    /// Passes a command on.
    ///
    /// # Errors
    /// The collector is gone, or too busy to take it.
    pub fn send(&self, command: Command) -> Result<(), ProviderError> {
        let sent = self.commands.try_send(command);
        let _ = self.wake.write(1);
        sent.map_err(|e| ProviderError::Failed(format!("the collector does not answer: {e}")))
    }

    /// Has the collector do something and waits, at most so long, until it did; its answer.
    pub fn wait_for<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Option<T> {
        let (done, ready) = sync_channel(1);
        self.send(command(done)).ok()?;
        ready.recv_timeout(timeout).ok()
    }
}

/// Gives reports; everyone who asks while one is made shares it.
pub struct Reports {
    collecting: Collecting,
    progress: watch::Receiver<Progress>,
    symbolizer: Symbolizer,
    newest: Mutex<Option<Newest>>,
    freeze: Freeze,
    /// Until when the target is not held still again; whoever wants it waits here.
    runs_until: Mutex<Instant>,
    glance: Mutex<Option<Status>>,
    tables: Mutex<Option<Vec<MapUsage>>>,
}

/// The newest report, and when it was asked for.
struct Newest {
    report: Arc<Report>,
    asked: Instant,
}

impl Reports {
    /// Reports from this collector, with names from this symbolizer, all of them of a target that is held
    /// still as `freeze` says.
    pub fn new(
        collecting: Collecting,
        progress: watch::Receiver<Progress>,
        symbolizer: Symbolizer,
        freeze: Freeze,
    ) -> Reports {
        Reports {
            collecting,
            progress,
            symbolizer,
            newest: Mutex::new(None),
            freeze,
            runs_until: Mutex::new(Instant::now()),
            glance: Mutex::default(),
            tables: Mutex::default(),
        }
    }

    /// What the collector answers to a command, and true; while it is at something else, what it answered
    /// last, and false. `None` if it is gone.
    async fn ask_at_once<T: Clone>(
        &self,
        last: &Mutex<Option<T>>,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Option<(T, bool)> {
        let mut last = last.lock().await;
        let (reply, answer) = oneshot::channel();
        // Too busy to take the question: it will answer the next one.
        let _ = self.collecting.send(command(reply));
        let fresh = match &*last {
            None => answer.await.ok(),
            Some(_) => {
                let answer = tokio::time::timeout(GLANCE, answer).await;
                answer.ok().and_then(Result::ok)
            }
        };
        match fresh {
            Some(fresh) => Some((last.insert(fresh).clone(), true)),
            None if self.progress.has_changed().is_err() => None,
            None => Some((last.clone()?, false)),
        }
    }

    /// A report, of a target that is held still for it as `freeze` says, where that can be done. However
    /// many ask for that, the target stands still for a tenth of the time at most.
    ///
    /// # Errors
    /// As [`Provider::profile`].
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
        // Whoever asks may go away while the target stands still.
        *runs_until = Instant::now() + RUN;
        let report = self.since(arrived, freeze).await?;
        let stood = report.profile.hold.cost();
        *runs_until = Instant::now() + RUN.max(stood * RUN_SHARE);
        Ok(report)
    }

    /// The newest report, if it shows a moment after `arrived`.
    fn known(
        &self,
        newest: &Option<Newest>,
        arrived: Instant,
        freeze: Freeze,
    ) -> Option<Arc<Report>> {
        let held = |n: &&Newest| match freeze {
            Freeze::No => true,
            Freeze::Each => n.report.profile.hold != FreezeOutcome::Ran,
            Freeze::Group => !matches!(
                n.report.profile.hold,
                FreezeOutcome::Ran | FreezeOutcome::InTurn { .. }
            ),
        };
        let newest = newest.as_ref().filter(|n| n.asked >= arrived).filter(held);
        newest.map(|n| Arc::clone(&n.report))
    }

    /// A report of a moment after `arrived`.
    async fn since(&self, arrived: Instant, freeze: Freeze) -> Result<Arc<Report>, ProviderError> {
        // Held while a report is made. Whoever came before that was begun takes it: it shows a
        // moment after their request.
        let mut newest = self.newest.lock().await;
        if let Some(report) = self.known(&newest, arrived, freeze) {
            return Ok(report);
        }
        let asked = Instant::now();
        let (reply, answer) = oneshot::channel();
        self.collecting.send(Command::Report { freeze, reply })?;
        let gone = |_| ProviderError::Failed("the collector has ended".into());
        let (sequence, profile) = answer.await.map_err(gone)??;
        if let Some(n) = newest.as_mut().filter(|n| n.report.sequence == sequence) {
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
        });
        Ok(report)
    }

    /// The same report with source lines and inlined functions, where files have debug information.
    /// That takes its time: seconds for a large program.
    ///
    /// # Errors
    /// When names could not be looked up at all.
    pub async fn with_lines(&self, report: &Report) -> Result<Arc<Report>, ProviderError> {
        let symbols = self.names(&report.profile, Detail::Inlined).await?;
        Ok(Arc::new(Report {
            profile: Arc::clone(&report.profile),
            symbols,
            sequence: report.sequence,
        }))
    }

    async fn names(
        &self,
        profile: &Arc<Profile>,
        detail: Detail,
    ) -> Result<Arc<Symbols>, ProviderError> {
        let (symbolizer, profile) = (self.symbolizer.clone(), Arc::clone(profile));
        let symbols = tokio::task::spawn_blocking(move || {
            symbolizer.resolve_with(&frames(&profile), &profile.modules, detail)
        });
        symbols
            .await
            .map(Arc::new)
            .map_err(|e| ProviderError::Failed(format!("names were not looked up: {e}")))
    }
}

impl Provider for Reports {
    fn profile(&self) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(self.report(Freeze::No))
    }

    fn frozen(&self, how: Freeze) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(self.report(how))
    }

    fn with_lines(&self, report: Arc<Report>) -> BoxFuture<'_, Result<Arc<Report>, ProviderError>> {
        Box::pin(async move { Reports::with_lines(self, &report).await })
    }

    fn glance(&self) -> BoxFuture<'_, Option<Status>> {
        Box::pin(async {
            let (mut glance, fresh) = self.ask_at_once(&self.glance, Command::Status).await?;
            if let Some(last) = &mut glance.last {
                last.current &= fresh;
            }
            Some(glance)
        })
    }

    fn tables(&self) -> BoxFuture<'_, Vec<MapUsage>> {
        Box::pin(async {
            let tables = self.ask_at_once(&self.tables, Command::Tables);
            tables.await.map(|(tables, _)| tables).unwrap_or_default()
        })
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
