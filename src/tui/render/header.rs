//! The header: the target, its totals next to the kernel's, unwind outcomes, losses, and the curve.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline};

use crate::tui::state::UiState;
use crate::tui::theme::Theme;
use crate::tui::view::View;
use crate::tui::words::{clock, kib, percent, with_margin};
use memprof_profile::measure::{ALLOC_SPACE, INUSE_OBJECTS, INUSE_SPACE};
use memprof_profile::{Agreement, Kind, Outcome, Profile, Verdict};
use memprof_sys::text::printable;

const LIVE: Kind = Kind::Column(INUSE_SPACE);
const OBJECTS: Kind = Kind::Column(INUSE_OBJECTS);
const ALLOCATED: Kind = Kind::Column(ALLOC_SPACE);

/// Number of text lines, and of those above the overview, whose cards have the other figures.
const WORDS: u16 = 4;
const OVERVIEW_WORDS: u16 = 2;
/// Height of the screen from which on there is a curve, in lines, and with an overview.
const HIGH: u16 = 18;
const HIGH_OVERVIEW: u16 = 24;
/// Width of the screen from which on a sentence fits, in columns.
const ANSWER_WIDTH: usize = 70;
/// Number of lines for the curve.
const CURVE: u16 = 2;

/// The header's height on a screen of `of` lines. A small screen has no curve, and a very small one only the first
/// line.
pub(in crate::tui) fn lines(state: &UiState, of: u16) -> u16 {
    let words = words(state);
    let high = match state.view {
        View::Overview => HIGH_OVERVIEW,
        _ => HIGH,
    };
    match of {
        of if of >= high => words + CURVE + 1 + u16::from(answer(state).is_some()),
        10.. => words,
        _ => 1,
    }
}

/// The number of text lines: one more if the heap is counted.
fn words(state: &UiState) -> u16 {
    if state.view == View::Overview {
        return OVERVIEW_WORDS;
    }
    let profile = state.report.as_ref().map(|report| &report.profile);
    let heap = profile.is_some_and(|profile| profile.counts(LIVE));
    WORDS + u16::from(heap)
}

pub(super) fn render(state: &UiState, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = vec![title(state)];
    if let Some(report) = state.shown() {
        let profile = &report.profile;
        lines.push(resident(profile, state.theme));
        if state.view != View::Overview {
            lines.push(further(profile));
            if profile.counts(LIVE) {
                lines.push(heap(profile));
            }
            lines.push(stacks(profile, state.theme));
        }
    }
    // A small screen has no space for it.
    let answer = answer(state).filter(|_| area.height > words(state));
    let height = words(state) + u16::from(answer.is_some());
    lines.extend(answer.map(|text| Line::styled(text, state.theme.heading())));
    let words = Rect {
        height: area.height.min(height),
        ..area
    };
    frame.render_widget(super::paragraph(lines), words);
    if area.height > height {
        let rest = area.height - height;
        let curve = Rect {
            y: area.y + height,
            height: rest,
            ..area
        };
        render_curve(state, frame, curve);
    }
}

/// What the shown report says first, above a table.
fn answer(state: &UiState) -> Option<String> {
    let width = usize::from(state.size.0);
    let is_wanted = matches!(state.view, View::Functions | View::Tree);
    let model = state.model.as_ref();
    let model = model.filter(|_| is_wanted && width >= ANSWER_WIDTH)?;
    let answer = model.overview.answer();
    let answer = printable(&answer);
    Some(match answer.chars().count() > width {
        true => answer.chars().take(width - 1).chain(['…']).collect(),
        false => answer.into_owned(),
    })
}

fn title(state: &UiState) -> Line<'static> {
    let theme = state.theme;
    let mut spans = vec![Span::styled("memprof  ", theme.accent())];
    // First, so that a narrow screen has it, too.
    if state.paused {
        let peak = state.report.as_ref().and_then(|report| report.profile.peak);
        let why = match state.moments.shown {
            true if peak.is_some_and(|peak| peak.is_shown) => "PEAK  ",
            true => "RECORDED  ",
            false => "PAUSED  ",
        };
        spans.push(Span::styled(why, theme.bad()));
    }
    match (&state.report, &state.part) {
        (None, _) => spans.push(Span::raw("waiting for the first report")),
        (Some(report), None) => {
            let target = &report.profile.target;
            let name = format!("{} (pid {})", printable(&target.comm), target.pid);
            spans.push(Span::styled(name, theme.heading()));
            match target.pids.len() {
                0 | 1 => {}
                n => spans.push(Span::raw(format!(" and {} more processes", n - 1))),
            }
            if !target.alive {
                spans.push(Span::styled("  ENDED, last report", theme.bad()));
            }
            spans.push(Span::raw(format!("  {}", clock(report.profile.taken))));
        }
        (Some(_), Some(part)) => {
            let name = printable(&part.name).into_owned();
            spans.push(Span::styled(name, theme.heading()));
            let Profile { target, taken, .. } = &*part.report.profile;
            match target.pids.len() {
                0 | 1 => {}
                all => {
                    let inside = part.inside.len();
                    spans.push(Span::raw(format!(", {inside} of {all} processes")));
                }
            }
            if part.has_ended || !target.alive {
                spans.push(Span::styled("  ENDED, last figures", theme.bad()));
            }
            spans.push(Span::raw(format!("  {}", clock(*taken))));
        }
    }
    Line::from(spans)
}

