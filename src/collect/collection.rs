//! Frees stacks that nothing refers to, so that a recording can run indefinitely.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::collector::Collector;
use memprof_sys::allocator;

/// Collections take at most 1/`SHARE` of the time, or half of it while the table is nearly full.
const SHARE: u32 = 10;

/// Time limit for taking in all pending events.
const ALL: Duration = Duration::from_secs(1);

/// The last collection of stacks.
#[derive(Debug)]
pub(super) struct Collected {
    at: Instant,
    took: Duration,
    /// Number of stacks left after it.
    left: usize,
}

impl Collector {
    /// Frees stacks when their table fills up: from half full on, each time an eighth of its capacity was
    /// added.
    pub(super) fn collect_stacks(&mut self) -> Result<()> {
        let (known, room) = self.probe.stacks_known();
        let due = match &self.collected {
            None => known >= room / 2,
            Some(last) => {
                let pause = last.took * if known >= room / 8 * 7 { 1 } else { SHARE };
                known >= (room / 2).max(last.left + room / 8).min(room / 16 * 15)
                    && last.at.elapsed() >= pause
            }
        };
        if !due {
            return Ok(());
        }
        let begun = Instant::now();
        let begun_well = self.probe.begin_collection().and_then(|used| {
            // Take in the events from before the epoch first: the aggregator marks the stacks they refer to.
            Ok((used, self.take_events(ALL)?))
        });
        let (mut used, taken) = match begun_well {
            Ok(begun_well) => begun_well,
            Err(e) => {
                self.probe.end_collection(None, |_| ());
                return Err(e);
            }
        };
        self.aggregator.mark_used(&mut used);
        // Unless all events and all ledgers were read, any stack may be in use: nothing is freed until the next
        // try.
        let complete = taken && self.probe.mark_used(&mut used).is_ok();
        let aggregator = &mut self.aggregator;
        self.probe
            .end_collection(complete.then_some(&used), |id| aggregator.forget_stack(id));
        let left = self.probe.stacks_known().0;
        if left < known {
            allocator::give_back();
        }
        let took = begun.elapsed();
        tracing::debug!(
            known,
            left,
            ?took,
            complete,
            "stacks that nothing refers to were freed"
        );
        self.collected = Some(Collected {
            at: Instant::now(),
            took,
            left,
        });
        Ok(())
    }
}
