//! The user's settings, the cursor positions, and the data to show; independent of the terminal.

use std::collections::HashSet;
use std::sync::Arc;

use ratatui::crossterm::event::KeyEvent;

use super::heap::NewestHeap;
use super::history::History;
use super::keys;
use super::list::List;
use super::list_position::ListPosition;
use super::marks::Marks;
use super::messages::Messages;
use super::model::{Job, Model};
use super::moments::{Moments, Stepped};
use super::part::Selection;
use super::past::Past;
use super::processes::Lists;
use super::rows::{self, FunctionRow, TreeRow};
use super::theme::Theme;
use super::view::{Overlay, Sort, View};
use memprof_heap::HeapSnapshot;
use memprof_profile::tree::{Direction, Naming};
use memprof_profile::{FrameFilter, Kind, Report};

/// Limit of unfolded keys; beyond it, keys of unlisted nodes are dropped.
const MAX_UNFOLDED: usize = 4 * rows::MAX_ROWS;
/// Lines that are not rows: the bottom two and the column headings. A list of processes has its sum besides.
const FRAME_LINES: u16 = 3;
/// The line of keys, which is all that the overview has of them.
const KEY_LINE: u16 = 1;

/// An event.
#[derive(Debug)]
pub(super) enum Input {
    /// A key.
    Key(KeyEvent),
    /// The terminal's size in columns and lines.
    Resize(u16, u16),
    /// A new report.
    Report(Arc<Report>),
    /// The reason why there is no report.
    ReportError(String),
    /// The result of a [`Job`].
    Model(Arc<Model>),
    /// A heap snapshot, or the reason why there is none.
    Heap(Result<Arc<HeapSnapshot>, String>),
    /// The result of a step to another recorded moment.
    Stepped(Stepped),
    /// What the overview says beyond the reports.
    Past(Past),
    /// A message to the user.
    Message(String),
}

/// Everything that determines what is drawn.
#[derive(Debug)]
pub(super) struct UiState {
    pub(super) theme: Theme,
    pub(super) size: (u16, u16),
    /// Whether the reports are those of a file, so that there is no process.
    pub(super) is_saved: bool,
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) kind: Kind,
    pub(super) direction: Direction,
    pub(super) naming: Naming,
    pub(super) frames: FrameFilter,
    pub(super) overlay: Overlay,
    /// The overlay's first visible line.
    pub(super) overlay_top: usize,
    /// The filter of functions and the tree.
    pub(super) filter: String,
    /// Whether keys edit the filter.
    pub(super) editing: bool,
    pub(super) paused: bool,
    pub(super) marks: Marks,
    pub(super) moments: Moments,
    pub(super) past: Past,
    pub(super) history: History,
    /// The visible report, with all its processes.
    pub(super) report: Option<Arc<Report>>,
    /// The part of the report that is shown alone.
    pub(super) part: Option<Selection>,
    pub(super) lists: Lists,
    /// The model of the rows.
    pub(super) model: Option<Arc<Model>>,
    pub(super) functions: Vec<FunctionRow>,
    pub(super) tree: Vec<TreeRow>,
    /// Whether some rows of the tree are not listed.
    pub(super) tree_cut: bool,
    pub(super) unfolded: HashSet<u64>,
    /// The first visible line of the overview, which is the cursor's, too.
    pub(super) in_overview: ListPosition,
    pub(super) in_functions: ListPosition,
    pub(super) in_tree: ListPosition,
    pub(super) messages: Messages,
    /// A model to build.
    pub(super) job: Option<Job>,
    pub(super) heap: NewestHeap,
}

impl UiState {
    pub(super) fn new(colour: bool, size: (u16, u16)) -> UiState {
        UiState {
            theme: Theme { colour },
            size,
            is_saved: false,
            view: View::Overview,
            sort: Sort::Own,
            kind: Kind::All,
            direction: Direction::OutermostFirst,
            naming: Naming {
                inlined: true,
                ..Naming::default()
            },
            frames: FrameFilter::default(),
            overlay: Overlay::None,
            overlay_top: 0,
            filter: String::new(),
            editing: false,
            paused: false,
            marks: Marks::default(),
            moments: Moments::default(),
            past: Past::default(),
            history: History::default(),
            report: None,
            part: None,
            lists: Lists::new(),
            model: None,
            functions: Vec::new(),
            tree: Vec::new(),
            tree_cut: false,
            unfolded: HashSet::new(),
            in_overview: ListPosition::default(),
            in_functions: ListPosition::default(),
            in_tree: ListPosition::default(),
            messages: Messages::default(),
            job: None,
            heap: NewestHeap::default(),
        }
    }

    /// Handles an event; true when the user quits.
    pub(super) fn update(&mut self, input: Input) -> bool {
        match input {
            Input::Key(key) if keys::press(self, key) => return true,
            Input::Key(_) => {}
            Input::Resize(columns, lines) => self.size = (columns, lines),
            Input::Report(report) => self.take_report(report),
            Input::ReportError(why) if self.report.is_none() => self.messages.show(why),
            Input::ReportError(why) => self.messages.show(format!("no new report: {why}")),
            Input::Model(model) => {
                // The user may have chosen another part in the meantime.
                let part = self.part.as_ref().map(|part| &part.subset);
                if part == model.subset.as_ref() {
                    self.show_model(&model);
                }
            }
            Input::Heap(taken) => self.heap.show(&taken),
            Input::Stepped(stepped) => self.take_step(stepped),
            Input::Past(past) => self.take_past(past),
            Input::Message(text) => self.messages.queue(text),
        }
        // The height of the list may have shrunk.
        self.stay_in_sight();
        false
    }

