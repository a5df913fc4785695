//! When to look into the ring: before the programs have to wake the reader, which costs the node an interrupt to another processor.

use std::time::{Duration, Instant};

/// The rate at which the ring is filled, and how long the next wait may be.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes of the ring that may be filled during a wait.
    share: usize,
    since: Instant,
    taken: usize,
}

impl Pace {
    /// The shortest wait: a smaller ring is not worth a processor that never rests.
    const SHORTEST: Duration = Duration::from_millis(1);

    pub fn new(ring: usize) -> Self {
        Self {
            share: ring / 16,
            since: Instant::now(),
            taken: 0,
        }
    }

    /// Notes bytes that were taken out of the ring.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    /// How long to wait, at most `longest`: until the share is filled, at the rate since the last wait began.
    pub fn wait(&mut self, longest: Duration) -> Duration {
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut self.since, now));
        let taken = std::mem::take(&mut self.taken);
        wait(passed, taken, self.share)
            .max(Self::SHORTEST)
            .min(longest)
    }
}

fn wait(passed: Duration, taken: usize, share: usize) -> Duration {
    let shares = taken as f64 / share as f64;
    Duration::try_from_secs_f64(passed.as_secs_f64() / shares).unwrap_or(Duration::MAX)
}
