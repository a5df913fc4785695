//! Scans of processes at their peaks, which the probe reports.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{EXCESS, Moment, PART, Peaks, counted_later};
use crate::collect::aggregate::{KnownAtPeak, ReportError, Snapshot};
use crate::collect::collector::Collector;
use crate::probe::event::{PeakSeen, ProcessChange, ProcessEvent};
use memprof_profile::Losses;
use memprof_sys::freeze::now_ns;
use memprof_sys::residency::page_size;

/// Scans of peaks take at most 1/`SHARE` of the time: a process that grows may have hundreds of peaks, one soon after another. Those
/// that are not scanned were lower than a later one.
const SHARE: u32 = 5;

/// Scans of all processes for the peak of one of them take at most 1/`PASSES` of the time, unless their sum is higher than the last
/// one by 1/`MUCH`: in a build, the sum has a new peak every few milliseconds.
const PASSES: u32 = 10;
const MUCH: u64 = 16;

/// Time after which a report does not wait for the scan of one more peak: each of them may scan all processes.
const REPORT: Duration = Duration::from_millis(300);

/// Maximum number of peaks that wait for their scan. The probe holds a copy of the records of each.
const MAX_WAITING: usize = 32;

/// How long the last scan of a process counts after its end, in ns, and the maximum number of these scans.
const ENDED_NS: u64 = 100_000_000;
const MAX_ENDED: usize = 16;

/// A peak that is to be scanned.
pub(super) struct Waiting {
    pub seen: PeakSeen,
    known: KnownAtPeak,
    /// Whether the process was the only one.
    is_alone: bool,
}

impl Waiting {
    fn rss(&self) -> u64 {
        self.seen.rss() * page_size()
    }

    /// The memory of the other processes, in bytes.
    fn others(&self) -> u64 {
        self.seen.others * page_size()
    }
}

/// Whether another scan now would take more than 1/`share` of the time since the last one, which ended at the moment given and took that
/// long.
fn takes_more_than(last: Option<(Instant, Duration)>, share: u32) -> bool {
    last.is_some_and(|(at, took)| at.elapsed() < took * (share - 1))
}

impl Peaks {
    /// Whether all processes together may have had more at this peak than at any before.
    fn may_be_best(&self, waiting: &Waiting) -> bool {
        let best = self.best.as_ref().map_or(0, |best| best.rss);
        let part = match takes_more_than(self.passed, PASSES) {
            true => MUCH,
            false => PART,
        };
        waiting.rss() + waiting.others() > best + best / part
    }

    /// Puts a peak in the list of those to be scanned. Returns the one that leaves the list for it: the lower one of the same process,
    /// or the lowest of all if there are too many.
    fn wait_for_scan(&mut self, waiting: Waiting) -> Option<Waiting> {
        let mut all = self.waiting.iter_mut();
        if let Some(same) = all.find(|other| other.seen.mm == waiting.seen.mm) {
            return Some(match same.rss() >= waiting.rss() {
                true => waiting,
                false => std::mem::replace(same, waiting),
            });
        }
        self.waiting.push(waiting);
        let all = self.waiting.iter().enumerate();
        let least = all.min_by_key(|(_, waiting)| waiting.rss());
        let least = least.filter(|_| self.waiting.len() > MAX_WAITING);
        let least = least.map(|(at, _)| at);
        least.map(|at| self.waiting.swap_remove(at))
    }
}

impl Collector {
    /// Notes that a process is about to drop memory after a peak.
    pub(in crate::collect::collector) fn note_peak(&mut self, seen: &PeakSeen) {
        let unneeded = match self.as_waiting(seen) {
            Some(waiting) => {
                let left = self.peaks.wait_for_scan(waiting);
                let mut still = self.peaks.waiting.iter().map(|waiting| waiting.seen.mm);
                let is_missed = |left: &Waiting| !still.any(|mm| mm == left.seen.mm);
                self.missed_peaks += u64::from(left.as_ref().is_some_and(is_missed));
                left.map(|left| left.seen.copy)
            }
            None => Some(seen.copy),
        };
        if let Some(copy) = unneeded {
            self.probe.forget_space(copy);
        }
    }

    /// A peak, to be scanned; `None` if a higher one of the process is known.
    fn as_waiting(&mut self, seen: &PeakSeen) -> Option<Waiting> {
        let (mm, rss) = (seen.mm, seen.rss() * page_size());
        let own = self.peaks.own.get(mm);
        if self.aggregator.is_starting(mm) || own.is_some_and(|own| own.moment.rss >= rss) {
            return None;
        }
        let known = self.aggregator.known_at_peak(mm)?;
        let is_alone = self.aggregator.only_space() == Some(mm);
        match is_alone {
            true => self.note_high_water(seen.highest() * page_size()),
            false => self.note_sum(rss + seen.others * page_size()),
        }
        Some(Waiting {
            seen: seen.clone(),
            known,
            is_alone,
        })
    }

    /// Scans the peaks that were noted, unless that is too early.
    pub(in crate::collect::collector) fn scan_peaks_in_time(&mut self) {
        while !takes_more_than(self.peaks.scanned, SHARE) && self.scan_next_peak() {}
    }

    /// Scans the peaks that were noted before a report, the highest first. Those that it does not wait for are scanned later.
    pub(super) fn scan_peaks_for_report(&mut self) {
        let begun = Instant::now();
        while begun.elapsed() < REPORT && self.scan_next_peak() {}
    }

