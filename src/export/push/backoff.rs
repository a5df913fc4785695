//! Pauses after failures: they double each time and are partly random, so that many machines do not retry at the same
//! moment.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The maximum pause that a store may request.
const LONGEST_ASKED: Duration = Duration::from_secs(600);

pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    until: Option<Instant>,
    /// Whether the store requested the current pause.
    asked: bool,
}

impl Backoff {
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            longest,
            failures: 0,
            until: None,
            asked: false,
        }
    }

    /// The remaining pause; `None` if there is none.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Begins a pause, with the length that the store requested if it did.
    pub fn failed(&mut self, now: Instant, asked: Option<Duration>) {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        let own = part(doubled.min(self.longest));
        self.failures += 1;
        self.asked = asked.is_some();
        self.until = Some(now + asked.map_or(own, |asked| asked.min(LONGEST_ASKED)));
    }

    /// Ends the pause and resets its length.
    pub fn reset(&mut self) {
        *self = Backoff::new(self.first, self.longest);
    }

    /// Shortens all pauses from now on, except one that the store requested.
    pub fn hurry(&mut self, now: Instant) {
        self.failures = 0;
        self.longest = self.first;
        if !self.asked {
            self.until = self.until.map(|until| until.min(now + self.first));
        }
    }
}

/// A random duration between half of `of` and all of it.
pub(super) fn part(of: Duration) -> Duration {
    // The keys of the standard library's hash tables are random, so no further crate is needed.
    let random = RandomState::new().hash_one(0);
    let share = random as f64 / u64::MAX as f64;
    of.mul_f64(0.5 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_to_a_limit_and_end() {
        let now = Instant::now();
        let mut backoff = Backoff::new(SECOND, SECOND * 60);
        assert_eq!(backoff.left(now), None);
        let mut limit = SECOND;
        for _ in 0..40 {
            backoff.failed(now, None);
            let left = backoff.left(now).unwrap();
            assert!(limit / 2 <= left && left <= limit, "{left:?} of {limit:?}");
            limit = (limit * 2).min(SECOND * 60);
        }
        assert_eq!(backoff.left(now + SECOND * 60), None);
        backoff.reset();
        assert_eq!(backoff.left(now), None);
        backoff.failed(now, None);
        assert!(backoff.left(now).unwrap() <= SECOND);
    }

    #[test]
    fn a_store_may_ask_for_a_pause() {
        let now = Instant::now();
        let mut backoff = Backoff::new(SECOND, SECOND * 60);
        backoff.failed(now, Some(SECOND * 100));
        assert_eq!(backoff.left(now), Some(SECOND * 100));
        backoff.hurry(now);
        assert_eq!(backoff.left(now), Some(SECOND * 100));
        backoff.failed(now, Some(SECOND * 100_000));
        assert_eq!(backoff.left(now), Some(LONGEST_ASKED));
        backoff.failed(now, Some(Duration::ZERO));
        assert_eq!(backoff.left(now), None);
    }

    #[test]
    fn at_the_end_pauses_are_short() {
        let now = Instant::now();
        let mut backoff = Backoff::new(SECOND, SECOND * 60);
        (0..10).for_each(|_| backoff.failed(now, None));
        backoff.hurry(now);
        assert!(backoff.left(now).unwrap() <= SECOND);
        backoff.failed(now, None);
        assert!(backoff.left(now).unwrap() <= SECOND);
    }

    #[test]
    fn parts_are_random() {
        let parts: Vec<_> = (0..100).map(|_| part(SECOND)).collect();
        assert!(parts.iter().all(|p| *p >= SECOND / 2 && *p <= SECOND));
        let distinct: std::collections::BTreeSet<_> = parts.iter().collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
    }
}
