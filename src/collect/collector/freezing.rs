//! Scans of a frozen target: all processes at once or one by one, never longer than `--max-freeze`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Collector;
use crate::collect::aggregate::{
    FrozenScan, FrozenScanError, Prepared, ReportError, Scanned, Snapshot, Unscanned, held_by,
};
use memprof_profile::FreezeOutcome;
use memprof_sys::freeze::{
    Costs, Estimate, Freeze, FreezeError, FreezeStats, Frozen, Guard, MAX_FREEZE,
};
use memprof_sys::ids::{MmId, Pid};
use memprof_sys::messages;
use memprof_sys::residency::{Error as ScanError, Pages, Scanner, figures};

/// Maximum number of rounds of taking in events from processes being frozen, and the time limit of each round.
const MAX_ROUNDS: usize = 16;
const ROUND_TIME: Duration = Duration::from_millis(10);

/// The kernel's walk of the page tables takes about twice as long as the scan. It is skipped if time may not suffice.
const WALK: u32 = 3;
/// Minimum time reserved for the walk, however little there is to walk.
const WALK_LEAST: Duration = Duration::from_micros(200);

/// Maximum number of processes whose files are opened before they are frozen: one descriptor each.
const MAX_PREPARED: usize = 512;

/// Settings and cost estimates for freezing targets.
#[derive(Debug)]
pub struct Freezing {
    /// Upper limit for one freeze.
    pub max: Duration,
    costs: Costs,
    /// Freezes the targets.
    pub guard: Guard,
}

impl Default for Freezing {
    fn default() -> Freezing {
        Freezing {
            max: MAX_FREEZE,
            costs: Costs::default(),
            guard: Guard::default(),
        }
    }
}

/// Why processes were not scanned while frozen.
enum NotFrozen {
    /// The processes were running: the reason, and how long they were frozen nevertheless.
    Ran {
        why: String,
        frozen: Duration,
    },
    Failed(anyhow::Error),
}

/// The result of freezing several processes at once.
enum AtOnce {
    Done(Vec<Scanned>, FreezeOutcome),
    /// The processes should be frozen one by one. They were frozen together for this long.
    InTurn(Duration),
}

/// A followed address space, and the process in it.
type FollowedSpace = (MmId, Pid);

impl Collector {
    /// Scans the target, frozen according to `freeze`. If it cannot be frozen, or not long enough, scans it while it runs.
    pub(super) fn snapshot(
        &mut self,
        freeze: Freeze,
    ) -> Result<(Snapshot, FreezeOutcome), ReportError> {
        let places = self.aggregator.spaces();
        let (scanned, outcome) = match freeze {
            Freeze::No => (self.running()?, FreezeOutcome::Ran),
            _ => match self.freeze_at_once(&places, freeze) {
                Ok(AtOnce::Done(scanned, outcome)) => (scanned, outcome),
                Ok(AtOnce::InTurn(frozen)) => self.freeze_in_turn(frozen)?,
                Err(NotFrozen::Ran { why, frozen }) => {
                    let outcome = FreezeOutcome::Failed { why, stood: frozen };
                    (self.running()?, outcome)
                }
                Err(NotFrozen::Failed(e)) if places.len() > 1 => {
                    let why = format!("not all processes can be read: {e:#}");
                    let stood = Duration::ZERO;
                    (self.running()?, FreezeOutcome::Failed { why, stood })
                }
                Err(NotFrozen::Failed(e)) => return Err(ReportError::Failed(e)),
            },
        };
        let pids: Vec<Pid> = scanned.iter().map(|s| s.pid).collect();
        self.freezing.costs.retain(&pids);
        for process in &scanned {
            let (took, resident) = (process.took, process.resident());
            self.freezing.costs.record_scan(process.pid, took, resident);
        }
        let snapshot = self.aggregator.snapshot(scanned, &self.probe)?;
        Ok((snapshot, outcome))
    }

    fn running(&mut self) -> Result<Vec<Scanned>, ReportError> {
        let pass = self.aggregator.pass(&self.probe);
        (self.older, self.held) = (pass.older, pass.held);
        self.leave_out(!pass.scanned.is_empty(), pass.unscanned)?;
        Ok(pass.scanned)
    }

    /// Notes processes that could not be scanned. They do not fail a report that has other processes.
    fn leave_out(
        &mut self,
        has_others: bool,
        unscanned: Vec<Unscanned>,
    ) -> Result<(), ReportError> {
        self.unscanned = unscanned.len() as u64;
        for Unscanned { pid, why } in unscanned {
            if !has_others {
                return Err(ReportError::Failed(why));
            }
            tracing::debug!(%pid, "not scanned: {why:#}");
            // Printed once, for the first of them.
            if !std::mem::replace(&mut self.told_unscanned, true) {
                messages::print(&format!(
                    "cannot scan process {pid}, which the reports leave out: {why:#}"
                ));
            }
        }
        Ok(())
    }

