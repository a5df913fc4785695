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

use held::Holding;

use super::collection::Collected;
use super::reconcile;
use super::say::say;
use super::sweep::Sweeper;
use super::unwinding::{MappedFiles, Unwinding};
use crate::aggregate::{Aggregator, NoReport};
use crate::api::{Glance, LastScan, ProviderError};
use crate::event::{CodeSeen, Event, Pid, ProcessChange, ProcessEvent};
use crate::freeze::Freeze;
use crate::privileges::{self, Role};
use crate::probe::Probe;
use crate::profile::{Losses, Profile, TableFill};
use crate::target::{self, Cgroup, Selector};

mod held;

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
/// How long processes that run already are taken in, at most, before anything else is done.
const FOLLOW: Duration = Duration::from_secs(10);

/// Bytes that an event takes in the ring buffer, at least.
const EVENT_BYTES: u64 = 48;

/// How often a family is looked through for processes that are not followed yet.
const MOST_LOOKS: usize = 5;
/// Processes whose code is looked at before the ring buffer is emptied.
const LOOKED_AT: usize = 64;

/// A numbered profile.
pub type Numbered = (u64, Arc<Profile>);

/// What the collector is asked for.
pub enum Command {
    /// A profile of the state at this moment, or the last one.
    Report {
        /// Whether to hold the target still for it, where that can be done.
        freeze: Freeze,
        /// Where it goes.
        reply: oneshot::Sender<Result<Numbered, ProviderError>>,
    },
    /// What is known without a scan.
    Glance(oneshot::Sender<Glance>),
    /// How full the probe's tables are.
    Tables(oneshot::Sender<Vec<TableFill>>),
    /// Make the command's last profile. Until the answer comes it is stopped on its way out, or stays a zombie.
    Final(SyncSender<()>),
    /// Build the unwind tables of these files, which a command is about to run. The answer is whether its memory
    /// will still be there when it has ended.
    Prepare(MappedFiles, SyncSender<bool>),
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
    /// The target ended; its last profile stays. It may have ended before anybody saw that it was followed.
    Ended {
        /// The target.
        pid: Pid,
        /// Its name.
        comm: String,
    },
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
    pub(super) aggregator: Aggregator,
    /// `None` where stacks are taken without tables.
    unwinding: Option<Unwinding>,
    target: Option<Pid>,
    last: Option<Last>,
    pub(super) collected: Option<Collected>,
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
    /// How targets are held still.
    pub holding: Holding,
    /// Who waits for a report, and whether of a target that stands still.
    report_wanted: Vec<(Freeze, oneshot::Sender<Result<Numbered, ProviderError>>)>,
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
            aggregator: Aggregator::new(unwinding.is_some()),
            unwinding,
            target: None,
            last: None,
            collected: None,
            waiting: VecDeque::new(),
            sweeper: Sweeper::default(),
            reclaiming: false,
            reconciled: 0,
            failures: 0,
            sequence: 0,
            searched: None,
            refused: BTreeSet::new(),
            holding: Holding::default(),
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
        let mut pids = vec![pid];
        if self.follow_forks {
            pids.extend(target::descendants(pid));
        }
        self.follow_all(&pids)?;
        // Those that were forked before their parents were followed.
        for _ in 0..MOST_LOOKS {
            let known: BTreeSet<Pid> = pids.iter().copied().collect();
            let mut fresh = match self.follow_forks {
                true => target::descendants(pid),
                false => Vec::new(),
            };
            fresh.retain(|pid| !known.contains(pid));
            if fresh.is_empty() {
                break;
            }
            self.probe.follow(&fresh)?;
            self.take_events(FOLLOW)?;
            self.probe.bind(&fresh)?;
            pids.extend(fresh);
        }
        if !self.aggregator.pids().contains(&pid) {
            bail!(
                "cannot follow process {pid}: there is no such process, or it has no memory of its \
                 own (a kernel thread, a zombie). `ps -p {pid}` shows what it is."
            );
        }
        Ok(())
    }

    /// Follows processes that run already; those that are gone are passed over.
    fn follow_all(&mut self, pids: &[Pid]) -> Result<()> {
        if pids.is_empty() {
            return Ok(());
        }
        // Their first stacks are complete where their tables come first.
        let seen = self.look_at_code(pids)?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.prepare_processes(&seen, &mut self.aggregator)?;
        }
        self.probe.follow(pids)?;
        // They are taken in, then their code is bound, then the files are taken in that have no number yet.
        self.take_events(FOLLOW)?;
        self.probe.bind(pids)?;
        self.take_events(FOLLOW).map(drop)
    }

    /// Has the probe look at the code of processes that are not followed; what of it has no table yet.
    fn look_at_code(&mut self, pids: &[Pid]) -> Result<Vec<CodeSeen>> {
        let mut seen = Vec::new();
        for some in pids.chunks(LOOKED_AT) {
            for pid in some {
                self.probe.bind(&[*pid])?;
            }
            for event in self.probe.take_events()? {
                match event {
                    Event::Code(code) if code.mm.is_none() => seen.push(code),
                    // In its turn.
                    other => self.waiting.push_back(other),
                }
            }
        }
        Ok(seen)
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
                        let _ = done.send(self.follow(pid));
                    }
                    Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.answer_reports();
            self.keep_last();
            let collected = self.collect_stacks();
            self.tolerate(collected);
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

    /// Takes in what has happened up to now. Taking in takes time, in which more may happen: until nothing is
    /// left, or for so long. Returns whether nothing is.
    pub(super) fn take_events(&mut self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        let mut seen = Vec::new();
        let mut in_time = true;
        while in_time {
            if self.waiting.is_empty() {
                self.bind_seen(&mut seen)?;
                self.waiting.extend(self.probe.take_events()?);
            }
            let Some(event) = self.waiting.pop_front() else {
                break;
            };
            let applied = self.apply(&event, &mut seen);
            self.tolerate(applied);
            in_time = Instant::now() < until;
        }
        self.bind_seen(&mut seen)?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.update(&mut self.probe);
        }
        Ok(in_time)
    }

    /// Takes in code that the probe could not bind.
    fn bind_seen(&mut self, seen: &mut Vec<CodeSeen>) -> Result<()> {
        match &mut self.unwinding {
            Some(unwinding) if !seen.is_empty() => {
                let seen = std::mem::take(seen);
                unwinding.seen(&seen, &mut self.aggregator, &mut self.probe)
            }
            _ => Ok(()),
        }
    }

    /// Finds out which processes began and ended while there was no room for their events.
    fn reconcile(&mut self) -> Result<()> {
        let lost = self.probe.process_events_lost();
        if lost != self.reconciled {
            for event in reconcile::unheard(&self.probe, &self.aggregator)? {
                self.apply(&event, &mut Vec::new())?;
            }
            self.reconciled = lost;
        }
        Ok(())
    }

    /// Builds the unwind tables of a command that is about to start.
    fn prepare(&mut self, files: &MappedFiles) -> Result<()> {
        self.take_events(SETTLE)?;
        let seen = self.look_at_code(&[Pid(std::process::id())])?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.prepare(files, &seen, &mut self.aggregator)?;
        }
        Ok(())
    }

    /// Applies an event; code that the probe could not bind is kept for [`Collector::bind_seen`].
    fn apply(&mut self, event: &Event, seen: &mut Vec<CodeSeen>) -> Result<()> {
        if let Event::Code(code) = event {
            seen.push(*code);
            return Ok(());
        }
        if let Event::Process(e) = event
            && e.change == ProcessChange::Matched
            && !self.is_wanted(e.pid)
        {
            // Another program with the same first 15 bytes of name.
            self.probe.forget(&[e.pid])?;
            self.probe.set_waiting(true);
            return Ok(());
        }
        if let Event::Process(e) = event
            && let ProcessChange::Exited { page_tables } = e.change
            && self.aggregator.is_kept(e.mm, e.pid)
        {
            self.aggregator.ended_with(e.mm, page_tables);
            // Its memory is still there; what fails leaves the last profile in place.
            let _ = self.scan(Freeze::No);
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
                if self.target.is_none() {
                    self.target = Some(e.pid);
                    self.tell_following(e);
                }
            }
            ProcessChange::Execed { .. } => {
                if self.target == Some(e.pid) {
                    self.tell_following(e);
                    self.keep_command(e);
                }
            }
            ProcessChange::Exited { .. } => {
                if !self.aggregator.follows_any() {
                    self.ended()?;
                }
            }
        }
        Ok(())
    }

    /// Sees to it that the command's memory is still there for a last scan when it has ended. Not where its
    /// children are in that scan: some end when it does, so it is held on its way out.
    fn keep_command(&mut self, e: &ProcessEvent) {
        if matches!(self.selector, Selector::Command(_)) && !self.follow_forks {
            // Where that fails, the command's thread traces it to its end and holds it there (`command.rs`).
            let begin = || privileges::reduce(Role::Keep);
            let _ = self.aggregator.keep(e.mm, begin);
        }
    }

    /// Whether the command's memory will be there when it has ended.
    fn is_kept(&self) -> bool {
        let kept = |(mm, pid)| Some(pid) == self.target && self.aggregator.is_kept(mm, pid);
        self.aggregator.spaces().into_iter().any(kept)
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
        self.progress.send_modify(|progress| {
            if let Progress::Following { comm, .. } = progress {
                let comm = std::mem::take(comm);
                *progress = Progress::Ended { pid, comm };
            }
        });
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
        let inside: BTreeSet<Pid> = inside.into_iter().collect();
        self.refused.retain(|pid| inside.contains(pid));
        let followed: BTreeSet<Pid> = self.aggregator.pids().into_iter().collect();
        let left: Vec<Pid> = followed.difference(&inside).copied().collect();
        if !left.is_empty() {
            self.probe.forget(&left)?;
        }
        for pid in left {
            self.aggregator.forget(pid, &self.probe);
        }
        let fresh: Vec<Pid> = inside
            .difference(&followed)
            .filter(|pid| !self.refused.contains(pid))
            .copied()
            .collect();
        if !fresh.is_empty() {
            self.follow_all(&fresh)?;
            let followed: BTreeSet<Pid> = self.aggregator.pids().into_iter().collect();
            let refused = fresh.into_iter().filter(|pid| !followed.contains(pid));
            self.refused.extend(refused);
        }
        if !self.aggregator.follows_any() {
            self.ended()?;
        }
        Ok(())
    }

    fn answer_reports(&mut self) {
        if self.report_wanted.is_empty() {
            return;
        }
        let freeze = self.report_wanted.iter().map(|(freeze, _)| *freeze).max();
        let freeze = freeze.unwrap_or_default();
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

    fn report(&mut self, freeze: Freeze) -> Result<Numbered, ProviderError> {
        match self.scan(freeze) {
            Ok(profile) => Ok(profile),
            Err(NoReport::NoTarget) => match &self.last {
                Some(last) => Ok(last.profile.clone()),
                None => Err(ProviderError::NoTarget),
            },
            Err(NoReport::Failed(e)) => Err(ProviderError::Failed(format!("{e:#}"))),
        }
    }

    fn scan(&mut self, freeze: Freeze) -> Result<Numbered, NoReport> {
        // A process forked a moment ago belongs to the state that is asked for.
        let mut settled = self.take_events(SETTLE).map_err(NoReport::Failed)?;
        if settled {
            let reconciled = self.reconcile();
            self.tolerate(reconciled);
        }
        let activity = self.probe.activity();
        let start = Instant::now();
        let (tally, hold) = self.tally(freeze)?;
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
            let _ = self.scan(Freeze::No);
        }
    }
}

fn ended_profile(p: &Profile) -> Profile {
    let mut ended = p.clone();
    ended.target.alive = false;
    ended
}
