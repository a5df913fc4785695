//! Other moments than the newest: recorded ones, which the keys `[` and `]` show one after the other, and the peak.

use std::sync::Arc;

use super::state::UiState;
use memprof_profile::Report;
use memprof_sys::ids::Pid;

/// A request for another moment.
#[derive(Clone, Debug)]
pub struct Step {
    /// The report that is shown.
    pub shown: Arc<Report>,
    /// Which moment to show.
    pub to: StepTo,
}

/// A moment to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepTo {
    /// The recorded moment before the visible one.
    Before,
    /// The recorded moment after the visible one.
    After,
    /// The moment with the most resident memory: of a process, or of all together.
    Peak(Option<Pid>),
}

/// The report of the moment; `None` if there is none.
pub(super) type Stepped = Result<Option<Arc<Report>>, String>;

/// Whether another moment than the newest is shown, and the next one requested.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// Whether the visible report is that of another moment.
    pub(super) shown: bool,
    /// A step to request.
    pub(super) wanted: Option<Step>,
    /// Where the step that is under way leads.
    under_way: Option<StepTo>,
}

impl UiState {
    /// Requests another moment, unless a step is under way.
    pub(super) fn step(&mut self, to: StepTo) {
        let Some(shown) = self.report.clone() else {
            return self.messages.show("there is no report yet".to_owned());
        };
        if self.moments.under_way.is_none() {
            self.moments.under_way = Some(to);
            self.moments.wanted = Some(Step { shown, to });
        }
    }

    /// Shows the result of a step. New reports are not shown until the user resumes, or has stepped to the end.
    pub(super) fn take_step(&mut self, stepped: Stepped) {
        let to = self.moments.under_way.take();
        match stepped {
            Ok(Some(report)) => {
                (self.paused, self.moments.shown) = (true, true);
                if let Some(part) = &mut self.part {
                    part.take(&report, false);
                }
                self.report = Some(report);
                self.refresh();
            }
            Ok(None) if to == Some(StepTo::After) => self.resume(),
            Ok(None) => {
                let why = match to {
                    Some(StepTo::Peak(_)) => "memprof does not keep the peak of this process",
                    _ => "this is the first recorded moment",
                };
                self.messages.show(why.to_owned());
            }
            Err(why) => self.messages.show(why),
        }
    }

    /// Shows new reports again.
    pub(super) fn resume(&mut self) {
        (self.paused, self.moments.shown) = (false, false);
    }
}