    /// Scans the noted peak of an address space that is about to be forgotten. If such scans take more than half of the time, this one and
    /// the like of it are left out, unless it may be the peak of all together: events would be lost meanwhile.
    pub(in crate::collect::collector) fn scan_peak_before(&mut self, change: &ProcessEvent) {
        let gone = match change.change {
            ProcessChange::Exited { .. } => change.mm,
            ProcessChange::Execed { left } => left,
            _ => return,
        };
        let mut all = self.peaks.waiting.iter();
        let Some(at) = all.position(|waiting| waiting.seen.mm == gone) else {
            return;
        };
        if takes_more_than(self.peaks.scanned, 2)
            && !self.peaks.may_be_best(&self.peaks.waiting[at])
        {
            let left = self.peaks.waiting.swap_remove(at);
            self.probe.forget_space(left.seen.copy);
            self.peaks.own.leave_out(left.rss());
            self.watch_peaks();
        } else {
            self.scan_peak(at);
        }
    }

    /// Scans the highest of the noted peaks; false if there is none.
    pub(super) fn scan_next_peak(&mut self) -> bool {
        let all = self.peaks.waiting.iter().enumerate();
        let highest = all.max_by_key(|(_, waiting)| waiting.rss());
        match highest.map(|(at, _)| at) {
            Some(at) => {
                self.scan_peak(at);
                true
            }
            None => false,
        }
    }

    fn scan_peak(&mut self, at: usize) {
        let waiting = self.peaks.waiting.swap_remove(at);
        let begun = Instant::now();
        if let Err(e) = self.try_scan_peak(&waiting) {
            self.missed_peaks += 1;
            tracing::debug!("no profile of a peak: {e:#}");
        }
        self.probe.forget_space(waiting.seen.copy);
        let took = begun.elapsed();
        self.peaks.scanned = Some((Instant::now(), took));
        self.peaks.spent += took;
        self.watch_peaks();
    }

    fn try_scan_peak(&mut self, waiting: &Waiting) -> Result<()> {
        let Waiting { seen, known, .. } = waiting;
        let scanned = self.aggregator.scan_peak(seen, known, &self.probe)?;
        let pid = scanned.pid;
        let own = match waiting.is_alone {
            true => {
                let snapshot = self.aggregator.snapshot(vec![scanned], &self.probe);
                let moment = self.moment_of_peak(snapshot, &[], seen)?;
                self.offer_best(&moment);
                moment
            }
            false => {
                let snapshot = self
                    .aggregator
                    .snapshot_of_one(scanned.clone(), &self.probe);
                let own = self.moment_of_peak(snapshot, &[], seen)?;
                let others = waiting.others();
                if self.peaks.may_be_best(waiting) {
                    let begun = Instant::now();
                    let most = others + others / EXCESS + counted_later();
                    let ended = self.peaks.ended.iter();
                    let ended = ended.filter(|(at, _)| seen.at.abs_diff(*at) <= ENDED_NS);
                    let ended = ended.map(|(_, scanned)| scanned.clone());
                    let pass = self
                        .aggregator
                        .pass_with(scanned.clone(), most, ended, &self.probe);
                    let losses = [
                        (Losses::NOT_SCANNED, pass.unscanned.len() as u64),
                        (Losses::OLDER, pass.older),
                        (Losses::HELD, pass.held),
                    ];
                    let snapshot = self.aggregator.snapshot(pass.scanned, &self.probe);
                    let moment = self.moment_of_peak(snapshot, &losses, seen)?;
                    self.offer_best(&moment);
                    self.peaks.passed = Some((Instant::now(), begun.elapsed()));
                }
                if seen.drops_all() {
                    self.peaks.ended.push_front((seen.at, scanned));
                    self.peaks.ended.truncate(MAX_ENDED);
                }
                own
            }
        };
        let high_water = seen.highest() * page_size();
        self.peaks.own.offer(seen.mm, pid, &own, high_water);
        Ok(())
    }

    fn offer_best(&mut self, moment: &Moment) {
        let best = self.peaks.best.as_ref();
        if best.is_none_or(|best| best.rss < moment.rss) {
            self.peaks.best = Some(moment.clone());
        }
    }

    fn moment_of_peak(
        &mut self,
        snapshot: Result<Snapshot, ReportError>,
        losses: &[(&'static str, u64)],
        seen: &PeakSeen,
    ) -> Result<Moment> {
        let snapshot = snapshot.map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let unresolved = snapshot.lacks_stacks().then(|| snapshot.clone());
        let mut profile = self.aggregator.resolve(snapshot, &self.probe);
        self.complete(&mut profile);
        for (what, count) in losses {
            profile.losses.add(*what, *count);
        }
        let ago = Duration::from_nanos(now_ns().saturating_sub(seen.at));
        profile.taken -= ago;
        profile.taken_ns = seen.at;
        profile.observed = profile.observed.saturating_sub(ago);
        Ok(self.moment(profile, unresolved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_waits_for_its_share_of_the_time() {
        let took = Duration::from_millis(100);
        let ended = |ago: u32| Instant::now().checked_sub(took * ago).map(|at| (at, took));
        assert!(!takes_more_than(None, PASSES));
        for (ago, waits) in [(0, true), (PASSES - 2, true), (PASSES, false)] {
            assert_eq!(takes_more_than(ended(ago), PASSES), waits, "{ago}");
        }
    }
}
