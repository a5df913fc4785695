//! The loop behind `/v2/series` and `/v2/events`: reads cheap counters once a second and, while clients are
//! connected, makes periodic reports.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

use super::Api;
use super::common::millis;
use crate::collect::{self, LastScan};
use crate::http::series::{Sample, Series};
use memprof_profile::measure::{COLUMNS, ColumnId};
use memprof_profile::{Kind, Profile};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures::{self, Status};

/// Interval between samples.
const PAUSE: Duration = Duration::from_secs(1);

/// Minimum interval of reports for connected clients.
const REPORT_PAUSE: Duration = Duration::from_secs(2);

/// The number of the newest report, and its totals.
type Sums = (u64, Totals);

/// Totals of a report, in bytes or in the unit of their column.
#[derive(Clone, Copy)]
struct Totals {
    cache: u64,
    attributed: u64,
    not_observed: u64,
    lost: u64,
    /// Columns of other measures; `None` for measures that are not counted.
    columns: [Option<u64>; COLUMNS],
}

impl From<&Profile> for Totals {
    fn from(profile: &Profile) -> Totals {
        let attributed = profile.attributed().usage.value();
        let total = &profile.total.usage;
        let column = |id| {
            let kind = Kind::Column(id);
            profile.counts(kind).then(|| kind.figure(&profile.total))
        };
        Totals {
            cache: total.cache,
            attributed,
            not_observed: total.value() - attributed,
            lost: profile.losses.lost_events(),
            columns: ColumnId::ALL.map(column),
        }
    }
}

impl Api {
    /// Samples until dropped; reads a few counters per second.
    pub(crate) async fn sample(self: Arc<Self>) {
        let mut ticks = interval(PAUSE);
        // Missed samples stay gaps.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut sums = None;
        let mut reported: Option<Instant> = None;
        loop {
            ticks.tick().await;
            let Some(status) = self.provider().status().await else {
                continue;
            };
            let sample = take(&status, &mut sums).await;
            if !status.pids.is_empty() {
                self.series().push(sample, now_ms());
            }
            if self.events.nobody() {
                continue;
            }
            self.events.sample(&sample);
            let current = status.last.as_ref().filter(|last| last.current);
            let known = current.is_some_and(|last| self.events.has(last.sequence));
            if !known && reported.is_none_or(|at| at.elapsed() >= REPORT_PAUSE) {
                reported = Some(Instant::now());
                let api = Arc::clone(&self);
                // A slow scan must not delay the samples. Concurrent requests share the scan.
                tokio::spawn(async move { api.publish_summary().await });
            }
        }
    }

    /// The sampled series.
    pub(super) fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Milliseconds of `CLOCK_BOOTTIME`, which is never set and continues during system sleep.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.unwrap_or_default().as_millis() as u64
}

async fn take(status: &collect::Status, sums: &mut Option<Sums>) -> Sample {
    let pids = status.pids.clone();
    // Reading another process's status takes locks that the process may hold for a while.
    let counters = tokio::task::spawn_blocking(move || counters(&pids)).await;
    let counters = counters.ok().flatten();
    let holds = |last: &&LastScan| last.current || sums.is_none_or(|s| s.0 != last.sequence);
    let last = status.last.as_ref().filter(holds);
    let sums = last.map(|last| match sums {
        Some((number, sums)) if *number == last.sequence => *sums,
        _ => {
            let found = Totals::from(&*last.profile);
            sums.insert((last.sequence, found)).1
        }
    });
    let of_status = |figure: fn(&Status) -> u64| counters.as_ref().map(figure);
    let of_report = |figure: fn(&Totals) -> u64| sums.as_ref().map(figure);
    let always = [
        of_status(|s| s.rss_anon),
        of_status(|s| s.rss_shmem),
        of_status(|s| s.rss_file),
        of_status(|s| s.swap),
        of_report(|t| t.cache),
        of_report(|t| t.attributed),
        of_report(|t| t.not_observed),
        of_status(|s| s.page_tables),
        of_report(|t| t.lost).filter(|lost| *lost > 0),
    ];
    let mut sample = Sample {
        at: millis(SystemTime::now()),
        ..Sample::default()
    };
    let columns = sums.into_iter().flat_map(|totals| totals.columns);
    let values = always.into_iter().chain(columns);
    sample
        .values
        .iter_mut()
        .zip(values)
        .for_each(|(to, value)| *to = value);
    sample
}

/// The summed counters of all existing processes; `None` if none exists, or if one cannot be read.
fn counters(pids: &[Pid]) -> Option<Status> {
    let mut sum: Option<Status> = None;
    for pid in pids {
        let status = match figures::status(*pid) {
            Ok(status) => status,
            Err(e) if e.is_gone() => continue,
            Err(_) => return None,
        };
        let sum = sum.get_or_insert_default();
        sum.rss_anon += status.rss_anon;
        sum.rss_shmem += status.rss_shmem;
        sum.rss_file += status.rss_file;
        sum.swap += status.swap;
        sum.hugetlb += status.hugetlb;
        sum.page_tables += status.page_tables;
    }
    sum
}
