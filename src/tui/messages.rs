//! Messages to the user, in the bottom line.

use std::collections::VecDeque;

/// A message disappears after this many reports.
const MOST_REPORTS: u32 = 5;
/// For how many of them it stays if another message comes.
const SEEN_REPORTS: u32 = 2;
/// Maximum number of messages that wait; further ones are shown at once.
const MOST_WAITING: usize = 8;

/// The message that is shown, and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Messages {
    shown: Option<String>,
    /// Reports since it was set.
    age: u32,
    /// Messages that are shown after it.
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

    /// Shows a message when the one before it was seen.
    pub(super) fn queue(&mut self, text: String) {
        let is_new = self.shown.is_some() && self.age < SEEN_REPORTS;
        if is_new && self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(text);
        } else {
            self.show(text);
        }
    }

    /// The user has seen it.
    pub(super) fn dismiss(&mut self) {
        self.shown = None;
    }

    /// A report has come.
    pub(super) fn grow_old(&mut self) {
        self.age += 1;
        if self.age >= SEEN_REPORTS
            && let Some(next) = self.waiting.pop_front()
        {
            self.show(next);
        } else if self.age > MOST_REPORTS {
            self.shown = None;
        }
    }
}
