//! The peak: the profile of the moment with the most resident memory.
//!
//! The probe reports the peaks of a single process just before they end. Otherwise, and for several processes together, the highest
//! of all reports counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Collector, Numbered};
use crate::collect::aggregate::{KnownAtPeak, Snapshot};
use crate::probe::event::{PeakSeen, ProcessChange, ProcessEvent};
use memprof_profile::{Peak, Profile};
use memprof_sys::freeze::now_ns;
use memprof_sys::ids::Pid;
use memprof_sys::residency::{figures, page_size};
use memprof_sys::usage::Usage;

/// A scan of a running process may count memory that moved meanwhile twice. It counts as a peak only if it is at most this part
/// above the kernel's own highest figure, and what its counters lack.
const EXCESS: u64 = 64;

/// Maximum number of bytes that the counters of an address space lack: each processor adds to each of three in batches of 32 pages,
/// or of twice as many as there are processors.
fn counted_later() -> u64 {
    let processors = libbpf_rs::num_possible_cpus().unwrap_or(1) as u64;
    3 * processors * (2 * processors).max(32) * page_size()
}

/// Scans of peaks take at most 1/`SHARE` of the time: a process that grows may have hundreds of peaks, one soon after another. Those
/// that are not scanned were lower than a later one.
const SHARE: u32 = 5;

/// The peak so far.
#[derive(Default)]
pub(super) struct Peaks {
    best: Option<Best>,
    /// A higher one, of which the probe has copied the records, and which is to be scanned.
    next: Option<(PeakSeen, KnownAtPeak)>,
    /// When the last one was scanned, and for how long.
    scanned: Option<(Instant, Duration)>,
    /// The kernel's highest figure of the only process, in bytes.
    high_water: Option<u64>,
}

struct Best {
    profile: Numbered,
    rss: u64,
    after: Duration,
    /// The memory of that moment, if frames of its stacks had not arrived when the profile was made.
    unresolved: Option<Snapshot>,
}

/// Resident memory as in `VmRSS`, in bytes.
fn rss_of(usage: &Usage) -> u64 {
    usage.resident() + usage.file
}

impl Peaks {
    /// The peak, for a profile that shows it or not.
    fn peak(&self, is_shown: bool) -> Option<Peak> {
        let best = self.best.as_ref()?;
        Some(Peak {
            rss: best.rss,
            // The kernel updates its figure when memory shrinks. Of several processes, each has its own, at another moment.
            high_water: self
                .high_water
                .filter(|_| best.profile.1.target.pids.len() == 1)
                .map(|bytes| bytes.max(best.rss)),
            after_ms: u64::try_from(best.after.as_millis()).unwrap_or(u64::MAX),
            is_shown,
        })
    }
}

impl Collector {
    /// Has the probe report the peaks of the only followed process.
    pub(super) fn watch_peaks(&mut self) {
        let only = self.aggregator.only_space();
        self.probe.report_peaks(only, !self.is_kept());
    }

    /// Forgets the peak of an earlier target.
    pub(super) fn forget_peak(&mut self) {
        let forgotten = std::mem::take(&mut self.peaks);
        if let Some((next, _)) = forgotten.next {
            self.probe.forget_space(next.copy);
        }
    }

    /// Notes the highest number of resident pages of a process that has ended, and whose memory is kept.
    pub(super) fn ended_at_highest(&mut self, pages: u64) {
        self.note_high_water(pages * page_size());
    }

    fn note_high_water(&mut self, bytes: u64) {
        let highest = self.peaks.high_water.unwrap_or(0).max(bytes);
        self.peaks.high_water = Some(highest);
    }

    /// Reads the kernel's highest figure of the only process.
    fn look_at_high_water(&mut self) {
        let pid = self
            .aggregator
            .only_space()
            .and_then(|mm| self.aggregator.pid_of(mm));
        if let Some(bytes) = pid.and_then(|pid: Pid| figures::high_water(pid).ok()) {
            self.note_high_water(bytes);
        }
    }

    /// Notes that a process is about to drop memory after a peak.
    pub(super) fn note_peak(&mut self, seen: &PeakSeen) {
        let rss = seen.rss() * page_size();
        let best = self.peaks.best.as_ref().map_or(0, |best| best.rss);
        let next = self.peaks.next.as_ref();
        let highest = next
            .map_or(0, |(next, _)| next.rss() * page_size())
            .max(best);
        let is_alone = self.aggregator.only_space() == Some(seen.mm);
        let over = match self.aggregator.known_at_peak(seen.mm) {
            Some(known) if highest < rss && is_alone => {
                self.note_high_water(rss);
                let before = self.peaks.next.replace((seen.clone(), known));
                before.map(|(before, _)| before)
            }
            _ => Some(seen.clone()),
        };
        if let Some(over) = over {
            self.probe.forget_space(over.copy);
        }
    }

