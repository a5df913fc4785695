//! The queue of profiles for the store, bounded in number and bytes. If it is full, the oldest profile is dropped and
//! counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::{Limits, Status};

/// The outcome of an attempt to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The store has accepted the profile.
    Delivered,
    /// The store has rejected the profile for this reason. A retry is useless.
    Refused(String),
    /// The attempt failed for this reason, and a retry may succeed: after this time, if the store requests it.
    Failed(String, Option<Duration>),
}

/// A profile in the format of the store.
pub(super) type Body = Arc<Vec<u8>>;

pub(super) struct Queue {
    limits: Limits,
    state: Mutex<QueueState>,
    changed: Condvar,
}

struct QueueState {
    waiting: VecDeque<Body>,
    /// Whether the first profile is being sent. It stays in the queue until the outcome is known.
    sending: bool,
    backoff: Backoff,
    /// The deadline of [`Queue::finish`].
    end: Option<Instant>,
    status: Status,
    /// Each message is printed once; the counts are in the status.
    said_failing: bool,
    said_recovered: bool,
}

/// A message for the user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The first failure.
    Failing(String),
    /// The first delivery after a failure.
    Recovered,
}

impl Queue {
    pub fn new(limits: Limits, status: Status) -> Queue {
        let state = QueueState {
            waiting: VecDeque::new(),
            sending: false,
            backoff: Backoff::new(limits.first_pause, limits.longest_pause),
            end: None,
            status,
            said_failing: false,
            said_recovered: false,
        };
        Queue {
            limits,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self) -> Status {
        let state = self.state();
        let bytes = state.waiting.iter().map(|body| body.len() as u64).sum();
        Status {
            queued: state.waiting.len() as u64,
            queued_bytes: bytes,
            ..state.status.clone()
        }
    }

    /// Adds a profile, and drops the oldest ones if there is no space.
    pub fn push(&self, body: Vec<u8>) {
        let mut state = self.state();
        let bytes = |state: &QueueState| -> usize { state.waiting.iter().map(|b| b.len()).sum() };
        let fits = |state: &QueueState| {
            state.waiting.len() < self.limits.profiles
                && bytes(state) + body.len() <= self.limits.bytes
        };
        while !fits(&state) {
            let oldest = usize::from(state.sending);
            state.status.dropped += 1;
            if body.len() > self.limits.bytes || state.waiting.remove(oldest).is_none() {
                // The new profile does not fit.
                return;
            }
        }
        state.waiting.push_back(Arc::new(body));
        self.changed.notify_all();
    }

    /// Counts a profile that could not be created.
    pub fn not_made(&self, why: String) -> Option<News> {
        let mut state = self.state();
        state.status.dropped += 1;
        state.note_failure(why)
    }

    /// Waits for the next profile to send; `None` at the end. The caller reports the outcome with [`Queue::settle`].
    pub fn next(&self) -> Option<Body> {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let wait = match (state.waiting.front(), state.end) {
                (_, Some(end)) if now >= end => return None,
                (None, Some(_)) => return None,
                (None, None) => None,
                (Some(body), end) => match state.backoff.left(now) {
                    None => {
                        let body = Arc::clone(body);
                        state.sending = true;
                        return Some(body);
                    }
                    Some(pause) => Some(end.map_or(pause, |end| pause.min(end - now))),
                },
            };
            state = match wait {
                None => {
                    let woken = self.changed.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(wait) => {
                    let woken = self.changed.wait_timeout(state, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Records the outcome of the attempt to send the first profile.
    pub fn settle(&self, outcome: Outcome) -> Option<News> {
        let mut state = self.state();
        state.sending = false;
        let state = &mut *state;
        let news = match outcome {
            // The queue was closed in the meantime, and the profile was counted as dropped.
            _ if state.waiting.is_empty() => None,
            Outcome::Failed(why, after) => {
                state.status.retries += 1;
                state.backoff.failed(Instant::now(), after);
                state.note_failure(why)
            }
            Outcome::Delivered => {
                let body = state.waiting.pop_front();
                state.backoff.reset();
                state.status.delivered += 1;
                state.status.delivered_bytes += body.map_or(0, |body| body.len() as u64);
                let recovered = std::mem::take(&mut state.status.failing);
                (recovered && !std::mem::replace(&mut state.said_recovered, true))
                    .then_some(News::Recovered)
            }
            Outcome::Refused(why) => {
                state.waiting.pop_front();
                state.backoff.reset();
                state.status.refused += 1;
                state.note_failure(why)
            }
        };
        self.changed.notify_all();
        news
    }

    /// Waits until all profiles are sent, but for at most `limit`. Does not wait for a store that requests a longer pause.
    /// Counts the remaining profiles as dropped.
    pub fn finish(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut state = self.state();
        state.backoff.hurry(Instant::now());
        state.end = Some(end);
        self.changed.notify_all();
        loop {
            let now = Instant::now();
            let left = end.saturating_duration_since(now);
            let in_vain = !state.sending && state.backoff.left(now).is_some_and(|p| p > left);
            if state.waiting.is_empty() || left.is_zero() || in_vain {
                break;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.end = Some(Instant::now());
        state.status.dropped += state.waiting.len() as u64;
        state.waiting.clear();
        self.changed.notify_all();
    }
}

impl QueueState {
    fn note_failure(&mut self, why: String) -> Option<News> {
        self.status.failing = true;
        self.status.error = Some(why.clone());
        (!std::mem::replace(&mut self.said_failing, true)).then_some(News::Failing(why))
    }
}