    fn take_report(&mut self, report: Arc<Report>) {
        self.messages.grow_old();
        self.history.push(report.profile.total.usage.resident());
        if let Some(part) = &mut self.part {
            part.take(&report, self.paused);
        }
        if !self.paused {
            self.report = Some(report);
            if self.part.as_ref().is_none_or(|part| !part.has_ended) {
                self.refresh();
            }
        }
    }

    /// Shows another view.
    pub(super) fn show(&mut self, view: View) {
        // No models are built while a list is shown.
        let lacks_places = view == View::Overview && self.part.is_some();
        let stale = self.view.is_list() || view.is_list() || self.model.is_none() || lacks_places;
        self.view = view;
        if stale {
            self.refresh();
        }
    }

    /// Rebuilds the visible content for the current report and settings.
    pub(super) fn refresh(&mut self) {
        match self.view.is_list() {
            true => self.fill_list(),
            false => self.request_model(),
        }
    }

    fn request_model(&mut self) {
        let (report, subset) = match &self.part {
            Some(part) => (Some(&part.report), Some(part.subset.clone())),
            None => (self.report.as_ref(), None),
        };
        let Some(report) = report else {
            return;
        };
        self.job = Some(Job {
            report: Arc::clone(report),
            mark: self.marks.compared().map(|m| Arc::clone(&m.report)),
            subset,
            kind: self.kind,
            direction: self.direction,
            naming: self.naming,
            frames: self.frames,
            filter: self.filter.clone(),
            past: self.past_of_shown(),
            needs_places: self.view == View::Overview,
        });
    }

    /// Clears functions and tree until the next model.
    pub(super) fn forget_model(&mut self) {
        self.model = None;
        (self.functions, self.tree) = (Vec::new(), Vec::new());
        (self.in_functions, self.in_tree) = (ListPosition::default(), ListPosition::default());
    }

    /// The filter of the visible view.
    pub(super) fn filter(&self) -> &str {
        match self.view.is_list() {
            true => &self.lists.order.filter,
            false => &self.filter,
        }
    }

    pub(super) fn filter_mut(&mut self) -> &mut String {
        match self.view.is_list() {
            true => &mut self.lists.order.filter,
            false => &mut self.filter,
        }
    }

    /// Recomputes the model's rows; the cursor stays on its function or node. In the function list, a cursor on the
    /// first row stays on the first row instead.
    fn show_model(&mut self, model: &Arc<Model>) {
        let page = self.page();
        let listed = rows::functions(model, self.sort);
        let at = self.in_functions.cursor;
        let selected = match (at, &self.model, self.functions.get(at)) {
            (1.., Some(shown), Some(row)) => Some(row.name(shown)),
            _ => None,
        };
        let to = selected.and_then(|s| listed.iter().position(|r| r.name(model) == s));
        self.in_functions.follow(to, listed.len(), page);
        self.functions = listed;
        let (listed, whole) = rows::tree(model, &self.unfolded);
        let selected = self.tree.get(self.in_tree.cursor).map(|r| r.key);
        let to = selected.and_then(|s| listed.iter().position(|r| r.key == s));
        self.in_tree.follow(to, listed.len(), page);
        (self.tree, self.tree_cut) = (listed, !whole);
        self.model = Some(Arc::clone(model));
    }

    /// Recomputes the rows after sorting or unfolding has changed.
    pub(super) fn relist(&mut self) {
        if let Some(model) = self.model.clone() {
            self.show_model(&model);
        }
    }

    /// The number of visible rows.
    pub(super) fn page(&self) -> usize {
        let lines = self.size.1;
        let told = super::render::advice_lines(self).len() + self.heap_lines().len();
        let frame = match self.view {
            View::Overview => KEY_LINE,
            View::Processes | View::Groups => FRAME_LINES + 1,
            View::Functions | View::Tree => FRAME_LINES,
        };
        let used = super::render::header_lines(self, lines) + told as u16 + frame;
        usize::from(lines.saturating_sub(used)).max(1)
    }

    pub(super) fn place(&self) -> (ListPosition, usize) {
        let place_in = |list: &List| (list.place, list.rows.len());
        match self.view {
            View::Overview => (self.in_overview, super::render::overview_tops(self)),
            View::Functions => (self.in_functions, self.functions.len()),
            View::Tree => (self.in_tree, self.tree.len()),
            View::Processes => place_in(&self.lists.processes),
            View::Groups => place_in(&self.lists.groups),
        }
    }

    /// Moves the cursor of the visible list.
    pub(super) fn go(&mut self, to: usize) {
        let (mut page, (_, rows)) = (self.page(), self.place());
        let place = match self.view {
            View::Overview => {
                // It has no cursor, so that moves scroll at once.
                page = 1;
                &mut self.in_overview
            }
            View::Functions => &mut self.in_functions,
            View::Tree => &mut self.in_tree,
            View::Processes => &mut self.lists.processes.place,
            View::Groups => &mut self.lists.groups.place,
        };
        place.go(to, rows, page);
    }

    /// Keeps the cursor in view.
    fn stay_in_sight(&mut self) {
        let (place, _) = self.place();
        self.go(place.cursor);
    }

    /// Adds unfolded keys. Above `MAX_UNFOLDED` keys, first drops the keys of unlisted nodes.
    pub(super) fn unfold(&mut self, keys: Vec<u64>) {
        if self.unfolded.len() > MAX_UNFOLDED {
            let listed: HashSet<u64> = self.tree.iter().map(|r| r.key).collect();
            self.unfolded.retain(|key| listed.contains(key));
        }
        self.unfolded.extend(keys);
    }

    pub(super) fn selected_node(&self) -> Option<&TreeRow> {
        self.tree.get(self.in_tree.cursor)
    }
}