    /// Scans the peak that was noted last, unless that is too early.
    pub(super) fn scan_peak_in_time(&mut self) {
        let is_early = |(at, took): (Instant, Duration)| at.elapsed() < took * (SHARE - 1);
        if !self.peaks.scanned.is_some_and(is_early) {
            self.scan_peak();
        }
    }

    /// Scans the peak that was noted last, if it is of an address space that is about to be forgotten.
    pub(super) fn scan_peak_before(&mut self, change: &ProcessEvent) {
        let gone = match change.change {
            ProcessChange::Exited { .. } => Some(change.mm),
            ProcessChange::Execed { left } => Some(left),
            _ => None,
        };
        if self
            .peaks
            .next
            .as_ref()
            .is_some_and(|(next, _)| Some(next.mm) == gone)
        {
            self.scan_peak();
        }
    }

    fn scan_peak(&mut self) {
        let Some((seen, known)) = self.peaks.next.take() else {
            return;
        };
        let begun = Instant::now();
        match self.profile_of_peak(&seen, &known) {
            Ok((profile, unresolved)) => self.set_peak(profile, unresolved),
            Err(e) => {
                self.missed_peaks += 1;
                tracing::debug!("no profile of a peak: {e:#}");
            }
        }
        self.probe.forget_space(seen.copy);
        self.peaks.scanned = Some((Instant::now(), begun.elapsed()));
    }

    fn profile_of_peak(
        &mut self,
        seen: &PeakSeen,
        known: &KnownAtPeak,
    ) -> anyhow::Result<(Profile, Option<Snapshot>)> {
        let scanned = self.aggregator.scan_peak(seen, known, &self.probe)?;
        let snapshot = self.aggregator.snapshot(vec![scanned], &self.probe);
        let snapshot = snapshot.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let unresolved = snapshot.lacks_stacks().then(|| snapshot.clone());
        let mut profile = self.aggregator.resolve(snapshot, &self.probe);
        self.complete(&mut profile);
        let ago = Duration::from_nanos(now_ns().saturating_sub(seen.at));
        profile.taken -= ago;
        profile.taken_ns = seen.at;
        profile.observed = profile.observed.saturating_sub(ago);
        Ok((profile, unresolved))
    }

    /// Gives the pages of the peak their stacks, if frames that had not arrived then have arrived since.
    pub(super) fn resolve_peak(&mut self) {
        let Some(best) = self.peaks.best.as_mut() else {
            return;
        };
        let Some(snapshot) = best.unresolved.take() else {
            return;
        };
        let known = Arc::clone(&best.profile.1);
        let now = self.aggregator.resolve(snapshot, &self.probe);
        let mut profile = Profile {
            samples: now.samples,
            not_observed: now.not_observed,
            uncertainties: now.uncertainties,
            modules: now.modules,
            places: now.places,
            processes: now.processes,
            ..Profile::clone(&known)
        };
        // What was lost is lost, but nothing waits any more.
        profile.losses = now.losses;
        self.complete(&mut profile);
        self.set_peak(profile, None);
    }

    /// Makes a profile the peak.
    fn set_peak(&mut self, profile: Profile, unresolved: Option<Snapshot>) {
        self.sequence += 1;
        tracing::debug!(
            number = self.sequence,
            rss = rss_of(&profile.total.usage),
            "a peak"
        );
        self.peaks.best = Some(Best {
            rss: rss_of(&profile.total.usage),
            after: profile.observed,
            profile: (self.sequence, Arc::new(profile)),
            unresolved,
        });
    }

    /// Compares a report with the peak so far.
    pub(super) fn compare_with_peak(
        &mut self,
        profile: &mut Profile,
        unresolved: Option<Snapshot>,
    ) {
        self.scan_peak();
        let single = profile.target.pids.len() == 1;
        if single {
            self.look_at_high_water();
        }
        let rss = rss_of(&profile.total.usage);
        let high_water = self.peaks.high_water.filter(|_| single);
        // Nothing moves in a process that has ended.
        let is_possible = !profile.target.alive
            || high_water.is_none_or(|high| rss <= high + high / EXCESS + counted_later());
        if is_possible && self.peaks.best.as_ref().is_none_or(|best| best.rss < rss) {
            self.set_peak(profile.clone(), unresolved);
        }
        profile.peak = self.peaks.peak(false);
    }

    /// The profile at the peak; `None` without a report.
    pub(super) fn peak(&mut self) -> Option<Numbered> {
        self.scan_peak();
        if self.aggregator.follows_any() {
            self.look_at_high_water();
        }
        let peak = self.peaks.peak(true);
        let alive = self.aggregator.follows_any();
        let best = self.peaks.best.as_mut()?;
        let known = &best.profile.1;
        if known.peak != peak || known.target.alive != alive {
            let mut profile = Profile::clone(known);
            profile.peak = peak;
            profile.target.alive = alive;
            self.sequence += 1;
            best.profile = (self.sequence, Arc::new(profile));
        }
        Some(best.profile.clone())
    }
}
