//! Draws a state. Pure: the same state gives the same frame.

mod advice;
mod header;
mod lists;
mod overlay;
mod overview;
mod processes;

use std::sync::Arc;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::state::UiState;
use super::view::{Sort, View};
use memprof_profile::tree::{Direction, Merge};
use memprof_profile::{FrameFilter, Kind, Report};
use memprof_sys::text::printable;

pub(super) use advice::lines as advice_lines;
pub(super) use header::lines as header_lines;
pub(super) use overlay::lines as overlay_lines;
pub(super) use overview::tops as overview_tops;
pub(super) use processes::further_kinds;

/// Draws the whole screen.
pub(super) fn render(state: &UiState, frame: &mut Frame<'_>) {
    let area = frame.area();
    let advice = advice::lines(state);
    let heap = state.heap_lines().into_iter();
    let heap: Vec<Line<'_>> = heap.map(Line::raw).collect();
    let is_list = state.view.is_list();
    let has_rows = u16::from(state.view != View::Overview);
    let parts = [
        Constraint::Length(header::lines(state, area.height)),
        Constraint::Length(advice.len() as u16),
        Constraint::Length(heap.len() as u16),
        Constraint::Length(has_rows),
        Constraint::Length(u16::from(is_list)),
        Constraint::Min(1),
        Constraint::Length(has_rows),
        Constraint::Length(1),
    ];
    let [
        head,
        what_to_do,
        newest_heap,
        columns,
        sum,
        list,
        detail,
        bottom,
    ] = Layout::vertical(parts).areas(area);
    header::render(state, frame, head);
    frame.render_widget(paragraph(advice), what_to_do);
    frame.render_widget(paragraph(heap), newest_heap);
    let (tops, name) = match state.view {
        View::Overview => Default::default(),
        View::Functions | View::Tree => (lists::heading(state), lists::selected_name(state)),
        View::Processes | View::Groups => {
            (processes::heading(state), processes::selected_name(state))
        }
    };
    frame.render_widget(Line::styled(tops, state.theme.selected()), columns);
    match state.view {
        View::Overview => overview::render(state, frame, list),
        View::Functions | View::Tree => lists::render(state, frame, list),
        View::Processes | View::Groups => processes::render(state, frame, sum, list),
    }
    frame.render_widget(Line::styled(name, state.theme.dim()), detail);
    frame.render_widget(bottom_line(state, bottom), bottom);
    overlay::render(state, frame, area);
}

/// The filter input, the message, or the key hints.
fn bottom_line(state: &UiState, area: Rect) -> Line<'static> {
    let accent = state.theme.accent();
    if state.editing {
        return Line::from(vec![
            Span::styled("filter: ", accent),
            Span::raw(printable(state.filter()).into_owned()),
            Span::styled("_", accent),
        ]);
    }
    if let Some(message) = state.messages.shown() {
        return Line::raw(printable(message).into_owned());
    }
    let mut spans = Vec::new();
    // The help lists all keys, so its hint always gets space.
    let mut left = usize::from(area.width).saturating_sub("? help".len() + 2);
    for (key, what) in keys(state) {
        // A key that does not fit is left out, not truncated.
        let needed = if key == "?" {
            0
        } else {
            key.len() + what.len() + 3
        };
        let Some(rest) = left.checked_sub(needed) else {
            continue;
        };
        left = rest;
        spans.push(Span::styled(key, accent));
        spans.push(Span::raw(format!(" {what}  ")));
    }
    Line::from(spans)
}

/// The hints for keys that are useful in this view.
fn keys(state: &UiState) -> Vec<(&'static str, &'static str)> {
    let mut keys = vec![("q", "end")];
    let several = |report: &Arc<Report>| !report.profile.processes.is_empty();
    match state.view {
        View::Overview => keys.push(("Tab", "functions")),
        View::Functions => keys.extend([("Tab", "tree"), ("v", "overview")]),
        View::Tree => keys.push(("Tab", "overview")),
        View::Processes => keys.push(("Tab", "groups")),
        View::Groups => keys.push(("Tab", "processes")),
    }
    match (state.view.is_list(), &state.part) {
        (true, _) => keys.extend([("Enter", "show"), ("Esc", "back")]),
        (false, Some(_)) => keys.push(("Esc", "back")),
        (false, None) if state.report.as_ref().is_some_and(several) => {
            keys.push(("P", "processes"));
        }
        (false, None) => {}
    }
    let settings = [
        ("/", "filter"),
        ("n", "kind"),
        ("s", "sort"),
        ("S", "reverse"),
    ];
    keys.extend(match state.view {
        View::Overview => &[("h", "heap"), ("[ ]", "moments"), ("M", "peak")],
        View::Functions => &settings[..3],
        View::Tree => &settings[..2],
        View::Processes | View::Groups => &settings[..],
    });
    if state.view == View::Overview {
        keys.extend([
            ("p", "pause"),
            ("m", "mark"),
            ("i", "details"),
            ("?", "help"),
        ]);
        return keys;
    }
    keys.extend([
        ("p", "pause"),
        ("m", "mark"),
        ("d", "change"),
        ("i", "details"),
        ("h", "heap"),
        ("?", "help"),
    ]);
    keys
}

/// The current settings: `functions by self, anon, change since mark 2, "malloc"`.
fn chosen(state: &UiState) -> String {
    let mut words = match (state.view, state.sort, state.direction) {
        (View::Overview, ..) => "overview".to_owned(),
        (View::Functions, Sort::Own, _) => "functions by self".to_owned(),
        (View::Functions, Sort::Total, _) => "functions by total".to_owned(),
        (View::Functions, Sort::Name, _) => "functions by name".to_owned(),
        (View::Tree, _, Direction::OutermostFirst) => "tree of callees".to_owned(),
        (View::Tree, _, Direction::InnermostFirst) => "tree of callers".to_owned(),
        (View::Processes | View::Groups, ..) => processes::order(state),
    };
    if state.view == View::Tree && state.naming.merge == Merge::Site {
        words += ", by call site";
    }
    if !state.view.is_list() {
        match state.frames {
            FrameFilter::Source => {}
            FrameFilter::All => words += ", with native",
            FrameFilter::Native => words += ", native",
        }
        if !state.naming.inlined {
            words += ", without inlined";
        }
    }
    if state.kind != Kind::All {
        let profile = state.report.as_ref().map(|report| &report.profile);
        let kind = profile.map_or(state.kind.label().into(), |p| p.label(state.kind));
        words += &format!(", {kind} only");
    }
    if let Some(mark) = state.marks.compared() {
        words += &format!(", change since mark {}", mark.number);
    }
    if !state.filter().is_empty() {
        words += &format!(", \"{}\"", printable(state.filter()));
    }
    words
}

fn paragraph<'a>(lines: Vec<Line<'a>>) -> Paragraph<'a> {
    Paragraph::new(lines)
}
