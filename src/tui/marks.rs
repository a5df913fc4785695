//! Marks: earlier reports to compare with.

use std::sync::Arc;

use super::words::clock;
use memprof_profile::Report;

/// Maximum number of marks; each keeps a report in memory.
pub(super) const MAX_MARKS: usize = 9;

/// An earlier report to compare with.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) number: usize,
    pub(super) report: Arc<Report>,
}

/// The newest marks.
#[derive(Debug, Default)]
pub(super) struct Marks {
    kept: Vec<Mark>,
    /// Number of marks set so far.
    ever: usize,
    /// Index of the mark to compare with.
    compared: Option<usize>,
}

impl Marks {
    /// The mark to compare with, if any.
    pub(super) fn compared(&self) -> Option<&Mark> {
        self.kept.get(self.compared?)
    }

    pub(super) fn newest(&self) -> Option<&Mark> {
        self.kept.last()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Sets a mark at a report; returns a message for the user.
    pub(super) fn set(&mut self, report: Option<Arc<Report>>) -> String {
        let Some(report) = report else {
            return "there is nothing to mark yet".to_owned();
        };
        self.ever += 1;
        let number = self.ever;
        let at = clock(report.profile.taken);
        self.kept.push(Mark { number, report });
        if self.kept.len() > MAX_MARKS {
            self.kept.remove(0);
            // If the oldest mark was compared with, the next oldest replaces it.
            self.compared = self.compared.map(|at| at.saturating_sub(1));
        }
        format!("mark {number} set at {at}; d shows the change since")
    }

    /// Starts to compare with the newest mark, or stops comparing; returns a message if there is no mark.
    pub(super) fn compare(&mut self) -> Option<String> {
        let newest = self.kept.len().checked_sub(1);
        self.compared = match self.compared {
            Some(_) => None,
            None => newest,
        };
        let none = newest.is_none();
        none.then(|| "there is no mark yet; m sets one".to_owned())
    }

    /// Compares with another mark: `step` maps the index of the compared mark to the new index.
    pub(super) fn step(&mut self, step: impl Fn(usize) -> Option<usize>) {
        let newest = self.kept.len().checked_sub(1);
        self.compared = match (self.compared, newest) {
            (Some(at), Some(newest)) => Some(step(at).unwrap_or(0).min(newest)),
            (_, newest) => newest,
        };
    }
}
