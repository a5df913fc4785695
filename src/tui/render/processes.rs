//! Draws the lists of processes and control groups, below their sums.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::lists::{end_of, is_narrow, row};
use crate::tui::list::{AmountsNowAndThen, Column, List, ListRow};
use crate::tui::state::UiState;
use crate::tui::view::View;
use crate::tui::words::{change, figure, percent};
use memprof_profile::Kind;
use memprof_sys::text::printable;

/// Kinds that get a column beside the chosen one, as far as the width allows.
const FURTHER: [Kind; 6] = [
    Kind::Anon,
    Kind::File,
    Kind::Shmem,
    Kind::Swap,
    Kind::Cache,
    Kind::Hugetlb,
];
/// Widths in characters: a figure with its space, the share, the number, a process's name with its spaces (the kernel
/// limits names to 15 bytes), and the minimum for the place.
const FIGURE: usize = 12;
const SHARE: usize = 6;
const NUMBER: usize = 8;
const NAME: usize = 17;
const PLACE: usize = 14;
const GROUP: usize = 30;

/// The kinds that get a column beside the chosen one.
pub(in crate::tui) fn further_kinds(state: &UiState) -> Vec<Kind> {
    if is_narrow(state) {
        return Vec::new();
    }
    let second = match is_difference(state) {
        true => FIGURE,
        false => SHARE,
    };
    let rest = match state.view {
        View::Groups => GROUP,
        _ => NAME + PLACE,
    };
    let room = usize::from(state.size.0).saturating_sub(FIGURE - 1 + second + NUMBER + rest);
    let kinds = FURTHER.into_iter().filter(|kind| *kind != state.kind);
    kinds.take(room / FIGURE).collect()
}

fn is_difference(state: &UiState) -> bool {
    state.marks.compared().is_some()
}

/// The column headings with the current settings.
pub(super) fn heading(state: &UiState) -> String {
    let unit = state.kind.unit().symbol();
    let mut columns = match (is_difference(state), is_narrow(state)) {
        (true, true) => format!("{:>11}", "change"),
        (true, false) => format!("{:>11} {unit:>11}", "change"),
        (false, true) => format!("{unit:>11}"),
        (false, false) => format!("{unit:>11} {:>5}", "%"),
    };
    if !is_narrow(state) {
        for kind in further_kinds(state) {
            columns += &format!(" {:>11}", kind.name());
        }
        let number = match state.view {
            View::Groups => "procs",
            _ => "pid",
        };
        columns += &format!(" {number:>7}");
    }
    let width = usize::from(state.size.0);
    format!("{:<width$}", format!("{columns}  {}", super::chosen(state)))
}

/// The listed objects and their order: `processes by pid, reversed`.
pub(super) fn order(state: &UiState) -> String {
    let order = &state.lists.order;
    let (what, number) = match state.view {
        View::Groups => ("groups", "number"),
        _ => ("processes", "pid"),
    };
    let by = match order.sort {
        Column::Chosen if is_difference(state) => "change",
        Column::Chosen => "size",
        Column::Kind(kind) => kind.name(),
        Column::Number => number,
        Column::Name if state.view == View::Groups => "group",
        Column::Name => "name",
        Column::Place => "group",
    };
    let reversed = match order.reversed {
        true => ", reversed",
        false => "",
    };
    format!("{what} by {by}{reversed}")
}

/// Draws the sum and the visible rows.
pub(super) fn render(state: &UiState, frame: &mut Frame<'_>, sum: Rect, area: Rect) {
    let Some(list) = state.list() else {
        return;
    };
    frame.render_widget(
        Line::styled(sum_line(state, list), state.theme.heading()),
        sum,
    );
    let first = list.place.top;
    let seen = list.rows.iter().enumerate().skip(first);
    let seen = seen.take(usize::from(area.height));
    let mut lines: Vec<Line<'_>> = seen
        .map(|(at, line)| row(line_of(state, list, line), at == list.place.cursor, state))
        .collect();
    if list.rows.is_empty() {
        lines.push(Line::styled("             nothing", state.theme.dim()));
    }
    frame.render_widget(super::paragraph(lines), area);
}

fn figures(state: &UiState, list: &List, figures: AmountsNowAndThen) -> String {
    let (pair, unit) = (figures.pair(state.kind), state.kind.unit());
    let now = figure(unit, pair.now);
    let changed = change(unit, pair.then, pair.now);
    let mut text = match (is_difference(state), is_narrow(state)) {
        (true, true) => return format!("{changed:>11}"),
        (false, true) => return format!("{now:>11}"),
        (true, false) => format!("{changed:>11} {now:>11}"),
        (false, false) => {
            let whole = list.whole.pair(state.kind).now;
            format!("{now:>11} {:>5}", percent(pair.now, whole))
        }
    };
    for kind in further_kinds(state) {
        let now = figure(kind.unit(), kind.figure(&figures.now));
        text += &format!(" {now:>11}");
    }
    text
}

/// The number of rows and the sum of their memory.
fn sum_line(state: &UiState, list: &List) -> String {
    let figures = figures(state, list, list.sum);
    let what = match (state.view, list.listed) {
        (View::Groups, 1) => "group",
        (View::Groups, _) => "groups",
        (_, 1) => "process",
        _ => "processes",
    };
    let of_all = match list.listed == list.all {
        true => String::new(),
        false => format!(" of {}", list.all),
    };
    let ended = state.report.as_ref().map(|report| &report.profile.ended);
    let ended = match (ended.map_or(0, |ended| ended.processes.len()), state.view) {
        (0, _) => String::new(),
        (n, View::Groups) => format!(" ({n} processes ended)"),
        (n, _) => format!(" ({n} more ended)"),
    };
    let count = list.listed;
    match is_narrow(state) {
        true => format!("{figures}  {count} {what}{of_all}{ended}"),
        false => format!("{figures} {count:>7}  {what}{of_all}{ended}"),
    }
}

fn line_of(state: &UiState, list: &List, row: &ListRow) -> String {
    let figures = figures(state, list, row.figures);
    let name = printable(&row.name);
    let number = match row.subset {
        Some(_) => row.number.to_string(),
        None => String::new(),
    };
    let gone = if row.is_gone { "(ended) " } else { "" };
    let mut line = match (is_narrow(state), name.is_empty()) {
        (true, true) => format!("{figures}  {gone}"),
        (true, false) => return format!("{figures}  {gone}{number} {name}"),
        (false, true) => format!("{figures} {number:>7}  {gone}"),
        (false, false) => {
            let name = format!("{gone}{name}");
            format!("{figures} {number:>7}  {name:<15}  ")
        }
    };
    let room = usize::from(state.size.0).saturating_sub(line.chars().count());
    line += &fitted(&printable(&row.place), room);
    line
}

/// A place in at most `room` columns. A long path of a control group is cut at its beginning, because the
/// end is more informative.
fn fitted(place: &str, room: usize) -> String {
    let long = place.chars().count();
    match place.starts_with('/') && long > room && room > 0 {
        true => {
            let end = place.chars().skip(long + 1 - room);
            format!("…{}", end.collect::<String>())
        }
        false => place.to_owned(),
    }
}

/// All information about the selected row except its figures.
pub(super) fn selected_name(state: &UiState) -> String {
    let Some(row) = state.selected() else {
        return String::new();
    };
    let title = match row.subset {
        Some(_) => row.title(),
        None => row.name.clone(),
    };
    let text = match state.view {
        View::Processes if !row.place.is_empty() => format!("{title}  {}", row.place),
        _ => title,
    };
    end_of(printable(&text).into_owned(), state)
}
