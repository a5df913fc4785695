//! Reports: scans on request, and periodic ones so that the target leaves a profile when it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Activity, Collector, Idle, Last, Numbered, SETTLE};
use crate::collect::aggregate::ReportError;
use crate::collect::{LastScan, ProviderError, Status};
use memprof_profile::{CgroupMemory, Losses, Profile};
use memprof_sys::freeze::Freeze;
use memprof_sys::process::Selector;
use memprof_sys::residency::Error as ScanError;
use memprof_sys::target_file::unanswered;

/// How often, at most, a changing target is scanned without a request, so that a last profile exists when it ends.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub(super) pause: Duration,
    /// Periodic scans take at most 1/`share` of the time.
    share: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            pause: Duration::from_secs(1),
            share: 100,
        }
    }
}

impl Pace {
    /// The pace for a target that may be killed at any moment (`--on-oom`).
    pub const CLOSE: Pace = Pace {
        pause: Duration::from_millis(100),
        share: 20,
    };
    /// The pace for a trend, which takes ten reports in a short time, also of a large target.
    pub const STEADY: Pace = Pace {
        pause: Duration::from_secs(1),
        share: 10,
    };
}

/// A page fault is counted when it begins. After this time without activity, most of its pages are present.
const FAULTS_END: Duration = Duration::from_millis(50);
/// A disk or a busy machine may delay the end of a fault, which is not counted. So a scan of a target that has been idle for some
/// time is trusted until the target has been idle for `TRUSTED` times as long. An idle target is therefore scanned more and more
/// rarely.
const TRUSTED: u32 = 4;
/// Minimum size of an event in the ring buffer, in bytes.
const EVENT_BYTES: u64 = 48;

impl Collector {
    pub(super) fn answer_reports(&mut self) {
        if self.report_wanted.is_empty() {
            return;
        }
        let freeze = self.report_wanted.iter().map(|(freeze, _)| *freeze).max();
        let freeze = freeze.unwrap_or_default();
        let answer = self.report(freeze);
        for (_, reply) in self.report_wanted.drain(..) {
            // The receiver may be gone.
            let _ = reply.send(answer.clone());
        }
    }

    pub(super) fn status(&self) -> Status {
        let last = self.last.as_ref().map(|last| LastScan {
            sequence: last.profile.0,
            profile: Arc::clone(&last.profile.1),
            took: last.took,
            current: self.is_current(last),
        });
        Status {
            pids: self.aggregator.pids(),
            last,
        }
    }

    pub(super) fn report(&mut self, freeze: Freeze) -> Result<Numbered, ProviderError> {
        match self.scan(freeze) {
            Ok(profile) => Ok(profile),
            Err(ReportError::NoTarget) => match &self.last {
                Some(last) => Ok(last.profile.clone()),
                None => Err(ProviderError::NoTarget),
            },
            Err(ReportError::Failed(e)) => match &mut self.last {
                Some(last) if ScanError::is_held(&e) => {
                    // Added once: this profile stays the last one until the process can be read.
                    if !last.profile.1.losses.has(Losses::HELD) {
                        let mut older = Profile::clone(&last.profile.1);
                        older.losses.add(Losses::HELD, 1);
                        self.sequence += 1;
                        last.profile = (self.sequence, Arc::new(older));
                        self.newest.send_replace(Some(last.profile.clone()));
                    }
                    Ok(last.profile.clone())
                }
                _ => Err(ProviderError::Failed(format!("{e:#}"))),
            },
        }
    }

    pub(super) fn scan(&mut self, freeze: Freeze) -> Result<Numbered, ReportError> {
        let scanned = self.try_scan(freeze);
        if let Err(why) = &scanned {
            tracing::debug!(?why, "no scan");
        }
        scanned
    }

