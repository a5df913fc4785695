//! When the page ledger is searched for chunks that hold no record: memory that is given back piece by
//! piece leaves them there, and they would fill it in the end.

use std::time::{Duration, Instant};

use crate::probe::{Probe, Sweep};

/// How often, at most, the ledger is searched; and the share of time.
const PAUSE: Duration = Duration::from_secs(10);
const SHARE: u32 = 100;
/// The part of the ledger up to which it is left alone: a search can cost a record.
const LEFT_ALONE: u64 = 2;

/// Searches, in turns.
#[derive(Default)]
pub(super) struct Sweeper {
    sweep: Sweep,
    /// Time spent in the search under way; `None` between searches.
    under_way: Option<Duration>,
    last: Option<Searched>,
}

/// The last search.
struct Searched {
    at: Instant,
    took: Duration,
    activity: u64,
}

impl Sweeper {
    /// Whether a search is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Begins a search if one is due, or goes on with it, until then.
    pub(super) fn turn(&mut self, probe: &Probe, until: Instant) {
        let activity = probe.activity();
        let spent = match self.under_way {
            Some(spent) => spent,
            None if self.is_due(probe, activity) => Duration::ZERO,
            None => return,
        };
        let begun = Instant::now();
        // What cannot be read stays; the ledger says so when it is full.
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
