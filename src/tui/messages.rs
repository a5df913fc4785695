//! Messages to the user, in the bottom line.

use std::collections::VecDeque;

/// A message disappears after this many reports.
const MAX_REPORTS: u32 = 5;
/// Number of reports after which another message may replace it.
const SEEN_REPORTS: u32 = 2;
/// Maximum number of queued messages; further ones are shown at once.
const MAX_WAITING: usize = 8;

/// The visible message and the queue behind it.
#[derive(Debug, Default)]
pub(super) struct Messages {
    shown: Option<String>,
    /// Number of reports since the message was shown.
    age: u32,
    /// Messages to show after it.
    waiting: VecDeque<String>,
}

impl Messages {
    pub(super) fn shown(&self) -> Option<&str> {
        self.shown.as_deref()
    }

    /// Shows a message for a while.
    pub(super) fn show(&mut self, text: String) {
        self.shown = Some(text);
        self.age = 0;
    }

    /// Shows a message after the user has had time to read the previous one.
    pub(super) fn queue(&mut self, text: String) {
        let is_new = self.shown.is_some() && self.age < SEEN_REPORTS;
        if is_new && self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(text);
        } else {
            self.show(text);
        }
    }

    /// Hides the message, because the user has seen it.
    pub(super) fn dismiss(&mut self) {
        self.shown = None;
    }

    /// Ages the message when a report arrives.
    pub(super) fn grow_old(&mut self) {
        self.age += 1;
        if self.age >= SEEN_REPORTS
            && let Some(next) = self.waiting.pop_front()
        {
            self.show(next);
        } else if self.age > MAX_REPORTS {
            self.shown = None;
        }
    }
}
