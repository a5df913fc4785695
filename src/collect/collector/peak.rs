//! Peaks: the profiles of the moments with the most resident memory, of each process and of all together.
//!
//! The probe reports the peak of a process just before it ends, and [`scan`] makes its profile. The highest of all reports counts, too.

mod own;
mod scan;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Collector, Last, Numbered};
use crate::collect::aggregate::{Scanned, Snapshot, counter_lag};
use crate::probe::event::{ProcessChange, ProcessEvent};
use memprof_profile::{Peak, Profile, Subset, Unobserved};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::residency::{figures, page_size};
use memprof_sys::usage::Usage;
use own::OwnPeaks;
use scan::Waiting;

/// A scan of a running process may count memory that moved meanwhile twice. It counts as a peak only if it is at most this part
/// above the kernel's own highest figure, and what its counters lack.
const EXCESS: u64 = 64;

/// Maximum number of bytes that the three counters of an address space lack.
fn counted_later() -> u64 {
    3 * counter_lag() * page_size()
}

/// A report's figure of a process counts as a new peak of its own only if it is higher than the last one by this part and, in bytes,
/// by `STEP`, like the probe's peaks (`peak.bpf.h`).
const PART: u64 = 128;
const STEP: u64 = 64 << 12;

/// The peaks so far.
#[derive(Default)]
pub(super) struct Peaks {
    /// The peak of all processes together.
    best: Option<Moment>,
    /// The peaks of single processes.
    own: OwnPeaks,
    /// Peaks of which the probe has copied the records, and which are to be scanned; at most one for each address space.
    waiting: Vec<Waiting>,
    /// When the last one was scanned, and for how long.
    scanned: Option<(Instant, Duration)>,
    /// When all processes were last scanned for one of them, and for how long.
    passed: Option<(Instant, Duration)>,
    /// The time that all scans of peaks took.
    pub(super) spent: Duration,
    /// The kernel's highest figure of the only process, in bytes.
    high_water: Option<u64>,
    /// The highest sum of the kernel's figures of several processes, in bytes.
    highest_sum: u64,
    /// The last scans of processes that have dropped all of their memory, each with the moment in ns. Others may have had a peak then.
    ended: VecDeque<(u64, Scanned)>,
}

/// The profile of a moment that may be a peak.
#[derive(Clone)]
struct Moment {
    profile: Numbered,
    rss: u64,
    /// The part of `rss` of which nobody knows the pages.
    gone: u64,
    after: Duration,
    /// The memory of that moment, if frames of its stacks had not arrived when the profile was made.
    unresolved: Option<Arc<Snapshot>>,
}

impl Moment {
    fn new(profile: Numbered, unresolved: Option<Snapshot>) -> Moment {
        let rows = profile.1.not_observed.iter();
        let gone = rows.filter(|row| row.reason == Unobserved::Gone);
        Moment {
            rss: rss_of(&profile.1.total.usage),
            gone: gone.map(|row| rss_of(&row.amounts.usage)).sum(),
            after: profile.1.observed,
            profile,
            unresolved: unresolved.map(Arc::new),
        }
    }

    /// The memory whose pages are known.
    fn shown(&self) -> u64 {
        self.rss - self.gone
    }

    /// The peak, for a profile that shows it or not.
    fn peak(&self, high_water: Option<u64>, is_shown: bool) -> Peak {
        let processes = self.profile.1.target.pids.len();
        Peak {
            is_shown,
            ..Peak::new(self.rss, high_water, processes, self.after)
        }
    }

    /// Gives the profile this peak and this state of the target, under a new number if that changes it.
    fn update(&mut self, peak: Option<Peak>, alive: bool, sequence: &mut u64) -> Numbered {
        let known = &self.profile.1;
        if known.peak != peak || known.target.alive != alive {
            let mut profile = Profile::clone(known);
            profile.peak = peak;
            profile.target.alive = alive;
            *sequence += 1;
            self.profile = (*sequence, Arc::new(profile));
        }
        self.profile.clone()
    }
}

/// Resident memory as in `VmRSS`, in bytes.
fn rss_of(usage: &Usage) -> u64 {
    usage.resident() + usage.file
}

impl Peaks {
    /// The peak of all processes together, for a profile that shows it or not.
    fn peak(&self, is_shown: bool) -> Option<Peak> {
        let best = self.best.as_ref()?;
        let figure = match best.profile.1.target.pids.len() {
            1 => self.high_water,
            _ => Some(self.highest_sum),
        };
        Some(best.peak(figure, is_shown))
    }
}

