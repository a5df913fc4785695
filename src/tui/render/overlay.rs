//! The overlays: the help, and the details of unwind outcomes, memory without a stack, and losses.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear};

use crate::tui::keys::HELP;
use crate::tui::state::UiState;
use crate::tui::view::Overlay;
use crate::tui::words::kib;
use crate::tui::wrap::wrapped;
use memprof_profile::Profile;
use memprof_profile::tree::Label;
use memprof_sys::text::printable;

/// Maximum number of listed mappings.
const MAX_MAPPINGS: usize = 200;
/// Width of the help's key column. The description of a longer key starts right after the key.
const KEYS: usize = 13;
/// In narrower helps, the description is below its key.
const WIDE: usize = 50;

pub(super) fn render(state: &UiState, frame: &mut Frame<'_>, area: Rect) {
    let title = match state.overlay {
        Overlay::None => return,
        Overlay::Help => " Keys ",
        Overlay::Details => " Stacks and losses ",
    };
    let lines = lines(state);
    let height = (lines.len() as u16).saturating_add(2).min(area.height);
    let width = area.width.min(100);
    let over = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered()
        .title(title)
        .title_bottom(" Up, Down: more; any other key: back ");
    let top = state.overlay_top.min(usize::from(u16::MAX)) as u16;
    frame.render_widget(Clear, over);
    frame.render_widget(super::paragraph(lines).scroll((top, 0)).block(block), over);
}

/// The lines of the current overlay.
pub(in crate::tui) fn lines(state: &UiState) -> Vec<Line<'static>> {
    match (state.overlay, state.shown()) {
        (Overlay::Help, _) => help(state),
        (Overlay::Details, Some(report)) => details(&report.profile, state),
        (Overlay::Details, None) => vec![Line::raw("no report yet")],
        (Overlay::None, _) => Vec::new(),
    }
}

fn help(state: &UiState) -> Vec<Line<'static>> {
    // Width inside the border.
    let width = usize::from(state.size.0.clamp(12, 100)) - 2;
    let narrow = width < WIDE;
    let mut lines = Vec::new();
    for (key, what) in HELP {
        let styled = |width: usize| Span::styled(format!("{key:<width$} "), state.theme.accent());
        if narrow {
            lines.push(Line::from(styled(0)));
            let what = wrapped(what, width - 2).into_iter();
            lines.extend(what.map(|part| Line::raw(format!("  {part}"))));
        } else {
            // Continuation lines are indented to the description, not to the keys.
            let left = key.chars().count().max(KEYS) + 1;
            for (at, part) in wrapped(what, width - left).into_iter().enumerate() {
                let first = if at == 0 {
                    styled(KEYS)
                } else {
                    Span::raw(" ".repeat(left))
                };
                lines.push(Line::from(vec![first, Span::raw(part)]));
            }
        }
    }
    lines.push(Line::raw(""));
    for text in [
        "self: stacks whose innermost function it is; total: all that pass through it.",
        "Memory stands under the call that used it first; 1 KiB is 1,024 bytes.",
    ] {
        lines.extend(wrapped(text, width).into_iter().map(Line::raw));
    }
    lines
}

fn details(profile: &Profile, state: &UiState) -> Vec<Line<'static>> {
    let heading = |text: &'static str| Line::styled(text, state.theme.heading());
    let row = |bytes: u64, what: String| Line::raw(format!("{:>12} KiB  {what}", kib(bytes)));
    let mut lines = vec![heading("Stacks")];
    for (outcome, stacks, bytes) in profile.outcomes() {
        lines.push(row(bytes, format!("{stacks} stacks {}", outcome.label())));
    }
    lines.push(heading("Memory without a stack"));
    let mut mappings: Vec<_> = profile.not_observed.iter().collect();
    mappings.retain(|m| m.amounts.usage.value() > 0);
    mappings.sort_by_key(|m| Reverse(m.amounts.usage.value()));
    if mappings.is_empty() {
        lines.push(Line::raw("none"));
    }
    for mapping in mappings.iter().take(MAX_MAPPINGS) {
        let label = Label::NotObserved(&mapping.mapping, mapping.reason).to_string();
        lines.push(row(
            mapping.amounts.usage.value(),
            printable(&label).into_owned(),
        ));
    }
    let rest = mappings.get(MAX_MAPPINGS..).unwrap_or_default();
    if !rest.is_empty() {
        let bytes = rest.iter().map(|m| m.amounts.usage.value()).sum();
        lines.push(row(bytes, format!("{} more mappings", rest.len())));
    }
    lines.push(heading("Losses"));
    if profile.losses.lost().next().is_none() {
        lines.push(Line::raw("none"));
    }
    for (what, count) in profile.losses.lost() {
        lines.push(Line::styled(
            format!("{count:>12}      {what}"),
            state.theme.bad(),
        ));
    }
    if profile.losses.not_counted().next().is_some() {
        lines.push(heading("Not counted, in no figure here"));
    }
    for (what, count) in profile.losses.not_counted() {
        lines.push(Line::raw(format!("{count:>12}      {what}")));
    }
    lines
}
