//! Scans of a frozen target: all processes at once or one by one, never longer than `--max-freeze`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Collector;
use crate::aggregate::{Prepared, ReportError, Scanned, Snapshot, StillError, held_by};
use crate::event::{MmId, Pid};
use crate::freeze::{Costs, Freeze, Frozen, MAX_FREEZE, Need, NotHeld, Stood};
use crate::profile::FreezeOutcome;
use crate::residency::{Method, Scanner, figures};

/// How many rounds of events from processes being frozen are taken in, and the time limit of each round.
const MAX_ROUNDS: usize = 16;
const TAKEN_STILL: Duration = Duration::from_millis(10);

/// The kernel's walk of the page tables takes about twice as long as the scan; it is skipped if the time may
/// not suffice.
const WALK: u32 = 3;
/// The least time to allow for the walk, however little there is to walk.
const WALK_LEAST: Duration = Duration::from_micros(200);

/// Processes whose files are opened before they are frozen: one descriptor each.
const MOST_PREPARED: usize = 512;

/// Settings and cost estimates for freezing targets.
#[derive(Debug)]
pub struct Holding {
    /// Upper limit for one freeze.
    pub max: Duration,
    costs: Costs,
}

impl Default for Holding {
    fn default() -> Holding {
        Holding {
            max: MAX_FREEZE,
            costs: Costs::default(),
        }
    }
}

/// Why processes were not scanned while frozen.
enum Unheld {
    /// They were running; why, and how long they were frozen nevertheless.
    Ran {
        why: String,
        stood: Duration,
    },
    Failed(anyhow::Error),
}

/// A followed address space, and the process in it.
type Place = (MmId, Pid);

impl Collector {
    /// Scans the target, frozen as `freeze` says. If it cannot be frozen, or not long enough, scans it while it
    /// runs.
    pub(super) fn snapshot(
        &mut self,
        freeze: Freeze,
    ) -> Result<(Snapshot, FreezeOutcome), ReportError> {
        let places = self.aggregator.spaces();
        let (scanned, hold) = match freeze {
            Freeze::No => (self.running()?, FreezeOutcome::Ran),
            _ => match self.hold_at_once(&places, freeze) {
                Ok(Some((scanned, hold))) => (scanned, hold),
                Ok(None) => self.hold_in_turn()?,
                Err(Unheld::Ran { why, stood }) => {
                    (self.running()?, FreezeOutcome::Failed { why, stood })
                }
                Err(Unheld::Failed(e)) => return Err(ReportError::Failed(e)),
            },
        };
        let pids: Vec<Pid> = scanned.iter().map(|s| s.pid).collect();
        self.holding.costs.keep(&pids);
        for process in &scanned {
            let (took, resident) = (process.took, process.resident());
            self.holding.costs.scanned(process.pid, took, resident);
        }
        let snapshot = self.aggregator.snapshot(scanned, &self.probe)?;
        Ok((snapshot, hold))
    }

    fn running(&mut self) -> Result<Vec<Scanned>, ReportError> {
        self.aggregator
            .scan_all(&self.probe)
            .map_err(ReportError::Failed)
    }

