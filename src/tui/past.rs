//! What the overview says beyond the shown report: the report of the peak, and what grew lately.

use std::sync::Arc;

use super::state::UiState;
use super::view::View;
use crate::export::growth::GrowthTable;
use memprof_profile::{Report, Subset};
use memprof_sys::ids::Pid;

/// The peak of a target and its growth. Both are those of now, whichever moment is shown.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The process that had this peak; `None` if it is that of all processes together.
    pub of: Option<Pid>,
    /// The report of the peak, if it is known.
    pub at_peak: Option<Arc<Report>>,
    /// What grew lately, of all processes together.
    pub growth: Option<Arc<GrowthTable>>,
}

impl Past {
    /// Distinguishes it from others.
    fn key(&self) -> (Option<Pid>, Option<u64>, Option<u64>) {
        let peak = self.at_peak.as_ref().map(|report| report.sequence);
        let growth = self.growth.as_ref().and_then(|table| table.to);
        (self.of, peak, growth)
    }
}

impl UiState {
    pub(super) fn take_past(&mut self, past: Past) {
        let is_new = past.key() != self.past.key();
        self.past = past;
        if is_new && self.view == View::Overview && !self.paused {
            self.refresh();
        }
    }

    /// What is known of the past of the shown report. Growth is that of all processes until now, so that neither a part nor
    /// another moment has it.
    pub(super) fn past_of_shown(&self) -> Past {
        let chosen = self.part.as_ref().map(|part| &part.subset);
        let of = match chosen {
            None => None,
            Some(Subset::Process(pid)) => Some(*pid),
            // Peaks of control groups are not known.
            Some(Subset::Group(_)) => return Past::default(),
        };
        let known = Some(&self.past).filter(|past| past.of == of);
        Past {
            of,
            at_peak: known.and_then(|past| past.at_peak.clone()),
            growth: known
                .filter(|_| chosen.is_none() && !self.moments.shown)
                .and_then(|past| past.growth.clone()),
        }
    }
}
