//! Key bindings.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::moments::StepTo;
use super::rows;
use super::state::UiState;
use super::view::{Overlay, Sort, View};
use memprof_profile::tree::{Direction, Merge};
use memprof_profile::{FrameFilter, Kind};

/// Maximum length of a filter, in characters.
const LONGEST_FILTER: usize = 100;

/// The keys as listed in the help.
pub(super) const HELP: &[(&str, &str)] = &[
    (
        "q, Ctrl-C",
        "quit; also ends a command that memprof started",
    ),
    (
        "Tab, v, f, t",
        "the next view; overview, functions, call tree",
    ),
    ("Up Down PgUp PgDn Home End", "move; also k j g G"),
    (
        "Right, Enter",
        "unfold a node of the tree, down to where it branches",
    ),
    ("Left", "fold it, or go to its parent"),
    ("*", "unfold everything below"),
    ("c", "the tree by callees (outermost first) or by callers"),
    ("o", "the tree by functions or by call sites"),
    ("l", "show or hide inlined functions"),
    (
        "y",
        "Python, Ruby: alone, with native functions, native alone",
    ),
    (
        "s, S",
        "sort functions by self, total, name; lists: next column, reverse",
    ),
    (
        "/",
        "show only names that contain a text (* matches any); Esc clears it",
    ),
    (
        "n N",
        "next or previous kind: all, resident, anon, shmem, cache, …",
    ),
    (
        "P",
        "list processes; Tab: control groups; Enter: one alone; Esc: back",
    ),
    ("p, Space", "pause or resume"),
    ("m, M", "set a mark; show the peak, p: now"),
    ("d", "show or hide the change since a mark"),
    (
        "[ ]",
        "the recorded moment before or after; p: now. With d: the mark",
    ),
    (
        "h",
        "take a heap snapshot: what is in use, free, unreachable",
    ),
    ("i", "outcomes of unwinding, memory without a stack, losses"),
    ("?", "this help"),
];

/// Handles a key press; true when the user quits.
pub(super) fn press(state: &mut UiState, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return false;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if control && matches!(key.code, KeyCode::Char('c')) {
        return true;
    }
    if state.editing {
        edit(state, key.code);
        return false;
    }
    if state.overlay != Overlay::None {
        over(state, key.code);
        return false;
    }
    state.messages.dismiss();
    if state.view == View::Overview && !control {
        // A setting of the other views is of no use where its effect is not visible.
        let shown_by = shown_by(key.code);
        shown_by.into_iter().for_each(|view| state.show(view));
    }
    match key.code {
        _ if control => {}
        KeyCode::Char('q') => return true,
        code => {
            if !(moves(state, code)
                || lists(state, code)
                || shows(state, code)
                || chooses(state, code))
            {
                unfolds(state, code);
            }
        }
    }
    false
}

/// The view that shows the effect of a setting.
fn shown_by(code: KeyCode) -> Option<View> {
    match code {
        KeyCode::Char('/' | 's' | 'n' | 'N' | 'l' | 'y' | 'd') => Some(View::Functions),
        KeyCode::Char('c' | 'o' | '*') => Some(View::Tree),
        _ => None,
    }
}

fn edit(state: &mut UiState, code: KeyCode) {
    match code {
        KeyCode::Enter => state.editing = false,
        KeyCode::Esc => {
            state.editing = false;
            state.filter_mut().clear();
        }
        KeyCode::Backspace => {
            state.filter_mut().pop();
        }
        KeyCode::Char(c) if !c.is_control() => {
            let filter = state.filter_mut();
            if filter.chars().count() < LONGEST_FILTER {
                filter.push(c);
            }
        }
        _ => return,
    }
    state.refresh();
}

/// Keys while an overlay is open.
fn over(state: &mut UiState, code: KeyCode) {
    let top = state.overlay_top;
    match code {
        KeyCode::Down | KeyCode::Char('j') => state.overlay_top = top + 1,
        KeyCode::Up | KeyCode::Char('k') => state.overlay_top = top.saturating_sub(1),
        KeyCode::PageDown => state.overlay_top = top + state.page(),
        KeyCode::PageUp => state.overlay_top = top.saturating_sub(state.page()),
        _ => state.overlay = Overlay::None,
    }
    // Do not scroll beyond the end.
    let lines = super::render::overlay_lines(state).len();
    state.overlay_top = state.overlay_top.min(lines.saturating_sub(1));
}

fn moves(state: &mut UiState, code: KeyCode) -> bool {
    let (place, rows) = state.place();
    let page = state.page();
    let to = match code {
        KeyCode::Up | KeyCode::Char('k') => place.cursor.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => place.cursor + 1,
        KeyCode::PageUp => place.cursor.saturating_sub(page),
        KeyCode::PageDown => place.cursor + page,
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => rows.saturating_sub(1),
        _ => return false,
    };
    state.go(to);
    true
}

