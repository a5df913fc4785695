//! Recorded moments, which the keys `[` and `]` show one after the other.

use std::sync::Arc;

use super::state::UiState;
use memprof_profile::Report;

/// A request for the recorded moment before or after a report.
#[derive(Clone, Debug)]
pub struct Step {
    /// The report that is shown.
    pub shown: Arc<Report>,
    /// Whether to show the moment after it, not before it.
    pub forward: bool,
}

/// The report of a recorded moment; `None` if there is no further one in this direction.
pub(super) type Stepped = Result<Option<Arc<Report>>, String>;

/// Whether a recorded moment is shown, and the next one requested.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// Whether the visible report is that of a recorded moment.
    pub(super) shown: bool,
    /// A step to request.
    pub(super) wanted: Option<Step>,
    /// The direction of the step that is under way.
    under_way: Option<bool>,
}

impl UiState {
    /// Requests the moment before or after the visible report, unless a step is under way.
    pub(super) fn step(&mut self, forward: bool) {
        let Some(shown) = self.report.clone() else {
            return self.messages.show("there is no report yet".to_owned());
        };
        if self.moments.under_way.is_none() {
            self.moments.under_way = Some(forward);
            self.moments.wanted = Some(Step { shown, forward });
        }
    }

    /// Shows the result of a step. New reports are not shown until the user resumes, or has stepped to the end.
    pub(super) fn take_step(&mut self, stepped: Stepped) {
        let forward = self.moments.under_way.take() == Some(true);
        match stepped {
            Ok(Some(report)) => {
                (self.paused, self.moments.shown) = (true, true);
                if let Some(part) = &mut self.part {
                    part.take(&report, false);
                }
                self.report = Some(report);
                self.refresh();
            }
            Ok(None) if forward => self.resume(),
            Ok(None) => {
                let first = "this is the first recorded moment";
                self.messages.show(first.to_owned());
            }
            Err(why) => self.messages.show(why),
        }
    }

    /// Shows new reports again.
    pub(super) fn resume(&mut self) {
        (self.paused, self.moments.shown) = (false, false);
    }
}
