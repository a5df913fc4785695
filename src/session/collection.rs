//! Freeing the stacks that nothing refers to any more, so that a recording never ends.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::collector::Collector;

/// The share of time that collections may take, one part in so many; while the table is nearly full, more.
const SHARE: u32 = 10;

/// How long events are taken in, at most.
const ALL: Duration = Duration::from_secs(1);

/// When stacks were last collected.
#[derive(Debug)]
pub(super) struct Collected {
    at: Instant,
    took: Duration,
    /// Stacks that were left.
    left: usize,
}

impl Collector {
    /// Frees stacks if the table of them is filling up: from half full on, whenever an eighth of it came since
    /// the last time.
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
            // What was sent before the epoch began is taken in before the aggregator is looked at.
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
        // Without all events and all of the ledgers nothing can be said; it is tried again.
        let complete = taken && self.probe.mark_used(&mut used).is_ok();
        let aggregator = &mut self.aggregator;
        self.probe
            .end_collection(complete.then_some(&used), |id| aggregator.forget_stack(id));
        let (took, left) = (begun.elapsed(), self.probe.stacks_known().0);
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