    fn try_scan(&mut self, freeze: Freeze) -> Result<Numbered, ReportError> {
        // A process forked a moment ago belongs to the requested state.
        let mut settled = self.take_events(SETTLE).map_err(ReportError::Failed)?;
        if settled {
            let reconciled = self.reconcile();
            self.tolerate(reconciled);
        }
        self.probe.look_for_swap();
        let activity = self.look_at_activity();
        let pause = self.activity.changed.elapsed();
        let quiet = pause >= FAULTS_END;
        (self.unscanned, self.older, self.held) = (0, 0, 0);
        let start = Instant::now();
        let (snapshot, outcome) = self.snapshot(freeze)?;
        let scans = self.scans;
        // The scan found stacks whose frames were in the ring buffer.
        settled &= self.take_events(SETTLE).map_err(ReportError::Failed)?;
        // The events included the command's end: its last state was scanned meanwhile, and is newer than this one.
        if let Some(last) = self.last.as_ref().filter(|_| self.scans != scans) {
            return Ok(last.profile.clone());
        }
        let unresolved = (!settled).then(|| snapshot.clone());
        let mut profile = self.aggregator.profile(snapshot, &self.probe);
        profile.freeze = outcome;
        self.complete(&mut profile);
        if let Selector::Cgroup(group) = &self.selector {
            profile.cgroup = Some(Arc::new(CgroupMemory {
                dir: group.dir().to_owned(),
                charged: group.charged(),
            }));
        }
        if !settled {
            let taken = self.waiting.len() as u64 * EVENT_BYTES;
            let behind = taken + self.probe.waiting_bytes();
            profile.losses.add(Losses::BEHIND, behind);
        }
        profile.losses.add(Losses::NOT_SCANNED, self.unscanned);
        profile.losses.add(Losses::OLDER, self.older);
        profile.losses.add(Losses::HELD, self.held);
        self.compare_with_peak(&mut profile, unresolved);
        self.scans += 1;
        self.sequence += 1;
        let profile = (self.sequence, Arc::new(profile));
        let at = Instant::now();
        let took = at.duration_since(start);
        let (number, processes) = (self.sequence, profile.1.target.pids.len());
        tracing::debug!(number, processes, ?freeze, ?took, settled, quiet, "scanned");
        self.newest.send_replace(Some(profile.clone()));
        self.last = Some(Last {
            profile: profile.clone(),
            at,
            took,
            // The profile lacks unread events, and may lack the pages of a fault in progress. Possibly no further activity
            // follows that would cause another scan.
            idle: (settled && quiet).then_some(Idle { activity, pause }),
        });
        Ok(profile)
    }

    /// Adds to a profile what the aggregator does not know.
    pub(super) fn complete(&self, profile: &mut Profile) {
        profile.oom_kills = self.kills.seen.clone();
        profile.losses.add(Losses::UNANSWERED, unanswered());
        let failed = "steps of memprof that failed";
        profile.losses.add(failed, self.failures);
        let missed = "peaks without a profile: their memory could not be scanned";
        profile.losses.add(missed, self.missed_peaks);
        self.samplers.losses(&mut profile.losses);
        self.python_losses(&mut profile.losses);
        if let Some(unwinding) = &self.unwinding {
            unwinding.losses(&mut profile.losses);
        }
    }

    /// Whether the target has not changed since this scan.
    fn is_current(&self, last: &Last) -> bool {
        last.idle.as_ref().is_some_and(|idle| {
            idle.activity == self.probe.activity()
                && self.activity.changed.elapsed() < idle.pause * TRUSTED
        })
    }

    /// The probe's count of activity. Notes when it changes.
    fn look_at_activity(&mut self) -> u64 {
        let count = self.probe.activity();
        if count != self.activity.count {
            self.activity = Activity {
                count,
                changed: Instant::now(),
            };
        }
        count
    }

    /// Scans a changing target periodically, so that it leaves a profile when it ends.
    pub(super) fn keep_last(&mut self) {
        if self.target.is_none() || self.aggregator.only_starts() {
            return;
        }
        self.look_at_activity();
        let due = match &self.last {
            None => true,
            Some(last) => {
                let pause = self.pace.pause.max(last.took * self.pace.share);
                !self.is_current(last) && last.at.elapsed() >= pause
            }
        };
        if due {
            // The failure recurs, with its reason, when a report is requested.
            let _ = self.scan(Freeze::No);
        }
    }
}