impl Collector {
    /// Has the probe report the peaks of the followed processes.
    pub(super) fn watch_peaks(&mut self) {
        let floor = self.peaks.own.floor() / page_size();
        self.probe.report_peaks(floor, !self.is_kept());
    }

    /// Forgets the peaks of an earlier target.
    pub(super) fn forget_peaks(&mut self) {
        let forgotten = std::mem::take(&mut self.peaks);
        for waiting in forgotten.waiting {
            self.probe.forget_space(waiting.seen.copy);
        }
    }

    /// Notes the end of a process, and the highest number of its resident pages if that is known.
    pub(super) fn note_end(&mut self, mm: MmId, highest: Option<u64>) {
        let bytes = highest.map(|pages| pages * page_size());
        if let Some(bytes) = bytes {
            if self.aggregator.only_space() == Some(mm) {
                self.note_high_water(bytes);
            }
            self.peaks.own.note_high_water(mm, bytes);
        }
        self.offer_last(mm, None);
        let own = self.peaks.own.get(mm);
        let own = own.map(|own| (own.peak(false), own.moment.profile.1.total));
        self.aggregator.ended_at(mm, bytes, own);
    }

    fn note_high_water(&mut self, bytes: u64) {
        let highest = self.peaks.high_water.unwrap_or(0).max(bytes);
        self.peaks.high_water = Some(highest);
    }

    fn note_sum(&mut self, bytes: u64) {
        self.peaks.highest_sum = self.peaks.highest_sum.max(bytes);
    }

    /// Reads the kernel's highest figure of the only process.
    fn look_at_high_water(&mut self) {
        let pid = self
            .aggregator
            .only_space()
            .and_then(|mm| self.aggregator.pid_of(mm));
        if let Some(status) = pid.and_then(|pid: Pid| figures::status(pid).ok()) {
            self.note_high_water(status.high_water);
        }
    }

    /// Forgets what a child of `fork` had before it executed a program: that was its parent's.
    pub(super) fn forget_peak_before_exec(&mut self, change: &ProcessEvent) {
        if let ProcessChange::Execed { left } = change.change
            && self.aggregator.is_forked(left)
        {
            self.peaks.own.forget(left);
        }
    }

    fn moment(&mut self, profile: Profile, unresolved: Option<Snapshot>) -> Moment {
        self.sequence += 1;
        let moment = Moment::new((self.sequence, Arc::new(profile)), unresolved);
        let (number, rss, gone) = (self.sequence, moment.rss, moment.gone);
        tracing::debug!(number, rss, gone, "may be a peak");
        moment
    }

    /// Gives the pages of peaks their stacks, if frames that had not arrived then have arrived since.
    pub(super) fn resolve_peaks(&mut self) {
        let mut peaks = std::mem::take(&mut self.peaks);
        let all = peaks.best.iter_mut().chain(peaks.own.moments());
        for moment in all {
            let Some(snapshot) = moment.unresolved.take() else {
                continue;
            };
            let now = self
                .aggregator
                .resolve(Arc::unwrap_or_clone(snapshot), &self.probe);
            let mut profile = Profile {
                samples: now.samples,
                not_observed: now.not_observed,
                uncertainties: now.uncertainties,
                modules: now.modules,
                places: now.places,
                processes: now.processes,
                ..Profile::clone(&moment.profile.1)
            };
            // The losses are those of now: events that were pending then have arrived.
            profile.losses = now.losses;
            self.complete(&mut profile);
            self.sequence += 1;
            moment.profile = (self.sequence, Arc::new(profile));
        }
        self.peaks = peaks;
    }

    /// Compares a report with the peaks so far.
    pub(super) fn compare_with_peak(
        &mut self,
        profile: &mut Profile,
        unresolved: Option<Snapshot>,
    ) {
        self.scan_peaks_for_report();
        let single = profile.target.pids.len() == 1;
        match single {
            true => self.look_at_high_water(),
            false => {
                let kernel = &profile.kernel_after;
                self.note_sum(kernel.resident() + kernel.rss_file);
            }
        }
        self.peaks.ended.clear();
        let rss = rss_of(&profile.total.usage);
        let high_water = self.peaks.high_water.filter(|_| single);
        // Nothing moves in a process that has ended.
        let is_possible = !profile.target.alive || !is_excess(rss, high_water);
        if is_possible && self.peaks.best.as_ref().is_none_or(|best| best.rss < rss) {
            self.peaks.best = Some(self.moment(profile.clone(), unresolved));
        }
        profile.peak = self.peaks.peak(false);
        self.compare_each(profile);
    }

