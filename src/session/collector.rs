//! The thread that owns the probe: reads events, keeps the target followed, scans on request.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use tokio::sync::oneshot;

use super::reconcile;
use super::say::say;
use super::sweep::Sweeper;
use super::unwinding::Unwinding;
use crate::aggregate::{Aggregator, NoReport};
use crate::api::{Glance, LastScan, ProviderError};
use crate::event::{Event, MmId, Pid, ProcessChange, ProcessEvent};
use crate::freeze::Frozen;
use crate::probe::Probe;
use crate::profile::{Hold, Losses, Profile, TableFill};
use crate::target::{self, Cgroup, Selector};

/// How long events may wait in the ring buffer when there are too few for a wake-up.
const TICK: Duration = Duration::from_millis(100);
/// How often processes are searched by name, beside the probe's own watch for `exec`.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// How often, at most, the target is scanned without being asked, so that a last profile is there
/// when it ends; and the share of time that this may take.
const KEEP_PAUSE: Duration = Duration::from_secs(1);
const KEEP_SHARE: u32 = 100;
/// How long the collector takes events in, gives room in the ledger back or looks for some before it sees
/// whether anybody asks for something; and how long it takes events in, at most, for a report.
const TURN: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(150);

/// Bytes that an event takes in the ring buffer, at least.
const EVENT_BYTES: u64 = 48;

/// A numbered profile.
pub type Numbered = (u64, Arc<Profile>);

/// What the collector is asked for.
pub enum Command {
    /// A profile of the state at this moment, or the last one.
    Report {
        /// Hold the target still for it, where that can be done.
        freeze: bool,
        /// Where it goes.
        reply: oneshot::Sender<Result<Numbered, ProviderError>>,
    },
    /// What is known without a scan.
    Glance(oneshot::Sender<Glance>),
    /// How full the probe's tables are.
    Tables(oneshot::Sender<Vec<TableFill>>),
    /// A profile of the state at this moment; whoever asks holds the target at its end.
    Final(SyncSender<()>),
    /// Build the unwind tables of this process, which waits for them.
    Prepare(Pid, SyncSender<()>),
    /// Follow this process, which will become the command.
    Follow(Pid, SyncSender<Result<()>>),
    /// End.
    Stop,
}

/// What the collector tells of the target's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No target yet.
    Waiting,
    /// Following this process.
    Following {
        /// The target.
        pid: Pid,
        /// Its name.
        comm: String,
    },
    /// The target ended; its last profile stays.
    Ended(Pid),
}

/// State of the collector thread.
pub struct Collector {
    /// The probe.
    pub probe: Probe,
    /// Whom to follow.
    pub selector: Selector,
    /// Follow children too.
    pub follow_forks: bool,
    /// Where progress goes.
    pub progress: tokio::sync::watch::Sender<Progress>,
    aggregator: Aggregator,
    /// `None` where stacks are taken without tables.
    unwinding: Option<Unwinding>,
    target: Option<Pid>,
    last: Option<Last>,
    /// Events taken from the ring buffer, but not in yet.
    waiting: VecDeque<Event>,
    sweeper: Sweeper,
    /// Room in the ledger is still to be given back.
    reclaiming: bool,
    /// Processes' changes that were lost when it was last found out which.
    reconciled: u64,
    /// What failed without ending memprof, since it began.
    failures: u64,
    sequence: u64,
    searched: Option<Instant>,
    /// Processes of the control group without memory of their own: zombies, kernel threads, those in
    /// another's address space.
    refused: BTreeSet<Pid>,
    /// Who waits for a report, and whether of a target that stands still.
    report_wanted: Vec<(bool, oneshot::Sender<Result<Numbered, ProviderError>>)>,
}

/// The newest profile.
struct Last {
    profile: Numbered,
    at: Instant,
    took: Duration,
    activity: u64,
}

