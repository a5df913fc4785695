//! The user's settings, the cursor positions, and the data to show. Nothing here touches a terminal.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use ratatui::crossterm::event::KeyEvent;

use super::model::{Job, Model};
use super::rows::{self, FunctionRow, TreeRow};
use super::theme::Theme;
use super::{heap, keys};
use crate::api::{HeapSnapshot, Report};
use crate::event::Pid;
use crate::profile::{Frames, Kind};
use crate::tree::{Direction, Naming};

/// Reports whose resident memory is kept for the curve.
const HISTORY: usize = 600;
/// A message disappears after this many reports.
const MESSAGE_REPORTS: u32 = 5;
/// For how many of them it stays if another message comes.
const SEEN_REPORTS: u32 = 2;
/// Maximum number of messages that wait; further ones are shown at once.
const MOST_MESSAGES: usize = 8;
/// Marks that are kept; each holds a report.
pub(super) const MOST_MARKS: usize = 9;
/// Limit of unfolded keys; beyond it, keys of unlisted nodes are forgotten.
const MOST_UNFOLDED: usize = 4 * rows::MOST_ROWS;
/// Lines that are not rows: the bottom two and the column headings.
pub(super) const FRAME_LINES: u16 = 3;

/// An event.
#[derive(Debug)]
pub(super) enum Input {
    /// A key.
    Key(KeyEvent),
    /// The terminal's size in columns and lines.
    Resize(u16, u16),
    /// A new report.
    Report(Arc<Report>),
    /// Why there is no report.
    ReportError(String),
    /// The result of a [`Job`].
    Model(Arc<Model>),
    /// A heap snapshot, or why there is none.
    Heap(Result<Arc<HeapSnapshot>, String>),
    /// A message to the user.
    Message(String),
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Functions,
    Tree,
}

/// The sort key of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Own,
    Total,
    Name,
}

/// The overlay on top of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    None,
    Help,
    Details,
}

/// The cursor's row in a list, and the first visible row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cursor: usize,
    pub(super) top: usize,
}

impl Place {
    /// Moves the cursor to a row and scrolls as little as necessary.
    pub(super) fn go(&mut self, to: usize, rows: usize, page: usize) {
        self.cursor = to.min(rows.saturating_sub(1));
        let lowest = self.cursor.saturating_sub(page.saturating_sub(1));
        self.top = self.top.clamp(lowest, self.cursor);
    }

    /// Adjusts to changed rows: the row of the cursor is now at `to` and keeps its screen line.
    fn follow(&mut self, to: Option<usize>, rows: usize, page: usize) {
        let above = self.cursor - self.top;
        let to = to.unwrap_or(self.cursor);
        self.top = to.saturating_sub(above);
        self.go(to, rows, page);
    }
}

/// An earlier report to compare with.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) number: usize,
    pub(super) report: Arc<Report>,
}

/// Everything that determines what is drawn.
#[derive(Debug)]
pub(super) struct State {
    pub(super) theme: Theme,
    pub(super) size: (u16, u16),
    pub(super) view: View,
    pub(super) sort: Sort,
    pub(super) kind: Kind,
    pub(super) direction: Direction,
    pub(super) naming: Naming,
    pub(super) frames: Frames,
    pub(super) overlay: Overlay,
    /// The overlay's first visible line.
    pub(super) overlay_top: usize,
    pub(super) filter: String,
    /// True while keys edit the filter.
    pub(super) editing: bool,
    pub(super) paused: bool,
    pub(super) marks: Vec<Mark>,
    /// How many marks were ever set.
    pub(super) marks_set: usize,
    /// Index in `marks` of the mark to compare with.
    pub(super) compared: Option<usize>,
    /// Resident bytes of the latest reports.
    pub(super) history: VecDeque<u64>,
    /// The report that is shown.
    pub(super) report: Option<Arc<Report>>,
    /// The model that the rows come from.
    pub(super) model: Option<Arc<Model>>,
    pub(super) functions: Vec<FunctionRow>,
    pub(super) tree: Vec<TreeRow>,
    /// True if not all rows of the tree are listed.
    pub(super) tree_cut: bool,
    pub(super) unfolded: HashSet<u64>,
    pub(super) in_functions: Place,
    pub(super) in_tree: Place,
    pub(super) message: Option<String>,
    /// Reports since the message was set.
    pub(super) message_age: u32,
    /// Messages that are shown after it.
    pub(super) messages: VecDeque<String>,
    /// A model to build.
    pub(super) job: Option<Job>,
    /// What is said of the newest heap snapshot.
    pub(super) heap: Option<String>,
    /// Whether one is being taken.
    pub(super) heap_taking: bool,
    /// The process of which one is to be taken.
    pub(super) heap_wanted: Option<Pid>,
}