    /// Compares the shares of a report with the processes' own peaks so far.
    fn compare_each(&mut self, profile: &mut Profile) {
        let observed = profile.observed;
        let only = (profile.target.pid, rss_of(&profile.total.usage));
        profile.own_peak = None;
        let shares = profile.processes.iter_mut();
        let mut shares: HashMap<Pid, _> = shares.map(|share| (share.pid, share)).collect();
        for (mm, pid, high_water) in self.aggregator.high_waters() {
            let share = shares.remove(&pid);
            let now = match &share {
                Some(share) => rss_of(&share.total.usage),
                None if only.0 == pid => only.1,
                None => continue,
            };
            self.peaks.own.note_high_water(mm, high_water);
            self.offer_last(mm, Some(now));
            let own = self.peaks.own.get(mm).filter(|own| own.moment.rss >= now);
            let peak = own.map_or_else(
                || Peak::new(now, Some(high_water), 1, observed),
                |own| own.peak(false),
            );
            match share {
                Some(share) => share.peak = Some(peak),
                None => profile.own_peak = Some(peak),
            }
        }
    }

    /// Keeps what the last report says of a process if that was a peak of its own: the process has less `now`, in bytes, or has
    /// ended. As long as it has more and more, the newest report has its peak.
    fn offer_last(&mut self, mm: MmId, now: Option<u64>) {
        let (Some(pid), Some(Last { profile: last, .. })) =
            (self.aggregator.pid_of(mm), self.last.as_ref())
        else {
            return;
        };
        let Some((total, _)) = last.1.total_of(&Subset::Process(pid)) else {
            return;
        };
        let rss = rss_of(&total.usage);
        let floor = self.peaks.own.floor();
        let own = self.peaks.own.get(mm).map_or(0, |own| own.moment.shown());
        let is_past = now.is_none_or(|now| now < rss);
        let high_water = self.aggregator.high_water(mm);
        if !is_past || rss <= floor || rss <= own + own / PART + STEP || is_excess(rss, high_water)
        {
            return;
        }
        let moment = match last.1.is_only(&Subset::Process(pid)) {
            true => Moment::new(last.clone(), None),
            false => match last.1.for_process(pid) {
                Some(share) => self.moment(share, None),
                None => return,
            },
        };
        let high_water = high_water.unwrap_or(0);
        self.peaks.own.offer(mm, pid, &moment, high_water);
        self.watch_peaks();
    }

    /// The profile at the peak of all processes together; `None` without a report.
    pub(super) fn peak(&mut self) -> Option<Numbered> {
        while self.scan_next_peak() {}
        if self.aggregator.follows_any() {
            self.look_at_high_water();
        }
        let peak = self.peaks.peak(true);
        let alive = self.aggregator.follows_any();
        let best = self.peaks.best.as_mut()?;
        Some(best.update(peak, alive, &mut self.sequence))
    }

    /// The profile at the peak of a process; `None` if it is not known.
    pub(super) fn peak_of(&mut self, pid: Pid) -> Option<Numbered> {
        while self.scan_next_peak() {}
        let alive = self.aggregator.pids().contains(&pid);
        let last = self.last.as_ref().filter(|_| alive);
        let newest = last.and_then(|last| last.profile.1.for_process(pid));
        let rss = newest.as_ref().map(|newest| rss_of(&newest.total.usage));
        let own = self.peaks.own.of_process(pid);
        match (own, newest) {
            (Some(own), _) if rss.is_none_or(|rss| rss <= own.moment.rss) => {
                let peak = own.peak(true);
                Some(own.moment.update(Some(peak), alive, &mut self.sequence))
            }
            (_, Some(mut profile)) => {
                profile.peak = profile.own_peak.map(|peak| Peak {
                    is_shown: true,
                    ..peak
                });
                self.sequence += 1;
                Some((self.sequence, Arc::new(profile)))
            }
            _ => None,
        }
    }
}

/// Whether a report shows more than a process can have had.
fn is_excess(rss: u64, high_water: Option<u64>) -> bool {
    high_water.is_some_and(|high| rss > high + high / EXCESS + counted_later())
}
