//! The process or control group shown instead of all processes, and entering and leaving it.

use std::sync::Arc;

use super::history::History;
use super::state::UiState;
use super::view::View;
use memprof_profile::{Profile, Report, Subset};
use memprof_sys::ids::Pid;

/// A part of the reports that is shown alone.
#[derive(Debug)]
pub(super) struct Selection {
    /// The user's selection.
    chosen: Subset,
    /// The selection in terms of `report`.
    pub(super) subset: Subset,
    /// The title in the header: `nginx (pid 7)`, `/system.slice/nginx.service and below`.
    pub(super) name: String,
    /// The newest report that contains the part.
    pub(super) report: Arc<Report>,
    /// Whether newer reports do not contain it.
    pub(super) has_ended: bool,
    pub(super) history: History,
    /// The part's processes in `report`.
    pub(super) inside: Vec<Pid>,
}

impl Selection {
    /// A part of a report; the report must contain it.
    fn new(chosen: Subset, name: String, report: &Arc<Report>) -> Selection {
        let mut part = Selection {
            subset: chosen.clone(),
            chosen,
            name,
            report: Arc::clone(report),
            has_ended: false,
            history: History::default(),
            inside: Vec::new(),
        };
        part.take(report, false);
        part
    }

    /// Follows the part into a new report. While the view is paused, the new report is not shown.
    pub(super) fn take(&mut self, report: &Arc<Report>, paused: bool) {
        let subset = self.subset_in(&report.profile);
        let found = report.profile.total_of(&subset);
        if let Some((total, _)) = &found {
            self.history.push(total.usage.resident());
        }
        if paused {
            return;
        }
        self.has_ended = found.is_none();
        if let Some((_, pids)) = found {
            self.inside = pids;
            self.report = Arc::clone(report);
            self.subset = subset;
        }
    }

    /// The selection in a profile. A profile of a single process does not tell its control group, so the process itself
    /// is used.
    fn subset_in(&self, profile: &Profile) -> Subset {
        let pid = profile.target.pid;
        match profile.processes.is_empty() && self.inside.contains(&pid) {
            true => Subset::Process(pid),
            false => self.chosen.clone(),
        }
    }
}

impl UiState {
    /// The visible report: of all processes, or of the part; `None` until there is one.
    pub(super) fn shown(&self) -> Option<&Arc<Report>> {
        match &self.part {
            None => self.report.as_ref(),
            Some(_) => self.model.as_ref().map(|model| &model.report),
        }
    }

    /// The process that is shown alone, if one is.
    pub(super) fn process_alone(&self) -> Option<Pid> {
        match &self.part.as_ref()?.chosen {
            Subset::Process(pid) => Some(*pid),
            Subset::Group(_) => None,
        }
    }

    /// The history of the visible report.
    pub(super) fn history(&self) -> &History {
        let part = self.part.as_ref();
        part.map_or(&self.history, |part| &part.history)
    }

    /// Switches from the functions or the tree to the lists, and back to the view from which the lists were opened.
    pub(super) fn toggle_lists(&mut self) {
        if self.view.is_list() {
            return self.show(self.lists.from);
        }
        self.lists.from = self.view;
        let Some(part) = self.part.take() else {
            return self.show(View::Processes);
        };
        self.forget_model();
        self.show(match part.chosen {
            Subset::Process(_) => View::Processes,
            Subset::Group(_) => View::Groups,
        });
        self.select(&part.chosen);
    }

    /// Shows only the selected process or control group, in the view from which the lists were opened.
    pub(super) fn enter(&mut self) {
        let (Some(report), Some(row)) = (&self.report, self.selected()) else {
            return;
        };
        let why = match &row.subset {
            None => "these bytes are of no process that runs",
            Some(_) if row.is_gone => "it is not there any more: only its figures at the mark are",
            Some(subset) => {
                self.part = Some(Selection::new(subset.clone(), row.title(), report));
                self.forget_model();
                return self.show(self.lists.from);
            }
        };
        self.messages.show(why.to_owned());
    }
}