    /// Freezes all processes at once, if that does not take too long.
    fn freeze_at_once(
        &mut self,
        places: &[FollowedSpace],
        freeze: Freeze,
    ) -> Result<AtOnce, NotFrozen> {
        let or_in_turn = places.len() > 1 && freeze != Freeze::Group;
        let limit = match or_in_turn {
            // The other half of the time is for freezing each of them in turn.
            true => self.freezing.max / 2,
            false => self.freezing.max,
        };
        match self.scan_frozen(places, limit, true) {
            Ok((scanned, stats)) => {
                let outcome = FreezeOutcome::Still {
                    lasted: stats.duration,
                };
                let scanned = scanned.into_iter().map(|p| p.with(outcome.clone()));
                Ok(AtOnce::Done(scanned.collect(), outcome))
            }
            Err(NotFrozen::Ran { frozen, .. }) if or_in_turn => Ok(AtOnce::InTurn(frozen)),
            // One of them cannot be read. Freezing in turn omits it.
            Err(_) if or_in_turn => Ok(AtOnce::InTurn(limit)),
            Err(e) => Err(e),
        }
    }

    /// Freezes each process for its own scan, including processes forked meanwhile. `before` is how long all of them were frozen
    /// together.
    fn freeze_in_turn(
        &mut self,
        before: Duration,
    ) -> Result<(Vec<Scanned>, FreezeOutcome), ReportError> {
        let limit = self.freezing.max.saturating_sub(before);
        let (mut done, mut scanned) = (BTreeSet::new(), Vec::new());
        let mut unscanned = Vec::new();
        let (mut longest, mut sum, mut ran) = (Duration::ZERO, before, Vec::new());
        for _ in 0..MAX_ROUNDS {
            let mut left = self.aggregator.spaces();
            left.retain(|(mm, _)| !done.contains(mm));
            if left.is_empty() {
                break;
            }
            for place in left {
                done.insert(place.0);
                match self.scan_frozen(&[place], limit, false) {
                    Ok((processes, stats)) => {
                        longest = longest.max(before + stats.duration);
                        sum += stats.duration;
                        let outcome = FreezeOutcome::Still {
                            lasted: stats.duration,
                        };
                        scanned.extend(processes.into_iter().map(|p| p.with(outcome.clone())));
                    }
                    Err(NotFrozen::Failed(why)) => match self.aggregator.last_scan(place.0) {
                        Some(process) if ScanError::is_held(&why) => {
                            self.held += 1;
                            let (why, stood) = (format!("{why:#}"), Duration::ZERO);
                            ran.push(why.clone());
                            scanned.push(process.with(FreezeOutcome::Failed { why, stood }));
                        }
                        _ => unscanned.push(Unscanned { pid: place.1, why }),
                    },
                    Err(NotFrozen::Ran { why, frozen }) => {
                        sum += frozen;
                        match self.aggregator.scan(place.0, &self.probe) {
                            Ok(None) => {}
                            Ok(Some(process)) => {
                                ran.push(why.clone());
                                let outcome = FreezeOutcome::Failed { why, stood: frozen };
                                scanned.push(process.with(outcome));
                            }
                            Err(why) => unscanned.push(Unscanned { pid: place.1, why }),
                        }
                    }
                }
            }
        }
        self.leave_out(!scanned.is_empty(), unscanned)?;
        let outcome = match ran.first() {
            None => FreezeOutcome::InTurn { longest, sum },
            Some(first) => FreezeOutcome::Failed {
                why: format!(
                    "{} of {} processes were not frozen; the first of them: {first}",
                    ran.len(),
                    scanned.len()
                ),
                stood: sum,
            },
        };
        Ok((scanned, outcome))
    }

    /// Scans these processes while all of them are frozen at once. With `with_new`, includes the processes that they fork until
    /// then.
    fn scan_frozen(
        &mut self,
        places: &[FollowedSpace],
        limit: Duration,
        with_new: bool,
    ) -> Result<(Vec<Scanned>, FreezeStats), NotFrozen> {
        let mut guard = std::mem::take(&mut self.freezing.guard);
        let done = self.scan_frozen_by(&mut guard, places, limit, with_new);
        self.freezing.guard = guard;
        done
    }