fn resident(profile: &Profile, theme: Theme) -> Line<'static> {
    let total = &profile.total.usage;
    let Agreement {
        ours, low, high, ..
    } = profile.agreement();
    let (badge, style) = match profile.agreement().verdict() {
        Verdict::Incomplete => ("incomplete: processes missing".to_owned(), theme.bad()),
        Verdict::Equal => ("= kernel".to_owned(), theme.good()),
        Verdict::Between => (
            "between two readings of the kernel".to_owned(),
            theme.good(),
        ),
        Verdict::Below => (format!("{} KiB below kernel", kib(low - ours)), theme.bad()),
        Verdict::Above => (
            format!("{} KiB above kernel", kib(ours - high)),
            theme.bad(),
        ),
    };
    Line::from(vec![
        Span::raw("resident "),
        Span::styled(format!("{} KiB ", kib(total.resident())), theme.heading()),
        Span::styled(badge, style),
        Span::raw(format!(
            "   anon {}  shmem {}",
            kib(total.anon),
            kib(total.shmem)
        )),
    ])
}

fn further(profile: &Profile) -> Line<'static> {
    let t = &profile.total.usage;
    Line::raw(format!(
        "page cache {} KiB   file maps {}  swapped {}  hugetlb {}  page tables {}",
        kib(t.cache),
        kib(t.file),
        kib(t.swap),
        kib(t.hugetlb),
        kib(profile.kernel_after.page_tables)
    ))
}

/// Live and allocated heap memory with errors; both are estimates.
fn heap(profile: &Profile) -> Line<'static> {
    let [live, objects, allocated] = [LIVE, OBJECTS, ALLOCATED].map(|kind| {
        let total = kind.figure(&profile.total);
        with_margin(kind.unit(), total, profile.total_error(kind))
    });
    let how = profile.as_counted("heap, estimated");
    Line::raw(format!(
        "{how}: live {live} in {objects}   allocated {allocated}"
    ))
}

/// Shares of the total by unwind outcome and without a stack, then the losses.
fn stacks(profile: &Profile, theme: Theme) -> Line<'static> {
    let whole = profile.total.usage.value();
    let (mut complete, mut partial, mut untaken) = (0, 0, 0);
    for (outcome, _, bytes) in profile.outcomes() {
        match outcome {
            o if o.is_complete() => complete += bytes,
            Outcome::NotTaken => untaken += bytes,
            _ => partial += bytes,
        }
    }
    let none = profile.unattributed().usage.value();
    let mut text = format!("stacks: complete {} %", percent(complete, whole));
    for (bytes, what) in [(partial, "partial"), (untaken, "not taken"), (none, "none")] {
        if bytes > 0 {
            text += &format!("  {what} {} %", percent(bytes, whole));
        }
    }
    match profile.faults {
        None => text += "  page faults not hooked",
        Some(faults) if faults.unwalked > 0 => {
            let walked = percent(faults.walked(), faults.all);
            text += &format!("  estimates: {walked} % of faults walked");
        }
        Some(_) => {}
    }
    let losses: Vec<_> = profile.losses.lost().collect();
    let lost = match &losses[..] {
        [] => Span::styled("   losses: none", theme.good()),
        [(what, count)] => Span::styled(format!("   LOST: {count} {what}"), theme.bad()),
        more => Span::styled(
            format!("   LOST: {} counters, see i", more.len()),
            theme.bad(),
        ),
    };
    Line::from(vec![Span::raw(text), lost])
}

/// Draws the curve. The newest report is on the right; the bottom is the lowest visible value.
fn render_curve(state: &UiState, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width);
    let newest = state.history().newest(width);
    let (low, high) = newest.clone().fold((u64::MAX, 0), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if high == 0 {
        return;
    }
    let label = format!(
        "resident over {} reports: {} to {} KiB",
        newest.len(),
        kib(low),
        kib(high)
    );
    let top = Rect { height: 1, ..area };
    frame.render_widget(Line::styled(label, state.theme.dim()), top);
    let curve = Rect {
        y: area.y + 1,
        height: area.height.saturating_sub(1),
        ..area
    };
    // Values are scaled to eighths of a line over the visible range; the lowest value still draws one eighth.
    let range = (high - low).max(1);
    let height = u64::from(curve.height) * 8;
    let part =
        |value: u64| 1 + u128::from(value - low) * u128::from(height - 1) / u128::from(range);
    let data: Vec<u64> = newest.map(|value| part(value) as u64).collect();
    let sparkline = Sparkline::default()
        .data(&data)
        .max(height)
        .direction(RenderDirection::RightToLeft)
        .style(state.theme.accent());
    frame.render_widget(sparkline, curve);
}
