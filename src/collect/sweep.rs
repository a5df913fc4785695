//! Decides when to sweep the page ledger for empty chunks: memory that is freed piece by piece leaves them
//! behind, and they would eventually fill the ledger.

use std::time::{Duration, Instant};

use crate::probe::{Probe, Sweep};

/// Minimum pause between two sweeps; sweeps take at most 1/`SHARE` of the time.
const PAUSE: Duration = Duration::from_secs(10);
const SHARE: u32 = 100;
/// The ledger is swept only while more than 1/`LEFT_ALONE` of it is used: a sweep can lose a record.
const LEFT_ALONE: u64 = 2;

/// Runs sweeps in short turns.
#[derive(Default)]
pub(super) struct Sweeper {
    sweep: Sweep,
    /// Time spent in the current sweep; `None` between sweeps.
    under_way: Option<Duration>,
    last: Option<Searched>,
}

/// The last sweep.
struct Searched {
    at: Instant,
    took: Duration,
    activity: u64,
}

impl Sweeper {
    /// Whether a sweep is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Starts a sweep if one is due, or continues it, until `until`.
    pub(super) fn turn(&mut self, probe: &Probe, until: Instant) {
        let activity = probe.activity();
        let spent = match self.under_way {
            Some(spent) => spent,
            None if self.is_due(probe, activity) => Duration::ZERO,
            None => return,
        };
        let begun = Instant::now();
        // On a read error the empty chunks stay; when the ledger is full, it reports that itself.
        let done = probe.sweep(&mut self.sweep, until).unwrap_or(true);
        let at = Instant::now();
        let took = spent + at.duration_since(begun);
        self.under_way = (!done).then_some(took);
        if done {
            self.last = Some(Searched { at, took, activity });
        }
    }

    fn is_due(&self, probe: &Probe, activity: u64) -> bool {
        let (chunks, capacity) = probe.page_chunks();
        if chunks <= capacity / LEFT_ALONE {
            return false;
        }
        self.last.as_ref().is_none_or(|last| {
            let changed = last.activity != activity || self.sweep.empty() > 0;
            changed && last.at.elapsed() >= PAUSE.max(last.took * SHARE)
        })
    }
}