impl State {
    pub(super) fn new(colour: bool, size: (u16, u16)) -> State {
        State {
            theme: Theme { colour },
            size,
            view: View::Functions,
            sort: Sort::Own,
            kind: Kind::All,
            direction: Direction::OutermostFirst,
            naming: Naming::default(),
            frames: Frames::default(),
            overlay: Overlay::None,
            overlay_top: 0,
            filter: String::new(),
            editing: false,
            paused: false,
            marks: Vec::new(),
            marks_set: 0,
            compared: None,
            history: VecDeque::new(),
            report: None,
            model: None,
            functions: Vec::new(),
            tree: Vec::new(),
            tree_cut: false,
            unfolded: HashSet::new(),
            in_functions: Place::default(),
            in_tree: Place::default(),
            message: None,
            message_age: 0,
            messages: VecDeque::new(),
            job: None,
            heap: None,
            heap_taking: false,
            heap_wanted: None,
        }
    }

    /// Handles an event; true when the user quits.
    pub(super) fn update(&mut self, input: Input) -> bool {
        match input {
            Input::Key(key) => return keys::press(self, key),
            Input::Resize(columns, lines) => {
                self.size = (columns, lines);
                self.stay_in_sight();
            }
            Input::Report(report) => self.take_report(report),
            Input::ReportError(why) if self.report.is_none() => self.show_message(why),
            Input::ReportError(why) => self.show_message(format!("no new report: {why}")),
            Input::Model(model) => self.show_model(&model),
            Input::Heap(taken) => {
                (self.heap, self.heap_taking) = (Some(heap::text(&taken)), false);
                self.stay_in_sight();
            }
            Input::Message(text) => self.queue_message(text),
        }
        false
    }

    /// Shows a message when the one before it was seen.
    fn queue_message(&mut self, text: String) {
        let is_new = self.message.is_some() && self.message_age < SEEN_REPORTS;
        if is_new && self.messages.len() < MOST_MESSAGES {
            self.messages.push_back(text);
        } else {
            self.show_message(text);
        }
    }

    /// Shows a message for a while.
    pub(super) fn show_message(&mut self, text: String) {
        self.message = Some(text);
        self.message_age = 0;
    }

    fn take_report(&mut self, report: Arc<Report>) {
        self.message_age += 1;
        if self.message_age >= SEEN_REPORTS
            && let Some(next) = self.messages.pop_front()
        {
            self.show_message(next);
        } else if self.message_age > MESSAGE_REPORTS {
            self.message = None;
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history
            .push_back(report.profile.total.usage.resident());
        if !self.paused {
            self.report = Some(report);
            self.request_model();
        }
    }

    /// Requests a model for the current settings.
    pub(super) fn request_model(&mut self) {
        let Some(report) = &self.report else {
            return;
        };
        let mark = self.compared.and_then(|at| self.marks.get(at));
        self.job = Some(Job {
            report: Arc::clone(report),
            mark: mark.map(|m| Arc::clone(&m.report)),
            kind: self.kind,
            direction: self.direction,
            naming: self.naming,
            frames: self.frames,
            filter: self.filter.clone(),
        });
    }

    /// Recomputes the model's rows; the cursor stays on its function or node. In the function list, a cursor
    /// on the first row stays on the first row instead.
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

    /// Recomputes the rows after sorting or unfolding changed.
    pub(super) fn relist(&mut self) {
        if let Some(model) = self.model.clone() {
            self.show_model(&model);
        }
    }

    /// The number of visible rows.
    pub(super) fn page(&self) -> usize {
        let lines = self.size.1;
        let told = super::render::advice_lines(self).len() + heap::lines(self).len();
        let used = super::render::header_lines(self, lines) + told as u16 + FRAME_LINES;
        usize::from(lines.saturating_sub(used)).max(1)
    }

    pub(super) fn place(&self) -> (Place, usize) {
        match self.view {
            View::Functions => (self.in_functions, self.functions.len()),
            View::Tree => (self.in_tree, self.tree.len()),
        }
    }

    /// Moves the cursor of the visible list.
    pub(super) fn go(&mut self, to: usize) {
        let page = self.page();
        match self.view {
            View::Functions => self.in_functions.go(to, self.functions.len(), page),
            View::Tree => self.in_tree.go(to, self.tree.len(), page),
        }
    }

    /// Keeps the cursors in view after the list became lower.
    pub(super) fn stay_in_sight(&mut self) {
        let page = self.page();
        for (place, rows) in [
            (&mut self.in_functions, self.functions.len()),
            (&mut self.in_tree, self.tree.len()),
        ] {
            place.go(place.cursor, rows, page);
        }
    }

    /// Adds unfolded keys. Above `MOST_UNFOLDED` keys, forgets those of unlisted nodes first.
    pub(super) fn unfold(&mut self, keys: Vec<u64>) {
        if self.unfolded.len() > MOST_UNFOLDED {
            let listed: HashSet<u64> = self.tree.iter().map(|r| r.key).collect();
            self.unfolded.retain(|key| listed.contains(key));
        }
        self.unfolded.extend(keys);
    }

    pub(super) fn selected_node(&self) -> Option<&TreeRow> {
        self.tree.get(self.in_tree.cursor)
    }
}
