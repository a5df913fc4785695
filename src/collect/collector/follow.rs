//! Following processes: running processes, new processes, and the end of the last one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Collector, Progress, TICK};
use crate::collect::reconcile;
use crate::probe::event::{CodeSeen, Event, ProcessChange, ProcessEvent};
use memprof_profile::Profile;
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::privileges::{self, ThreadRole};
use memprof_sys::proc_dir;
use memprof_sys::process::{self, Presence, Selector};

/// How often processes are searched by name, in addition to the probe's `exec` hook.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for taking in the events of processes that are already running.
const FOLLOW: Duration = Duration::from_secs(10);

/// Maximum number of searches for descendants that are not followed yet.
const MAX_LOOKS: usize = 5;
/// The reason for page-fault events on all processors where events on threads would suffice otherwise.
const AWAITED: &str = "memprof waits, or has waited, for a process with a name";
/// Number of processes whose code the probe reports before the ring buffer is drained.
const LOOKED_AT: usize = 64;

impl Collector {
    /// Follows the target if it is already running; otherwise waits for it.
    ///
    /// # Errors
    /// There is no such process, there are several, or the process cannot be followed.
    pub fn begin(&mut self) -> Result<()> {
        match self.selector.clone() {
            Selector::Pid(pid) => self.follow(pid)?,
            // The caller passes the process that will become the command.
            Selector::Command(_) => {}
            Selector::Cgroup(_) | Selector::All => {
                self.probe
                    .see_all_faults("more than one process is followed")?;
                self.follow_members()?;
            }
            Selector::Comm(name) => {
                if process::find(&name, self.follow_forks)?.is_none() {
                    self.probe.see_all_faults(AWAITED)?;
                }
                self.probe.set_waiting(true);
                self.searched = Some(Instant::now());
                if let Some(found) = process::find(&name, self.follow_forks)? {
                    self.probe.set_waiting(false);
                    self.follow(found.pid)?;
                }
            }
        }
        // The target may end before the first tick; this is then its last profile.
        self.keep_last();
        Ok(())
    }

    /// Follows a running process and, with `--follow-forks`, its descendants.
    ///
    /// # Errors
    /// There is no such process, or the process cannot be followed.
    pub fn follow(&mut self, pid: Pid) -> Result<()> {
        let mut pids = vec![pid];
        if self.follow_forks {
            pids.extend(process::descendants(pid));
        }
        self.follow_all(&pids)?;
        // Covers processes that were forked before their parents were followed.
        for _ in 0..MAX_LOOKS {
            let known: BTreeSet<Pid> = pids.iter().copied().collect();
            let mut fresh = match self.follow_forks {
                true => process::descendants(pid),
                false => Vec::new(),
            };
            fresh.retain(|pid| !known.contains(pid));
            if fresh.is_empty() {
                break;
            }
            self.probe.see_faults_of(&fresh)?;
            self.probe.follow(&fresh)?;
            self.take_events(FOLLOW)?;
            self.probe.bind(&fresh)?;
            pids.extend(fresh);
        }
        if !self.aggregator.pids().contains(&pid) {
            let why = Presence::look_up(pid).refusal(pid);
            bail!(
                "cannot follow process {pid}: {}",
                why.as_deref().unwrap_or(
                    "it shares another process's memory (vfork), or it has just executed a program"
                )
            );
        }
        Ok(())
    }

