//! Advice for when most memory has no stack because it was allocated before memprof attached, and the notes of the overview.

use ratatui::text::Line;

use crate::tui::state::UiState;
use crate::tui::view::View;
use crate::tui::words::percent;
use crate::tui::wrap::wrapped_to;
use memprof_profile::Unobserved;
use memprof_sys::text::printable;

/// Narrower screens show a short form.
const WIDE: u16 = 78;
/// Lower screens show no advice.
const HIGH: u16 = 18;

/// The part of the screen's height that notes may have.
const NOTES: u16 = 8;

/// The advice, or in the overview the notes. The advice is empty if most memory has a stack, or if the view shows changes,
/// which have stacks, or a list without stacks.
pub(in crate::tui) fn lines(state: &UiState) -> Vec<Line<'static>> {
    if state.view == View::Overview {
        return notes(state);
    }
    let Some(report) = state.shown().filter(|_| !state.view.is_list()) else {
        return Vec::new();
    };
    let rows = report.profile.not_observed.iter();
    let before = rows.filter(|row| row.reason == Unobserved::BeforeAttach);
    let before: u64 = before.map(|row| state.kind.figure(&row.amounts)).sum();
    let whole = state.kind.figure(&report.profile.total);
    if before <= whole / 2 || state.marks.compared().is_some() || state.size.1 < HIGH {
        return Vec::new();
    }
    let share = percent(before, whole);
    let text = match (state.size.0 >= WIDE, state.marks.newest()) {
        (true, None) => vec![
            format!(
                "{share} % was there before memprof attached, so its stacks are unknown. What to do:"
            ),
            "m now, d later for the change by stack; all of it: `memprof top -- COMMAND`"
                .to_owned(),
        ],
        (true, Some(mark)) => vec![
            format!("{share} % was there before memprof attached, so its stacks are unknown."),
            format!("d: what has changed since mark {}, by stack", mark.number),
        ],
        (false, None) => vec![format!("{share} % is old: m, then d")],
        (false, Some(_)) => vec![format!("{share} % is old: press d")],
    };
    let line = |text| Line::styled(text, state.theme.accent());
    text.into_iter().map(line).collect()
}

/// What makes figures weaker or needs an act.
fn notes(state: &UiState) -> Vec<Line<'static>> {
    let (width, height) = state.size;
    let most = usize::from(height / NOTES);
    let mut lines = Vec::new();
    let notes = state.model.iter().flat_map(|model| &model.overview.notes);
    for note in notes {
        let left = most.saturating_sub(lines.len());
        lines.extend(wrapped_to(&printable(&note.text), width.into(), left));
    }
    let line = |text| Line::styled(text, state.theme.bad());
    lines.into_iter().map(line).collect()
}
