//! Followed processes that the out-of-memory killer kills, each with the last profile that contains it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::{Collector, Numbered};
use crate::probe::event::OomVictim;
use memprof_profile::{OomKill, OomKills, Profile};
use memprof_sys::freeze::now_ns;
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

/// Time after which the kernel takes a victim's memory by force (5.18 "oom_kill.c: futex: delay the OOM reaper to allow time for
/// proper futex cleanup"). A later scan does not show the memory that the victim had, so memprof stops waiting for the victim's
/// end.
const REAPED: Duration = Duration::from_secs(2);
/// Maximum number of victims whose end is awaited.
const MAX_VICTIMS: usize = 64;

/// A process that was killed.
#[derive(Debug)]
pub struct Killed {
    /// The process.
    pub kill: OomKill,
    /// Time of the kill, in ns of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The last profile that contains its memory, or the last one before the kill if none does; `None` if there is no profile.
    pub profile: Option<Numbered>,
}

/// The kills so far.
#[derive(Default)]
pub(super) struct Kills {
    /// Receives the kills, if they are requested.
    to: Option<mpsc::Sender<Killed>>,
    pub(super) seen: OomKills,
    /// Victims whose process has not ended.
    dying: VecDeque<Dying>,
}

/// A process that the killer has chosen.
struct Dying {
    victim: OomVictim,
    comm: String,
    container: Option<Container>,
    killed: SystemTime,
    /// `killed`, as an `Instant`.
    at: Instant,
    /// The last profile at the time when memprof was notified of the kill.
    before: Option<Numbered>,
}

impl Collector {
    /// Sends kills to `to` from now on.
    pub fn tell_of_kills(&mut self, to: mpsc::Sender<Killed>) {
        self.kills.to = Some(to);
    }

    /// Notes a victim. It is reported once it has ended, because its memory may be scanned until then.
    pub(super) fn note_victim(&mut self, victim: &OomVictim) {
        let waits = |dying: &Dying| dying.victim.pid == victim.pid;
        if self.kills.dying.iter().any(waits) {
            return;
        }
        if self.kills.dying.len() == MAX_VICTIMS {
            self.report_first();
        }
        let (comm, container) = self.aggregator.name_and_place(victim.mm);
        let ago = Duration::from_nanos(now_ns().saturating_sub(victim.at));
        let (now, here) = (SystemTime::now(), Instant::now());
        tracing::info!(pid = %victim.pid, comm, ?ago, "chosen by the out-of-memory killer");
        self.kills.dying.push_back(Dying {
            victim: *victim,
            comm,
            container: container.or_else(|| Container::for_process(victim.pid)),
            killed: now.checked_sub(ago).unwrap_or(now),
            at: here.checked_sub(ago).unwrap_or(here),
            before: self.last.as_ref().map(|last| last.profile.clone()),
        });
    }

    /// Reports a victim that has ended, or is no longer followed.
    pub(super) fn report_victim(&mut self, pid: Pid) {
        let mut dying = self.kills.dying.iter();
        if let Some(at) = dying.position(|dying| dying.victim.pid == pid)
            && let Some(dying) = self.kills.dying.remove(at)
        {
            self.report_killed(dying);
        }
    }

    /// Reports victims whose end is overdue.
    pub(super) fn report_overdue(&mut self) {
        while let Some(first) = self.kills.dying.front()
            && first.at.elapsed() > REAPED
        {
            self.report_first();
        }
    }

    /// Reports all victims without waiting any longer.
    pub(super) fn report_all_victims(&mut self) {
        while !self.kills.dying.is_empty() {
            self.report_first();
        }
    }

    fn report_first(&mut self) {
        if let Some(dying) = self.kills.dying.pop_front() {
            self.report_killed(dying);
        }
    }

    fn report_killed(&mut self, dying: Dying) {
        let pid = dying.victim.pid;
        let has_it = |(_, profile): &Numbered| profile.target.pids.contains(&pid);
        let newest = self.last.as_ref().filter(|last| {
            let (_, profile) = &last.profile;
            let reaped = dying.victim.at + REAPED.as_nanos() as u64;
            profile.taken_ns <= reaped && has_it(&last.profile)
        });
        let begun_after = newest.is_some_and(|last| {
            let begun = last.at.checked_sub(last.took);
            begun.is_some_and(|begun| begun >= dying.at)
        });
        let newest = newest.map(|last| last.profile.clone());
        let found = newest.or_else(|| dying.before.clone().filter(has_it));
        let moment = (dying.killed, dying.victim.at);
        let kill = OomKill {
            pid,
            comm: dying.comm,
            container: dying.container,
            killed: dying.killed,
            last: found
                .as_ref()
                .and_then(|(_, p)| p.last_figures(pid, moment, begun_after)),
        };
        self.kills.seen = self.kills.seen.with(kill.clone());
        let profile = found.or(dying.before).map(|(_, profile)| {
            self.sequence += 1;
            let oom_kills = self.kills.seen.clone();
            let profile = Profile {
                oom_kills,
                ..Profile::clone(&profile)
            };
            (self.sequence, Arc::new(profile))
        });
        let killed = Killed {
            kill,
            at_ns: dying.victim.at,
            profile,
        };
        // The kill stays in the list if nothing receives it.
        if let Some(to) = &self.kills.to {
            let _ = to.try_send(killed);
        }
    }
}