    /// Follows running processes; skips processes that are gone.
    pub(super) fn follow_all(&mut self, pids: &[Pid]) -> Result<()> {
        if pids.is_empty() {
            return Ok(());
        }
        // Tables first, so that the processes' first stacks are complete. For a command, whose process is still a fork of memprof,
        // these are the tables of the libraries that both share.
        let seen = self.look_at_code(pids)?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.prepare_processes(&seen, &mut self.aggregator)?;
            unwinding.published(&mut self.probe);
        }
        self.probe.see_faults_of(pids)?;
        self.probe.follow(pids)?;
        // Apply the processes' events, then bind their code, then register the files that have no number yet.
        self.take_events(FOLLOW)?;
        self.probe.bind(pids)?;
        self.take_events(FOLLOW).map(drop)
    }

    /// Makes the probe report the code of processes that are not followed. Returns the code that has no table yet.
    pub(super) fn look_at_code(&mut self, pids: &[Pid]) -> Result<Vec<CodeSeen>> {
        let mut seen = Vec::new();
        for some in pids.chunks(LOOKED_AT) {
            for pid in some {
                self.probe.bind(&[*pid])?;
            }
            for event in self.probe.take_events()? {
                match event {
                    Event::Code(code) if code.mm.is_none() => seen.push(code),
                    // Applied later, in order.
                    other => self.waiting.push_back(other),
                }
            }
        }
        Ok(seen)
    }

    /// Finds the processes whose start or end was lost because the ring buffer was full.
    pub(super) fn reconcile(&mut self) -> Result<()> {
        let lost = self.probe.process_events_lost();
        if lost != self.reconciled {
            let unheard = reconcile::unheard(&self.probe, &self.aggregator)?;
            // Set first: applying the end of a command scans it, and the scan calls this function again.
            self.reconciled = lost;
            for event in unheard {
                self.apply(&event, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    pub(super) fn is_wanted(&self, pid: Pid) -> bool {
        match &self.selector {
            Selector::Comm(name) => process::is_named(pid, name),
            _ => true,
        }
    }

    pub(super) fn process_changed(&mut self, e: &ProcessEvent) -> Result<()> {
        match e.change {
            ProcessChange::Found | ProcessChange::Matched | ProcessChange::Forked { .. } => {
                if self.target.is_none() {
                    self.forget_peaks();
                    self.target = Some(e.pid);
                    self.tell_following(e);
                }
            }
            ProcessChange::Execed { left } => {
                self.probe.see_faults_after_exec(e.pid)?;
                if self.aggregator.is_starting(left) {
                    // The last profile is that of memprof's own process, not of the command.
                    self.last = None;
                    self.forget_peaks();
                }
                if self.target == Some(e.pid) {
                    self.tell_following(e);
                    self.keep_command(e.mm);
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

    /// Keeps the command's memory for a last scan after its end. Does nothing if children are also scanned: some of them end with
    /// the command, so the command is stopped while it exits.
    pub(super) fn keep_command(&mut self, mm: MmId) {
        if matches!(self.selector, Selector::Command(_)) && !self.follow_forks {
            // If this fails, the command's thread traces it to its end and stops it while it exits
            // (`command.rs`).
            let begin = || privileges::reduce(ThreadRole::Keep);
            let _ = self.aggregator.keep(mm, begin);
        }
    }

    /// Replaces the thread that keeps the command's memory if it takes processor time, because it would continue to do so.
    pub(super) fn restart_spinning_keeper(&mut self) {
        if self.aggregator.keeping_spins() {
            self.keep_again();
        }
    }

    /// Starts keeping the command's memory again.
    pub(super) fn keep_again(&mut self) {
        let mut spaces = self.aggregator.spaces().into_iter();
        if let Some((mm, _)) = spaces.find(|(_, pid)| Some(*pid) == self.target) {
            self.keep_command(mm);
        }
    }

    /// Whether the command's memory will be readable after its end.
    pub(super) fn is_kept(&self) -> bool {
        let kept = |(mm, pid)| Some(pid) == self.target && self.aggregator.is_kept(mm, pid);
        self.aggregator.spaces().into_iter().any(kept)
    }

    pub(super) fn tell_following(&self, e: &ProcessEvent) {
        let comm = e.comm.clone();
        tracing::info!(pid = %e.pid, comm, "following");
        self.progress
            .send_replace(Progress::Following { pid: e.pid, comm });
    }

    pub(super) fn ended(&mut self) -> Result<()> {
        let Some(pid) = self.target.take() else {
            return Ok(());
        };
        tracing::info!(%pid, "ended");
        self.probe.see_no_faults();
        if let Some(last) = &mut self.last {
            let mut ended = Profile::clone(&last.profile.1);
            ended.target.alive = false;
            ended.oom_kills = self.kills.seen.clone();
            last.profile = (self.sequence + 1, Arc::new(ended));
            self.newest.send_replace(Some(last.profile.clone()));
            self.sequence += 1;
        }
        if matches!(self.selector, Selector::Comm(_)) {
            self.probe.see_all_faults(AWAITED)?;
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

    /// Searches for the target while waiting: a process can take the name without `exec`.
    pub(super) fn search(&mut self) -> Result<()> {
        let name = match self.selector.clone() {
            Selector::Comm(name) => name,
            Selector::Cgroup(_) | Selector::All => return self.follow_members(),
            Selector::Pid(_) | Selector::Command(_) => return Ok(()),
        };
        if self.target.is_some() || self.searched.is_some_and(|at| at.elapsed() < SEARCH_PAUSE) {
            return Ok(());
        }
        self.searched = Some(Instant::now());
        // If several match, follow the first one: the list of candidates is only for the start.
        let found = match process::find(&name, self.follow_forks) {
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

    /// Follows processes that entered the wanted group, and stops following processes that left it. The probe itself follows
    /// processes forked in the group, at once.
    fn follow_members(&mut self) -> Result<()> {
        let pause = match self.selector {
            // Only processes started by kernel threads, and processes that memprof could not follow at first, arrive without a
            // fork.
            Selector::All => SEARCH_PAUSE,
            _ => TICK,
        };
        if self.searched.is_some_and(|at| at.elapsed() < pause) {
            return Ok(());
        }
        self.searched = Some(Instant::now());
        let inside = self.selector.members().unwrap_or_default();
        let inside: BTreeSet<Pid> = inside.into_iter().collect();
        // A refused process that is alive was between two programs, or has the reused id of an ended process. It is tried again.
        self.refused
            .retain(|pid| inside.contains(pid) && !proc_dir::lives(*pid));
        let followed: BTreeSet<Pid> = self.aggregator.pids().into_iter().collect();
        let left: Vec<Pid> = followed.difference(&inside).copied().collect();
        if !left.is_empty() {
            self.probe.forget(&left)?;
        }
        for pid in left {
            self.report_victim(pid);
            self.aggregator.forget(pid, &self.probe);
        }
        let fresh: Vec<Pid> = inside
            .difference(&followed)
            .filter(|pid| !self.refused.contains(pid) && !self.is_of_guards(**pid))
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
}