    fn scan_frozen_by(
        &mut self,
        guard: &mut Guard,
        places: &[FollowedSpace],
        limit: Duration,
        with_new: bool,
    ) -> Result<(Vec<Scanned>, FreezeStats), NotFrozen> {
        let max = self.freezing.max;
        let whom = whom(places);
        let estimate = self.estimate(places);
        if estimate.total() > limit {
            self.freezing.costs.lower_estimate();
            return Err(NotFrozen::Ran {
                why: too_long(&whom, estimate, max),
                frozen: Duration::ZERO,
            });
        }
        let mut prepared = self.prepare_all(places)?;
        let Some(&(_, first)) = prepared.keys().next() else {
            return Ok((Vec::new(), FreezeStats::default()));
        };
        let scanner = Pages::open(first).and_then(|pages| self.aggregator.scanner(pages));
        let mut scanner = match scanner {
            Ok(scanner) => scanner,
            Err(e) if e.is_gone() => return Ok((Vec::new(), FreezeStats::default())),
            Err(e) => return Err(NotFrozen::Failed(e.into())),
        };
        let mut places = places.to_vec();
        let pids: Vec<Pid> = places.iter().map(|(_, pid)| *pid).collect();
        // Leaves fewer events to take in while the processes are frozen.
        self.take_events(ROUND_TIME).map_err(NotFrozen::Failed)?;
        let stopped = Frozen::stop(guard, &pids, limit);
        let mut frozen = stopped.map_err(|e| self.freeze_failed(e, &whom, estimate))?;
        let begun = Instant::now();
        // Events up to the freeze belong to the state.
        for _ in 0..MAX_ROUNDS {
            self.take_events(ROUND_TIME).map_err(NotFrozen::Failed)?;
            let new = self.fresh(&places);
            if !with_new || new.is_empty() {
                break;
            }
            let pids: Vec<Pid> = new.iter().map(|(_, pid)| *pid).collect();
            let more = frozen.stop_more(&pids);
            more.map_err(|e| self.freeze_failed(e, &whom, estimate))?;
            places.extend(new);
        }
        let events = begun.elapsed();
        let result = self.scan_all(&places, &mut prepared, &mut scanner, &frozen);
        let read = begun.elapsed() - events;
        // The report needs nothing that was read after this check.
        let whole = result.is_ok() && frozen.is_frozen();
        let result = result.map(|mut read| {
            if whole {
                sum_up(&mut read, &frozen);
            }
            read
        });
        let walk = begun.elapsed() - events - read;
        let (stats, _) = frozen.release();
        tracing::debug!(?events, ?read, ?walk, ?stats, "frozen");
        self.freezing.costs.record_freeze(&stats);
        let seen = match result {
            Ok(read) if whole => return Ok((self.join_all(read)?, stats)),
            Ok(read) => read.iter().map(FrozenScan::resident).sum(),
            Err(FrozenScanError::TimeUp(seen)) => seen,
            Err(FrozenScanError::Gone) => 0,
            Err(FrozenScanError::Failed(e)) => return Err(NotFrozen::Failed(e)),
        };
        let come = format!(
            "the scan had covered {} of {}",
            amount(seen),
            amount(estimate.resident)
        );
        Err(given_up(&whom, &come, estimate, max, stats.duration))
    }

    /// Estimated cost of freezing these processes.
    fn estimate(&self, places: &[FollowedSpace]) -> Estimate {
        let estimate = |(_, pid): &FollowedSpace| {
            // A process that is gone costs nothing.
            let figures = figures::counters(*pid).ok()?;
            Some(self.freezing.costs.estimate(*pid, held_by(&figures)))
        };
        let estimates = places.iter().filter_map(estimate);
        estimates.fold(Estimate::default(), Estimate::plus)
    }

    /// Does everything that can be done for each process while it runs.
    fn prepare_all(
        &mut self,
        places: &[FollowedSpace],
    ) -> Result<BTreeMap<FollowedSpace, Prepared>, NotFrozen> {
        let mut all = BTreeMap::new();
        for place in places.iter().take(MAX_PREPARED) {
            match self.aggregator.prepare_scan(place.0) {
                Ok(prepared) => drop(all.insert(*place, prepared)),
                Err(FrozenScanError::Gone | FrozenScanError::TimeUp(_)) => {}
                Err(FrozenScanError::Failed(e)) => return Err(NotFrozen::Failed(e)),
            }
        }
        Ok(all)
    }

    /// The followed address spaces that are not in `known`.
    fn fresh(&self, known: &[FollowedSpace]) -> Vec<FollowedSpace> {
        let mut all = self.aggregator.spaces();
        all.retain(|place| !known.contains(place));
        all
    }