    /// Freezes all processes at once; `None` if they should be frozen one by one instead.
    fn hold_at_once(
        &mut self,
        places: &[Place],
        freeze: Freeze,
    ) -> Result<Option<(Vec<Scanned>, FreezeOutcome)>, Unheld> {
        let or_in_turn = places.len() > 1 && freeze != Freeze::Group;
        match self.held(places, true) {
            Ok((scanned, stood)) => {
                let hold = FreezeOutcome::Still(stood.lasted);
                let scanned = scanned.into_iter().map(|p| p.with(hold.clone()));
                Ok(Some((scanned.collect(), hold)))
            }
            Err(Unheld::Ran { .. }) if or_in_turn => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Freezes each process for its own scan, including those forked meanwhile.
    fn hold_in_turn(&mut self) -> Result<(Vec<Scanned>, FreezeOutcome), ReportError> {
        let (mut done, mut scanned) = (BTreeSet::new(), Vec::new());
        let (mut longest, mut sum, mut ran) = (Duration::ZERO, Duration::ZERO, Vec::new());
        for _ in 0..MAX_ROUNDS {
            let mut left = self.aggregator.spaces();
            left.retain(|(mm, _)| !done.contains(mm));
            if left.is_empty() {
                break;
            }
            for place in left {
                done.insert(place.0);
                match self.held(&[place], false) {
                    Ok((processes, stood)) => {
                        longest = longest.max(stood.lasted);
                        sum += stood.lasted;
                        let hold = FreezeOutcome::Still(stood.lasted);
                        scanned.extend(processes.into_iter().map(|p| p.with(hold.clone())));
                    }
                    Err(Unheld::Failed(e)) => return Err(ReportError::Failed(e)),
                    Err(Unheld::Ran { why, stood }) => {
                        sum += stood;
                        let process = self.aggregator.scan(place.0, &self.probe);
                        if let Some(process) = process.map_err(ReportError::Failed)? {
                            ran.push(why.clone());
                            scanned.push(process.with(FreezeOutcome::Failed { why, stood }));
                        }
                    }
                }
            }
        }
        let hold = match ran.first() {
            None => FreezeOutcome::InTurn { longest, sum },
            Some(first) => FreezeOutcome::Failed {
                why: format!(
                    "{} of {} processes ran; the first of them: {first}",
                    ran.len(),
                    scanned.len()
                ),
                stood: sum,
            },
        };
        Ok((scanned, hold))
    }

    /// Scans these processes while all of them are frozen at once; with `with_new`, includes the processes that
    /// they fork until then.
    fn held(&mut self, places: &[Place], with_new: bool) -> Result<(Vec<Scanned>, Stood), Unheld> {
        let max = self.holding.max;
        let whom = whom(places);
        let need = self.need(places);
        if need.whole() > max {
            self.holding.costs.refused();
            return Err(Unheld::Ran {
                why: too_long(&whom, need, max),
                stood: Duration::ZERO,
            });
        }
        let mut prepared = self.prepare_all(places)?;
        let Some(&(_, first)) = prepared.keys().next() else {
            return Ok((Vec::new(), Stood::default()));
        };
        let mut scanner = match Scanner::open(first, Method::Auto) {
            Ok(scanner) => scanner,
            Err(e) if e.is_gone() => return Ok((Vec::new(), Stood::default())),
            Err(e) => return Err(Unheld::Failed(e.into())),
        };
        let mut places = places.to_vec();
        let pids: Vec<Pid> = places.iter().map(|(_, pid)| *pid).collect();
        let stopped = Frozen::stop(&pids, max);
        let mut frozen = stopped.map_err(|e| self.unheld(e, &whom, need))?;
        // Events up to the freeze belong to the state.
        for _ in 0..MAX_ROUNDS {
            self.take_events(TAKEN_STILL).map_err(Unheld::Failed)?;
            let new = self.fresh(&places);
            if !with_new || new.is_empty() {
                break;
            }
            let more = frozen.stop_more(new.iter().map(|(_, pid)| *pid).collect());
            more.map_err(|e| self.unheld(e, &whom, need))?;
            places.extend(new);
        }
        let result = self.scan_still(&places, &mut prepared, &mut scanner, &frozen);
        // The report needs nothing that was read after this check.
        let whole = result.is_ok() && frozen.is_held();
        let result = result.map(|mut scanned| {
            if whole {
                sum_up(&mut scanned, &frozen);
            }
            scanned
        });
        let stood = frozen.release();
        self.holding.costs.stood(&stood);
        let seen = match result {
            Ok(scanned) if whole => return Ok((scanned, stood)),
            Ok(scanned) => scanned.iter().map(Scanned::resident).sum(),
            Err(StillError::TimeUp(seen)) => seen,
            Err(StillError::Gone) => 0,
            Err(StillError::Failed(e)) => return Err(Unheld::Failed(e)),
        };
        let come = format!(
            "the scan had come to {} of {}",
            amount(seen),
            amount(need.resident)
        );
        Err(given_up(&whom, &come, need, max, stood.lasted))
    }

    /// Estimated cost of freezing these processes.
    fn need(&self, places: &[Place]) -> Need {
        let need = |(_, pid): &Place| {
            // A process that is gone costs nothing.
            let figures = figures::counters(*pid).ok()?;
            Some(self.holding.costs.need(*pid, held_by(&figures)))
        };
        let needs = places.iter().filter_map(need);
        needs.fold(Need::default(), Need::and)
    }

    /// Does what can be done for each process while it runs.
    fn prepare_all(&mut self, places: &[Place]) -> Result<BTreeMap<Place, Prepared>, Unheld> {
        let mut all = BTreeMap::new();
        for place in places.iter().take(MOST_PREPARED) {
            match self.aggregator.prepare_scan(place.0) {
                Ok(prepared) => drop(all.insert(*place, prepared)),
                Err(StillError::Gone | StillError::TimeUp(_)) => {}
                Err(StillError::Failed(e)) => return Err(Unheld::Failed(e)),
            }
        }
        Ok(all)
    }

    /// The followed address spaces that are not in `known`.
    fn fresh(&self, known: &[Place]) -> Vec<Place> {
        let mut all = self.aggregator.spaces();
        all.retain(|place| !known.contains(place));
        all
    }

    fn scan_still(
        &mut self,
        places: &[Place],
        prepared: &mut BTreeMap<Place, Prepared>,
        scanner: &mut Scanner,
        frozen: &Frozen,
    ) -> Result<Vec<Scanned>, StillError> {
        let (mut all, mut seen) = (Vec::new(), 0);
        for place in places {
            let ready = match prepared.remove(place) {
                Some(ready) => Ok(ready),
                // Forked a moment ago, or beyond `MOST_PREPARED`.
                None => self.aggregator.prepare_scan(place.0),
            };
            let end = frozen.until();
            let scan = |ready| {
                let (totals, probe) = (&mut self.aggregator, &self.probe);
                totals.scan_still(ready, scanner, probe, end)
            };
            match ready.and_then(scan) {
                Ok(scanned) => {
                    seen += scanned.resident();
                    all.push(scanned);
                }
                Err(StillError::Gone) => {}
                Err(StillError::TimeUp(more)) => return Err(StillError::TimeUp(seen + more)),
                Err(StillError::Failed(e)) => return Err(StillError::Failed(e)),
            }
        }
        Ok(all)
    }

    fn unheld(&mut self, e: NotHeld, whom: &str, need: Need) -> Unheld {
        self.holding.costs.stood(&e.stood);
        let (why, stood) = (e.why, e.stood.lasted);
        match e.late {
            true => given_up(whom, &why, need, self.holding.max, stood),
            false => Unheld::Ran { why, stood },
        }
    }
}

/// Reads the kernel's own totals for as many processes as the time allows.
fn sum_up(scanned: &mut [Scanned], frozen: &Frozen) {
    for process in scanned {
        let walk = (process.took * WALK).max(WALK_LEAST);
        if Instant::now() + walk > frozen.until() {
            continue;
        }
        // On failure, the counters remain.
        let _ = process.sum_up(|| frozen.is_held());
    }
}

fn whom(places: &[Place]) -> String {
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

fn too_long(whom: &str, need: Need, max: Duration) -> String {
    let Need {
        threads, resident, ..
    } = need;
    format!(
        "holding {whom} still for a scan ({threads} threads, {}) takes about {} ms, --max-freeze allows {} ms: it \
         was not tried. Start memprof with --max-freeze {}, or take the state without freeze",
        amount(resident),
        need.whole().as_millis().max(1),
        max.as_millis(),
        enough(need.whole())
    )
}

fn given_up(whom: &str, come: &str, need: Need, max: Duration, stood: Duration) -> Unheld {
    let more = enough(need.whole().max(max * 2));
    Unheld::Ran {
        why: format!(
            "holding {whom} still for a scan ({} threads, {}) was given up after {:.1} ms, --max-freeze allows {} ms: \
             {come}. Start memprof with --max-freeze {more} or more, or take the state without freeze",
            need.threads,
            amount(need.resident),
            stood.as_secs_f64() * 1e3,
            max.as_millis(),
        ),
        stood,
    }
}