impl Collector {
    /// A collector that follows nobody yet.
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
            aggregator: Aggregator::default(),
            unwinding,
            target: None,
            last: None,
            waiting: VecDeque::new(),
            sweeper: Sweeper::default(),
            reclaiming: false,
            reconciled: 0,
            failures: 0,
            sequence: 0,
            searched: None,
            refused: BTreeSet::new(),
            report_wanted: Vec::new(),
        }
    }

    /// Follows the target that runs already, or starts to wait for it.
    ///
    /// # Errors
    /// There is no such process, or several, or it cannot be followed.
    pub fn begin(&mut self) -> Result<()> {
        match self.selector.clone() {
            Selector::Pid(pid) => self.follow(pid)?,
            // The caller names the process that will become the command.
            Selector::Command(_) => {}
            Selector::Cgroup(group) => self.follow_group(&group)?,
            Selector::Comm(name) => {
                self.probe.set_waiting(true);
                self.searched = Some(Instant::now());
                if let Some(found) = target::find(&name, self.follow_forks)? {
                    self.probe.set_waiting(false);
                    self.follow(found.pid)?;
                }
            }
        }
        // It may end before the first tick, and then this is its last profile.
        self.keep_last();
        Ok(())
    }

    /// Follows a process that runs already, and with `--follow-forks` its descendants.
    ///
    /// # Errors
    /// There is no such process, or it cannot be followed.
    pub fn follow(&mut self, pid: Pid) -> Result<()> {
        self.prepare(pid)?;
        self.probe.follow(pid)?;
        if self.follow_forks {
            for child in target::descendants(pid) {
                self.probe.follow(child)?;
            }
        }
        self.take_events(SETTLE)?;
        if !self.aggregator.pids().contains(&pid) {
            bail!(
                "cannot follow process {pid}: there is no such process, or it has no memory of its \
                 own (a kernel thread, a zombie). `ps -p {pid}` shows what it is."
            );
        }
        Ok(())
    }

    /// Runs until told to stop.
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
                    // Whoever asked may be gone.
                    Ok(Command::Glance(reply)) => drop(reply.send(self.glance())),
                    Ok(Command::Tables(reply)) => {
                        drop(reply.send(self.probe.tables()));
                    }
                    Ok(Command::Final(done)) => {
                        // A failure leaves the last profile in place.
                        let _ = self.scan(false);
                        let _ = done.send(());
                    }
                    Ok(Command::Prepare(pid, done)) => {
                        let prepared = self.prepare_now(pid);
                        self.tolerate(prepared);
                        let _ = done.send(());
                    }
                    Ok(Command::Follow(pid, done)) => {
                        let _ = done.send(self.follow(pid));
                    }
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.answer_reports();
            self.keep_last();
            self.reclaiming = !self.probe.reclaim(Instant::now() + TURN);
            self.sweeper.turn(&self.probe, Instant::now() + TURN);
            let searched = self.search();
            self.tolerate(searched);
        }
    }

    /// What fails in the middle of a recording does not end it: it is counted, and said the first time.
    fn tolerate(&mut self, outcome: Result<()>) {
        if let Err(e) = outcome {
            if self.failures == 0 {
                say(&format!("memprof goes on, though it {e:#}"));
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
        let timeout = if busy { Duration::ZERO } else { TICK };
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut fds, timeout);
        if fds[1].any().unwrap_or(false) {
            let _ = wake.read();
        }
    }

    /// Takes in what has happened up to now. Taking in takes time (a new process's mappings are
    /// read), in which more may happen: until nothing is left, or for so long. Returns whether nothing is.
    fn take_events(&mut self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        let mut in_time = true;
        while in_time {
            if self.waiting.is_empty() {
                self.waiting.extend(self.probe.take_events()?);
            }
            let Some(event) = self.waiting.pop_front() else {
                break;
            };
            let applied = self.apply(&event);
            self.tolerate(applied);
            in_time = Instant::now() < until;
        }
        self.update_tables()?;
        Ok(in_time)
    }

    /// Finds out which processes began and ended while there was no room for their events.
    fn reconcile(&mut self) -> Result<()> {
        let lost = self.probe.process_events_lost();
        if lost != self.reconciled {
            for event in reconcile::unheard(&self.probe, &self.aggregator)? {
                self.apply(&event)?;
            }
            self.reconciled = lost;
        }
        Ok(())
    }

    fn prepare_now(&mut self, pid: Pid) -> Result<()> {
        self.take_events(SETTLE)?;
        self.prepare(pid)?;
        self.update_tables()
    }

    fn prepare(&mut self, pid: Pid) -> Result<()> {
        match &mut self.unwinding {
            Some(unwinding) => unwinding.prepare(pid, &mut self.aggregator),
            None => Ok(()),
        }
    }

    fn update_tables(&mut self) -> Result<()> {
        match &mut self.unwinding {
            Some(unwinding) => unwinding.update(&mut self.aggregator, &mut self.probe),
            None => Ok(()),
        }
    }

    fn apply(&mut self, event: &Event) -> Result<()> {
        if let Event::Process(e) = event
            && e.change == ProcessChange::Matched
            && !self.is_wanted(e.pid)
        {
            // Another program with the same first 15 bytes of name.
            self.probe.forget(e.pid)?;
            self.probe.set_waiting(true);
            return Ok(());
        }
        self.aggregator.apply(event, &self.probe);
        if let Event::Process(e) = event {
            self.process_changed(e)?;
        }
        Ok(())
    }

    fn is_wanted(&self, pid: Pid) -> bool {
        match &self.selector {
            Selector::Comm(name) => target::is_named(pid, name),
            _ => true,
        }
    }

    fn process_changed(&mut self, e: &ProcessEvent) -> Result<()> {
        match e.change {
            ProcessChange::Found | ProcessChange::Matched | ProcessChange::Forked { .. } => {
                self.update_tables()?;
                if self.target.is_none() {
                    self.target = Some(e.pid);
                    self.tell_following(e);
                }
            }
            ProcessChange::Execed { left } => {
                self.forget_tables(left);
                self.update_tables()?;
                if self.target == Some(e.pid) {
                    self.tell_following(e);
                }
            }
            ProcessChange::Exited => {
                self.forget_tables(e.mm);
                if self.aggregator.pids().is_empty() {
                    self.ended()?;
                }
            }
        }
        Ok(())
    }

    /// An address space may be gone; another process may still be in it (vfork).
    fn forget_tables(&mut self, mm: MmId) {
        if let Some(unwinding) = self.unwinding.as_mut().filter(|_| !self.aggregator.has(mm)) {
            unwinding.forget(mm);
        }
    }

    fn tell_following(&self, e: &ProcessEvent) {
        let comm = e.comm.clone();
        self.progress
            .send_replace(Progress::Following { pid: e.pid, comm });
    }

    fn ended(&mut self) -> Result<()> {
        let Some(pid) = self.target.take() else {
            return Ok(());
        };
        if let Some(last) = &mut self.last {
            last.profile = (self.sequence + 1, Arc::new(ended_profile(&last.profile.1)));
            self.sequence += 1;
        }
        if matches!(self.selector, Selector::Comm(_)) {
            self.probe.set_waiting(true);
        }
        self.progress.send_replace(Progress::Ended(pid));
        Ok(())
    }

    /// While waiting for a name: a process can take it in other ways than `exec`.
    fn search(&mut self) -> Result<()> {
        let name = match self.selector.clone() {
            Selector::Comm(name) => name,
            Selector::Cgroup(group) => return self.follow_group(&group),
            Selector::Pid(_) | Selector::Command(_) => return Ok(()),
        };
        if self.target.is_some() || self.searched.is_some_and(|at| at.elapsed() < SEARCH_PAUSE) {
            return Ok(());
        }
        self.searched = Some(Instant::now());
        // Several at once: as with one, the first in order is followed; the list was for the start.
        let found = match target::find(&name, self.follow_forks) {
            Ok(found) => found,
            Err(several) => several.candidates.into_iter().next(),
        };
        if let Some(found) = found {
            self.probe.set_waiting(false);
            if self.follow(found.pid).is_err() {
                self.probe.set_waiting(true);
            }
        }
        Ok(())
    }

    /// Follows the processes that came into a control group, no longer those that left it. (Those that
    /// are forked in it are followed by the probe, at once.)
    fn follow_group(&mut self, group: &Cgroup) -> Result<()> {
        if self.searched.is_some_and(|at| at.elapsed() < TICK) {
            return Ok(());
        }
        self.searched = Some(Instant::now());
        // A group that is gone has no processes.
        let inside = group.processes().unwrap_or_default();
        self.refused.retain(|pid| inside.contains(pid));
        let followed = self.aggregator.pids();
        for pid in followed.iter().filter(|pid| !inside.contains(pid)) {
            self.probe.forget(*pid)?;
            if let Some(left) = self.aggregator.forget(*pid, &self.probe) {
                self.forget_tables(left);
            }
        }
        for pid in inside {
            if !followed.contains(&pid) && !self.refused.contains(&pid) && self.follow(pid).is_err()
            {
                self.refused.insert(pid);
            }
        }
        if self.aggregator.pids().is_empty() {
            self.ended()?;
        }
        Ok(())
    }

    fn answer_reports(&mut self) {
        if self.report_wanted.is_empty() {
            return;
        }
        let freeze = self.report_wanted.iter().any(|(freeze, _)| *freeze);
        let answer = self.report(freeze);
        for (_, reply) in self.report_wanted.drain(..) {
            // Whoever asked may be gone.
            let _ = reply.send(answer.clone());
        }
    }

    fn glance(&self) -> Glance {
        let last = self.last.as_ref().map(|last| LastScan {
            sequence: last.profile.0,
            profile: Arc::clone(&last.profile.1),
            took: last.took,
            current: last.activity == self.probe.activity(),
        });
        Glance {
            pids: self.aggregator.pids(),
            last,
        }
    }

    fn report(&mut self, freeze: bool) -> Result<Numbered, ProviderError> {
        match self.scan(freeze) {
            Ok(profile) => Ok(profile),
            Err(NoReport::NoTarget) => match &self.last {
                Some(last) => Ok(last.profile.clone()),
                None => Err(ProviderError::NoTarget),
            },
            Err(NoReport::Failed(e)) => Err(ProviderError::Failed(format!("{e:#}"))),
        }
    }

    fn scan(&mut self, freeze: bool) -> Result<Numbered, NoReport> {
        let frozen = freeze.then(|| Frozen::stop(&self.aggregator.pids()));
        // A process forked a moment ago belongs to the state that is asked for.
        let mut settled = self.take_events(SETTLE).map_err(NoReport::Failed)?;
        if settled {
            let reconciled = self.reconcile();
            self.tolerate(reconciled);
        }
        let activity = self.probe.activity();
        let start = Instant::now();
        let tally = self.aggregator.tally(&self.probe)?;
        let hold = match frozen {
            None => Hold::Ran,
            Some(Ok(frozen)) => Hold::Still(frozen.release()),
            Some(Err(e)) => Hold::Failed(format!("{e:#}")),
        };
        // Stacks that the scan found and whose frames were still on their way.
        settled &= self.take_events(SETTLE).map_err(NoReport::Failed)?;
        let mut profile = self.aggregator.profile(tally, &self.probe);
        profile.hold = hold;
        if !settled {
            let taken = self.waiting.len() as u64 * EVENT_BYTES;
            let behind = taken + self.probe.waiting_bytes();
            profile.losses.add(Losses::BEHIND, behind);
        }
        profile
            .losses
            .add("steps of memprof that failed", self.failures);
        if let Some(unwinding) = &self.unwinding {
            unwinding.losses(&mut profile.losses);
        }
        self.sequence += 1;
        let profile = (self.sequence, Arc::new(profile));
        let at = Instant::now();
        let took = at.duration_since(start);
        self.last = Some(Last {
            profile: profile.clone(),
            at,
            took,
            activity,
        });
        Ok(profile)
    }

    /// Scans a changing target now and then, so that it leaves a profile when it ends.
    fn keep_last(&mut self) {
        if self.target.is_none() {
            return;
        }
        let due = match &self.last {
            None => true,
            Some(last) => {
                let pause = KEEP_PAUSE.max(last.took * KEEP_SHARE);
                last.activity != self.probe.activity() && last.at.elapsed() >= pause
            }
        };
        if due {
            // What fails here fails again, with its reason, when a report is asked for.
            let _ = self.scan(false);
        }
    }
}

fn ended_profile(p: &Profile) -> Profile {
    let mut ended = p.clone();
    ended.target.alive = false;
    ended
}