    fn scan_all(
        &mut self,
        places: &[FollowedSpace],
        prepared: &mut BTreeMap<FollowedSpace, Prepared>,
        scanner: &mut Scanner,
        frozen: &Frozen<'_>,
    ) -> Result<Vec<FrozenScan>, FrozenScanError> {
        let (mut all, mut seen) = (Vec::new(), 0);
        for place in places {
            let ready = match prepared.remove(place) {
                Some(ready) => Ok(ready),
                // Forked a moment ago, or beyond `MAX_PREPARED`.
                None => self.aggregator.prepare_scan(place.0),
            };
            let end = frozen.deadline();
            let scan = |ready| {
                let (totals, probe) = (&mut self.aggregator, &self.probe);
                totals.scan_still(ready, scanner, probe, end)
            };
            match ready.and_then(scan) {
                Ok(read) => {
                    seen += read.resident();
                    all.push(read);
                }
                Err(FrozenScanError::Gone) => {}
                Err(FrozenScanError::TimeUp(more)) => {
                    return Err(FrozenScanError::TimeUp(seen + more));
                }
                Err(FrozenScanError::Failed(e)) => return Err(FrozenScanError::Failed(e)),
            }
        }
        Ok(all)
    }

    /// Joins the pages read from frozen processes, which run again.
    fn join_all(&mut self, read: Vec<FrozenScan>) -> Result<Vec<Scanned>, NotFrozen> {
        let mut all = Vec::with_capacity(read.len());
        for still in read {
            match self.aggregator.join_still(still, &self.probe) {
                Ok(scanned) => all.push(scanned),
                Err(FrozenScanError::Gone | FrozenScanError::TimeUp(_)) => {}
                Err(FrozenScanError::Failed(e)) => return Err(NotFrozen::Failed(e)),
            }
        }
        Ok(all)
    }

    fn freeze_failed(&mut self, e: FreezeError, whom: &str, estimate: Estimate) -> NotFrozen {
        self.freezing.costs.record_freeze(&e.stats);
        let (why, frozen) = (e.reason, e.stats.duration);
        match e.timed_out {
            true => given_up(whom, &why, estimate, self.freezing.max, frozen),
            false => NotFrozen::Ran { why, frozen },
        }
    }
}

/// Reads the kernel's own totals of processes whose counters differ from the scan, as far as time permits.
fn sum_up(read: &mut [FrozenScan], frozen: &Frozen<'_>) {
    for process in read.iter_mut().filter(|process| !process.agrees()) {
        let walk = (process.took * WALK).max(WALK_LEAST);
        if Instant::now() + walk > frozen.deadline() {
            continue;
        }
        // On failure, the counters remain.
        let _ = process.sum_up(|| frozen.is_frozen());
    }
}

fn whom(places: &[FollowedSpace]) -> String {
    match places {
        [(_, pid)] => format!("process {pid}"),
        several => format!("{} processes", several.len()),
    }
}

fn amount(bytes: u64) -> String {
    match bytes >> 20 {
        mib @ 0..1024 => format!("{mib} MiB"),
        mib => format!("{:.1} GiB", mib as f64 / 1024.0),
    }
}

/// A round number of milliseconds, about 1.5 times `time`.
fn enough(time: Duration) -> u128 {
    (time.as_millis() * 3 / 2 / 10 + 1) * 10
}

fn too_long(whom: &str, estimate: Estimate, max: Duration) -> String {
    let Estimate {
        threads, resident, ..
    } = estimate;
    format!(
        "freezing {whom} for a scan ({threads} threads, {}) would take about {} ms, --max-freeze allows {} ms: no \
         attempt was made. Start memprof with --max-freeze {}, or take the state without freezing",
        amount(resident),
        estimate.total().as_millis().max(1),
        max.as_millis(),
        enough(estimate.total())
    )
}

fn given_up(
    whom: &str,
    come: &str,
    estimate: Estimate,
    max: Duration,
    frozen: Duration,
) -> NotFrozen {
    let more = enough(estimate.total().max(max * 2));
    NotFrozen::Ran {
        why: format!(
            "freezing {whom} for a scan ({} threads, {}) was given up after {:.1} ms, --max-freeze allows {} ms: \
             {come}. Start memprof with --max-freeze {more} or more, or take the state without freeze",
            estimate.threads,
            amount(estimate.resident),
            frozen.as_secs_f64() * 1e3,
            max.as_millis(),
        ),
        frozen,
    }
}
