//! The table of functions and the call tree.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use crate::tui::model::{Model, Pair};
use crate::tui::rows::{FunctionRow, TreeRow};
use crate::tui::state::UiState;
use crate::tui::view::{Sort, View};
use crate::tui::words::{change, estimate, figure, percent};
use memprof_profile::tree::{CHAIN, SELF};
use memprof_sys::text::printable;

/// Indentation per level and its maximum, in columns.
const STEP: usize = 2;
const MAX_INDENT: usize = 40;
/// Narrower screens show one figure per row, to leave space for names.
const WIDE: u16 = 50;

/// Whether the screen has space for only one figure per row.
pub(super) fn is_narrow(state: &UiState) -> bool {
    state.size.0 < WIDE
}

/// The column headings with the current settings.
pub(super) fn heading(state: &UiState) -> String {
    let difference = state.model.as_ref().is_some_and(|m| m.is_difference);
    let unit = state.kind.unit().symbol();
    let [own, total] = ["self", "total"].map(|column| format!("{column} {unit}"));
    let columns = match (state.view == View::Tree, difference) {
        (is_tree, _) if is_narrow(state) => {
            let figure = match (is_tree, difference, state.sort) {
                (true, true, _) => "change",
                (true, false, _) => unit,
                (false, true, Sort::Total) => "total chg.",
                (false, true, _) => "self change",
                (false, false, Sort::Total) => &total,
                (false, false, _) => &own,
            };
            format!("{figure:>11}")
        }
        (false, false) => format!("{:>11} {:>5} {:>12} {:>5}", own, "%", total, "%"),
        (false, true) => format!("{:>11} {:>11} {:>11}", "self change", "total chg.", total),
        (true, false) => format!("{:>11} {:>5}", unit, "%"),
        (true, true) => format!("{:>11} {:>11}", "change", unit),
    };
    let width = usize::from(state.size.0);
    format!("{:<width$}", format!("{columns}  {}", super::chosen(state)))
}

pub(super) fn render(state: &UiState, frame: &mut Frame<'_>, area: Rect) {
    let Some(model) = &state.model else {
        return;
    };
    let (place, rows) = state.place();
    let seen = place.top..rows.min(place.top + usize::from(area.height));
    let mut lines: Vec<Line<'_>> = seen
        .map(|at| {
            let text = match state.view {
                View::Tree => tree_line(state, model, at),
                _ => function_line(state, model, state.functions[at]),
            };
            row(text, at == place.cursor, state)
        })
        .collect();
    if rows == 0 {
        lines.push(Line::styled("             nothing", state.theme.dim()));
    }
    if state.view == View::Tree && state.tree_cut && lines.len() < usize::from(area.height) {
        lines.push(Line::styled("             and more", state.theme.dim()));
    }
    frame.render_widget(super::paragraph(lines), area);
}

/// A row of a list.
pub(super) fn row(text: String, is_selected: bool, state: &UiState) -> Line<'static> {
    match is_selected {
        true => {
            let width = usize::from(state.size.0);
            Line::styled(format!("{text:<width$}"), state.theme.selected())
        }
        false => Line::raw(text),
    }
}

fn function_line(state: &UiState, model: &Model, row: FunctionRow) -> String {
    let (own, total) = row.pairs(model);
    let name = printable(row.name(model));
    let whole = model.whole.now;
    let (shown, changed) = writers(model);
    let [own_error, total_error] = row.errors(model);
    match model.is_difference {
        _ if is_narrow(state) => {
            let (pair, error) = match state.sort {
                Sort::Total => (total, total_error),
                Sort::Own | Sort::Name => (own, own_error),
            };
            let figure = match model.is_difference {
                true => changed(pair),
                false => estimate(model.unit, pair.now, error),
            };
            format!("{figure:>11}  {name}")
        }
        false => format!(
            "{:>11} {:>5} {:>12} {:>5}  {name}",
            estimate(model.unit, own.now, own_error),
            percent(own.now, whole),
            estimate(model.unit, total.now, total_error),
            percent(total.now, whole)
        ),
        true => format!(
            "{:>11} {:>11} {:>11}  {name}",
            changed(own),
            changed(total),
            shown(total)
        ),
    }
}

/// Formatters of a pair's current figure and of its change, in the model's unit.
fn writers(model: &Model) -> (impl Fn(Pair) -> String, impl Fn(Pair) -> String) {
    let unit = model.unit;
    (
        move |pair: Pair| figure(unit, pair.now),
        move |pair: Pair| change(unit, pair.then, pair.now),
    )
}

fn tree_line(state: &UiState, model: &Model, at: usize) -> String {
    let rows = &state.tree;
    let row = &rows[at];
    let is_chain = at > 0 && rows[row.above].depth == row.depth;
    let chain = if is_chain { CHAIN } else { "" };
    let indent = (row.depth * STEP).min(MAX_INDENT);
    let sign = match row.open {
        Some(true) => '-',
        Some(false) => '+',
        None => ' ',
    };
    let name = node_name(model, row);
    let amounts = amounts(state, model, row);
    format!("{amounts}  {:indent$}{sign} {chain}{name}", "")
}

fn amounts(state: &UiState, model: &Model, row: &TreeRow) -> String {
    let pair = row.pair;
    let estimated = || estimate(model.unit, pair.now, row.error);
    let (shown, changed) = writers(model);
    match model.is_difference {
        true if is_narrow(state) => format!("{:>11}", changed(pair)),
        false if is_narrow(state) => format!("{:>11}", estimated()),
        false => {
            let share = percent(pair.now, model.whole.now);
            format!("{:>11} {share:>5}", estimated())
        }
        true => format!("{:>11} {:>11}", changed(pair), shown(pair)),
    }
}

fn node_name(model: &Model, row: &TreeRow) -> String {
    match row.ends {
        true => SELF.to_owned(),
        false => printable(model.name(row.node)).into_owned(),
    }
}

/// The full name of the selected row.
pub(super) fn selected_name(state: &UiState) -> String {
    let Some(model) = &state.model else {
        return String::new();
    };
    let (place, _) = state.place();
    let name = match state.view {
        View::Tree => state
            .tree
            .get(place.cursor)
            .map(|row| node_name(model, row)),
        _ => state
            .functions
            .get(place.cursor)
            .map(|row| printable(row.name(model)).into_owned()),
    };
    end_of(name.unwrap_or_default(), state)
}

/// A text; only its end if it does not fit.
pub(super) fn end_of(name: String, state: &UiState) -> String {
    let (width, long) = (usize::from(state.size.0), name.chars().count());
    match long.checked_sub(width) {
        Some(over) if over > 0 => {
            let end: String = name.chars().skip(over + 1).collect();
            format!("…{end}")
        }
        _ => name,
    }
}