/// Keys of the lists of processes and control groups, and keys to enter and leave the lists.
fn lists(state: &mut UiState, code: KeyCode) -> bool {
    let is_list = state.view.is_list();
    match code {
        KeyCode::Char('P') => state.toggle_lists(),
        KeyCode::Esc if !state.filter().is_empty() => return false,
        KeyCode::Esc if is_list || state.part.is_some() => state.toggle_lists(),
        KeyCode::Tab | KeyCode::BackTab if is_list => state.show(match state.view {
            View::Processes => View::Groups,
            _ => View::Processes,
        }),
        KeyCode::Enter if is_list => state.enter(),
        KeyCode::Char('s') if is_list => state.sort_by_next(),
        KeyCode::Char('S') if is_list => {
            state.lists.order.reversed ^= true;
            state.refresh();
        }
        _ => return false,
    }
    true
}

/// Keys that change the view without a new model.
fn shows(state: &mut UiState, code: KeyCode) -> bool {
    match code {
        KeyCode::Char('v') => state.show(View::Overview),
        KeyCode::Char('f') => state.show(View::Functions),
        KeyCode::Char('t') => state.show(View::Tree),
        KeyCode::Tab => state.show(state.view.next()),
        // One of three before another is the one after the next.
        KeyCode::BackTab => state.show(state.view.next().next()),
        KeyCode::Char('?') | KeyCode::F(1) => open(state, Overlay::Help),
        KeyCode::Char('i') => open(state, Overlay::Details),
        KeyCode::Char('/') => state.editing = true,
        KeyCode::Char('s') => {
            state.sort = match state.sort {
                Sort::Own => Sort::Total,
                Sort::Total => Sort::Name,
                Sort::Name => Sort::Own,
            };
            state.relist();
        }
        KeyCode::Char('h') if state.view == View::Groups => {
            let why = "heap snapshots are of one process: Tab lists them";
            state.messages.show(why.to_owned());
        }
        KeyCode::Char('h') => state.heap.request(state.process_in_view()),
        KeyCode::Char('p' | ' ') if state.paused => state.resume(),
        KeyCode::Char('p' | ' ') => state.paused = true,
        KeyCode::Char(key @ ('[' | ']'))
            if state.marks.compared().is_none() || state.view == View::Overview =>
        {
            state.step(match key {
                ']' => StepTo::After,
                _ => StepTo::Before,
            });
        }
        KeyCode::Char('M') => state.step(StepTo::Peak(state.process_alone())),
        _ => return false,
    }
    true
}

fn open(state: &mut UiState, overlay: Overlay) {
    state.overlay = overlay;
    state.overlay_top = 0;
}

/// Keys that request another model.
fn chooses(state: &mut UiState, code: KeyCode) -> bool {
    match code {
        KeyCode::Char('n') => state.kind = neighbour(state, true),
        KeyCode::Char('N') => state.kind = neighbour(state, false),
        KeyCode::Char('c') => {
            state.direction = match state.direction {
                Direction::OutermostFirst => Direction::InnermostFirst,
                Direction::InnermostFirst => Direction::OutermostFirst,
            }
        }
        KeyCode::Char('o') => {
            state.naming.merge = match state.naming.merge {
                Merge::Site => Merge::Function,
                _ => Merge::Site,
            }
        }
        KeyCode::Char('y') => {
            let at = FrameFilter::ALL.iter().position(|f| *f == state.frames);
            state.frames = FrameFilter::ALL[(at.unwrap_or(0) + 1) % FrameFilter::ALL.len()];
        }
        KeyCode::Char('l') => state.naming.inlined = !state.naming.inlined,
        KeyCode::Char('m') => {
            let said = state.marks.set(state.report.clone());
            state.messages.show(said);
        }
        KeyCode::Char('d') => {
            if let Some(why) = state.marks.compare() {
                state.messages.show(why);
            }
        }
        KeyCode::Char('[') => state.marks.step(|at| at.checked_sub(1)),
        KeyCode::Char(']') => state.marks.step(|at| Some(at + 1)),
        KeyCode::Esc if !state.filter().is_empty() => state.filter_mut().clear(),
        _ => return false,
    }
    state.refresh();
    true
}

/// The kind of memory after or before the current one.
fn neighbour(state: &UiState, after: bool) -> Kind {
    let mut kinds = Kind::ALL.to_vec();
    if let Some(report) = &state.report {
        kinds.retain(|kind| report.profile.counts(*kind));
    }
    let at = kinds.iter().position(|k| *k == state.kind).unwrap_or(0);
    let step = if after { 1 } else { kinds.len() - 1 };
    kinds[(at + step) % kinds.len()]
}

/// Keys that fold and unfold the tree.
fn unfolds(state: &mut UiState, code: KeyCode) {
    let (View::Tree, Some(model), Some(row)) =
        (state.view, state.model.clone(), state.selected_node())
    else {
        return;
    };
    let row = *row;
    match (code, row.open) {
        (KeyCode::Right | KeyCode::Enter, Some(false)) => {
            state.unfold(rows::chain(&model, &row));
        }
        (KeyCode::Right, Some(true)) => state.go(state.in_tree.cursor + 1),
        (KeyCode::Char('*'), Some(_)) => state.unfold(rows::everything(&model, &row)),
        (KeyCode::Left | KeyCode::Enter, Some(true)) if state.unfolded.contains(&row.key) => {
            state.unfolded.remove(&row.key);
        }
        (KeyCode::Left, _) => return state.go(row.above),
        _ => return,
    }
    state.relist();
}
