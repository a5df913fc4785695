//! Tests of rendered frames and of keys.

use std::sync::Arc;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::model::Model;
use super::render::render;
use super::state::{Input, State};
use crate::api::Report;
use crate::profile::{Frame, Usage};
use crate::symbol::Language;
use crate::tree::testing::{at, kib, profile, symbols};

const MAIN: (u16, u64) = (0, 1);

/// main calls grow (through malloc) and read; grow holds `grown` KiB.
fn report(grown: u64) -> Arc<Report> {
    let f = |(module, offset)| at(module, offset);
    let (main, grow, read, malloc) = (f(MAIN), at(0, 2), at(0, 3), at(1, 4));
    let shared = Usage {
        shmem: 512 << 10,
        ..Usage::default()
    };
    let stacks: [(&[Frame], Usage); 3] = [
        (&[malloc, grow, main], kib(grown, 0)),
        (&[read, main], kib(0, 2048)),
        (&[read, main], shared),
    ];
    let names = [
        (main, "main", Language::Other),
        (grow, "grow\x1b[31m", Language::Other),
        (read, "app::read", Language::Rust),
        (malloc, "malloc", Language::Other),
    ];
    let profile = profile(&stacks, &[kib(1024, 0)]);
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::new(symbols(&names)),
        sequence: grown,
    })
}

/// Updates a state and builds the models it requests; true when the user quits.
fn feed(state: &mut State, input: Input) -> bool {
    let quit = state.update(input);
    while let Some(job) = state.job.take() {
        state.update(Input::Model(Arc::new(Model::new(job))));
    }
    quit
}

fn press(state: &mut State, code: KeyCode) -> bool {
    feed(state, Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn types(state: &mut State, keys: &str) {
    for key in keys.chars() {
        assert!(!press(state, KeyCode::Char(key)), "{key} quits");
    }
}

fn started(size: (u16, u16)) -> State {
    let mut state = State::new(false, size);
    feed(&mut state, Input::Report(report(4000)));
    state
}

fn drawn(state: &State) -> Buffer {
    let backend = TestBackend::new(state.size.0, state.size.1);
    let mut terminal = Terminal::new(backend).unwrap();
    terminal.draw(|frame| render(state, frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// The frame's lines without trailing blanks.
fn text(state: &State) -> Vec<String> {
    let buffer = drawn(state);
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(|c| c.symbol()).collect();
        line.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}

#[track_caller]
fn shows(state: &State, wanted: &[&str]) {
    let text = text(state);
    for part in wanted {
        assert!(
            text.iter().any(|l| l.contains(part)),
            "no {part:?} in {text:#?}"
        );
    }
}

/// The rows of the list, up to the last one with text.
fn rows(state: &State) -> Vec<String> {
    let text = text(state);
    let heading = text
        .iter()
        .position(|l| l.contains('%') && l.contains(" KiB  "));
    let heading = heading.or_else(|| text.iter().position(|l| l.contains("change  ")));
    let rows = &text[heading.unwrap() + 1..text.len() - 2];
    rows.iter().take_while(|l| !l.is_empty()).cloned().collect()
}

fn names(state: &State) -> Vec<String> {
    let name = |row: &String| row.rsplit("  ").next().unwrap().trim().to_owned();
    rows(state).iter().map(name).collect()
}

#[test]
fn functions_on_a_usual_terminal() {
    let mut state = started((80, 24));
    feed(&mut state, Input::Report(report(8000)));
    feed(&mut state, Input::Report(report(6000)));
    let wanted = [
        "memprof  node (pid 42)  00:00:00 UTC",
        "resident 7,536 KiB = kernel   anon 7,024  shmem 512",
        "page cache 2,048 KiB   file maps 0  swapped 0  hugetlb 0  page tables 0",
        "stacks: complete 89.3 %  none 10.7 %   losses: none",
        "resident over 3 reports: 5,536 to 9,536 KiB",
        "                                                                              █",
        "                                                                             ▁██",
        "   self KiB     %    total KiB     %  functions by self",
        "      6,000  62.6        6,000  62.6  malloc (libc-2.31.so)",
        "      2,560  26.7        2,560  26.7  app::read (node)",
        "      1,024  10.7        1,024  10.7  [no function]",
        "          0   0.0        8,560  89.3  main (node)",
        "          0   0.0        6,000  62.6  grow\u{fffd}[31m (node)",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "malloc (libc-2.31.so)",
        "q end  Tab tree  / filter  n kind  s sort  p pause  m mark  d change  i details",
    ];
    assert_eq!(text(&state), wanted);
}

#[test]
fn the_tree_unfolds_and_folds() {
    let mut state = started((80, 24));
    types(&mut state, "t");
    let closed = [
        "      7,584 100.0  - all",
        "      6,560  86.5    + main (node)",
        "      1,024  13.5      [before attach: [heap]]",
    ];
    assert_eq!(rows(&state), closed);
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Right);
    let open = [
        "      7,584 100.0  - all",
        "      6,560  86.5    - main (node)",
        "      4,000  52.7      + grow\u{fffd}[31m (node)",
        "      2,560  33.8        app::read (node)",
        "      1,024  13.5      [before attach: [heap]]",
    ];
    assert_eq!(rows(&state), open);
    // Into the unfolded node and down the chain, then back up node by node.
    press(&mut state, KeyCode::Right);
    press(&mut state, KeyCode::Enter);
    assert_eq!(
        rows(&state)[3],
        "      4,000  52.7        malloc (libc-2.31.so)"
    );
    press(&mut state, KeyCode::Down);
    assert_eq!(text(&state)[22], "malloc (libc-2.31.so)");
    press(&mut state, KeyCode::Left);
    press(&mut state, KeyCode::Left);
    assert_eq!(rows(&state), open);
    press(&mut state, KeyCode::Left);
    press(&mut state, KeyCode::Left);
    assert_eq!(rows(&state), closed);
    // The root is never folded.
    types(&mut state, "g");
    press(&mut state, KeyCode::Left);
    assert_eq!(rows(&state), closed);
    types(&mut state, "*");
    assert_eq!(rows(&state).len(), 6);
    // Unfolded nodes stay unfolded in the next report.
    feed(&mut state, Input::Report(report(40)));
    assert_eq!(rows(&state).len(), 6);
}

#[test]
fn callers_stand_below_what_they_call() {
    let mut state = started((80, 24));
    types(&mut state, "tc*");
    let nodes = [
        "all",
        "malloc (libc-2.31.so)",
        "grow\u{fffd}[31m (node)",
        "main (node)",
        "app::read (node)",
        "main (node)",
        "[before attach: [heap]]",
    ];
    let names: Vec<String> = names(&state)
        .iter()
        .map(|n| n.trim_start_matches(['+', '-', ' ']).to_owned())
        .collect();
    assert_eq!(names, nodes);
    shows(&state, &["tree of callers"]);
}

#[test]
fn kinds_count_only_theirs() {
    let mut state = started((80, 24));
    for (name, whole) in [
        ("resident", "5,536"),
        ("anon", "5,024"),
        ("shmem", "512"),
        ("cache", "2,048"),
        ("file", "0"),
        ("swap", "0"),
        ("hugetlb", "0"),
    ] {
        types(&mut state, "tn");
        shows(&state, &[&format!(", {name} only")]);
        let root = &rows(&state)[0];
        assert!(
            root.contains(whole) && root.ends_with("all"),
            "{name}: {root}"
        );
    }
    types(&mut state, "n");
    assert!(!text(&state).iter().any(|l| l.contains("only")));
    types(&mut state, "N");
    shows(&state, &["hugetlb only"]);
}

#[test]
fn sorting_by_self_total_and_name() {
    let mut state = started((80, 24));
    assert_eq!(names(&state)[0], "malloc (libc-2.31.so)");
    types(&mut state, "s");
    assert_eq!(names(&state)[..2], ["main (node)", "malloc (libc-2.31.so)"]);
    types(&mut state, "s");
    let sorted = [
        "[no function]",
        "app::read (node)",
        "grow\u{fffd}[31m (node)",
        "main (node)",
        "malloc (libc-2.31.so)",
    ];
    assert_eq!(names(&state), sorted);
    shows(&state, &["functions by name"]);
}

#[test]
fn a_filter_leaves_names_and_the_way_to_them() {
    let mut state = started((80, 24));
    // While the filter is edited, keys have no other effect.
    types(&mut state, "/Qmal");
    shows(&state, &["filter: Qmal_"]);
    assert_eq!(names(&state), ["nothing"]);
    for _ in 0..4 {
        press(&mut state, KeyCode::Backspace);
    }
    types(&mut state, "MALL");
    press(&mut state, KeyCode::Enter);
    assert_eq!(names(&state), ["malloc (libc-2.31.so)"]);
    shows(&state, &["functions by self, \"MALL\""]);
    types(&mut state, "t");
    let way = [
        "- all",
        "- main (node)",
        "- grow\u{fffd}[31m (node)",
        "malloc (libc-2.31.so)",
    ];
    assert_eq!(names(&state), way);
    types(&mut state, "o");
    assert_eq!(names(&state)[3], "malloc (libc-2.31.so+0x4)");
    shows(&state, &["tree of callees, by call site, \"MALL\""]);
    types(&mut state, "ol");
    shows(&state, &["tree of callees, with inlined, \"MALL\""]);
    press(&mut state, KeyCode::Esc);
    assert_eq!(rows(&state).len(), 3);
}

#[test]
fn changes_since_a_mark() {
    let mut state = started((80, 24));
    types(&mut state, "d");
    shows(&state, &["there is no mark yet; m sets one"]);
    types(&mut state, "m");
    shows(&state, &["mark 1 set at 00:00:00 UTC"]);
    feed(&mut state, Input::Report(report(1000)));
    types(&mut state, "md");
    // Compares with the newest mark, which is this report.
    assert!(
        rows(&state)
            .iter()
            .all(|r| r.contains("          0           0"))
    );
    types(&mut state, "[");
    let wanted = [
        "     -3,000      -3,000       1,000  malloc (libc-2.31.so)",
        "          0      -3,000       3,560  main (node)",
        "          0      -3,000       1,000  grow\u{fffd}[31m (node)",
        "          0           0       2,560  app::read (node)",
        "          0           0       1,024  [no function]",
    ];
    assert_eq!(rows(&state), wanted);
    shows(&state, &["change since mark 1"]);
    types(&mut state, "t*");
    let wanted = [
        "     -3,000       4,584  - all",
        "     -3,000       3,560    - main (node)",
        "     -3,000       1,000      - grow\u{fffd}[31m (node)",
        "     -3,000       1,000        malloc (libc-2.31.so)",
        "          0       2,560        app::read (node)",
        "          0       1,024      [before attach: [heap]]",
    ];
    assert_eq!(rows(&state), wanted);
    types(&mut state, "]]d");
    assert_eq!(rows(&state)[0], "      4,584 100.0  - all");
}

/// Functions that are gone since the mark are listed next to current ones.
#[test]
fn what_is_gone_since_a_mark_is_shown() {
    let mut state = started((80, 24));
    types(&mut state, "m");
    let empty = Report {
        profile: Arc::new(profile(&[], &[kib(8, 0)])),
        symbols: Arc::new(symbols(&[])),
        sequence: 2,
    };
    feed(&mut state, Input::Report(Arc::new(empty)));
    types(&mut state, "dt*");
    let gone = "     -4,000           0        malloc (libc-2.31.so)";
    assert!(rows(&state).iter().any(|r| r == gone), "{:?}", rows(&state));
    shows(
        &state,
        &["     -1,016           8      [before attach: [heap]]"],
    );
}

#[test]
fn so_many_marks_are_kept() {
    let mut state = started((80, 24));
    types(&mut state, &"m".repeat(30));
    types(&mut state, "d[[");
    shows(&state, &["change since mark 28"]);
    types(&mut state, &"[".repeat(30));
    shows(&state, &["change since mark 22"]);
    assert_eq!(state.marks.len(), super::state::MOST_MARKS);
    // The compared mark is removed: the oldest remaining one replaces it.
    types(&mut state, "m");
    shows(&state, &["change since mark 23"]);
}

#[test]
fn a_pause_holds_what_is_shown() {
    let mut state = started((80, 24));
    types(&mut state, "p");
    feed(&mut state, Input::Report(report(9000)));
    shows(
        &state,
        &[
            "PAUSED",
            "      4,000  52.7",
            "over 2 reports: 5,536 to 10,536 KiB",
        ],
    );
    types(&mut state, "t");
    shows(&state, &["      7,584 100.0  - all"]);
    types(&mut state, " ");
    feed(&mut state, Input::Report(report(9000)));
    shows(&state, &["     12,584 100.0  - all"]);
}

#[test]
fn what_is_lost_and_differs_is_said() {
    let mut state = State::new(true, (80, 24));
    shows(&state, &["waiting for the first report"]);
    state.update(Input::ReportError("the target has not started yet".into()));
    shows(&state, &["the target has not started yet"]);
    let mut lossy = report(4000).as_ref().clone();
    let mut changed = lossy.profile.as_ref().clone();
    changed.losses.add("events", 3);
    changed.kernel_before.rss_anon += 8192;
    changed.kernel_after.rss_anon += 4096;
    changed.target.alive = false;
    changed.target.pids.push(crate::event::Pid(43));
    lossy.profile = Arc::new(changed);
    feed(&mut state, Input::Report(Arc::new(lossy)));
    let said = [
        "(pid 42) and 1 more processes",
        "ENDED",
        "4 KiB below kernel",
        "LOST: 3 events",
    ];
    shows(&state, &said);
    types(&mut state, "i");
    shows(
        &state,
        &[
            "6,560 KiB  3 stacks complete",
            "1,024 KiB  [before attach: [heap]]",
            "3      events",
        ],
    );
    feed(&mut state, Input::ReportError("gone".into()));
    press(&mut state, KeyCode::Esc);
    shows(&state, &["no new report: gone"]);
}

#[test]
fn the_help_names_every_key_and_goes_away() {
    let mut state = started((80, 24));
    types(&mut state, "?");
    shows(&state, &["Keys", "q, Ctrl-C", "set a mark", "this help"]);
    // `q` closes the help and does not quit.
    types(&mut state, "q");
    assert!(!text(&state).iter().any(|l| l.contains("this help")));
    // On a small screen the help scrolls, but not beyond its end.
    state.update(Input::Resize(60, 9));
    types(&mut state, "?");
    for _ in 0..100 {
        press(&mut state, KeyCode::Down);
    }
    shows(&state, &["used it first"]);
    press(&mut state, KeyCode::F(5));
    assert!(press(&mut state, KeyCode::Char('q')));
}

#[test]
fn ctrl_c_quits_whatever_is_shown() {
    let quit = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for keys in ["", "?", "i", "/abc", "t"] {
        let mut state = started((80, 24));
        types(&mut state, keys);
        assert!(state.update(Input::Key(quit)), "{keys}");
    }
}

#[test]
fn without_colours_there_are_none() {
    let coloured = |state: &State| {
        let cells = drawn(state).content;
        cells
            .iter()
            .any(|c| c.fg != Color::Reset || c.bg != Color::Reset)
    };
    let mut state = started((80, 24));
    for keys in ["", "t*", "?", "q", "i", "q", "/x"] {
        types(&mut state, keys);
        assert!(!coloured(&state), "{keys}");
    }
    let plain = started((80, 24));
    assert!(
        drawn(&plain)
            .content
            .iter()
            .any(|c| c.modifier.contains(Modifier::REVERSED))
    );
    let mut state = State::new(true, (80, 24));
    feed(&mut state, Input::Report(report(4000)));
    assert!(coloured(&state));
}

/// Very many functions: the list scrolls as little as necessary, and the cursor stays on its function.
#[test]
fn the_cursor_stays_on_what_it_is_on() {
    let many = |first: u64| {
        let frames: Vec<[Frame; 1]> = (0..100).map(|n| [at(0, n)]).collect();
        let bytes = |n: usize| kib(if n == 50 { first } else { 1000 - n as u64 }, 0);
        let stacks: Vec<(&[Frame], Usage)> = frames
            .iter()
            .enumerate()
            .map(|(n, f)| (&f[..], bytes(n)))
            .collect();
        let named: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
        let names: Vec<_> = (0..100)
            .map(|n| (at(0, n as u64), named[n].as_str(), Language::Other))
            .collect();
        Arc::new(Report {
            profile: Arc::new(profile(&stacks, &[])),
            symbols: Arc::new(symbols(&names)),
            sequence: first,
        })
    };
    let mut state = State::new(false, (80, 24));
    feed(&mut state, Input::Report(many(950)));
    for _ in 0..50 {
        press(&mut state, KeyCode::Down);
    }
    let line = |state: &State| {
        let text = text(state);
        (
            text[22].clone(),
            text.iter().position(|l| l.ends_with(" f50 (node)")),
        )
    };
    let (selected, seen) = line(&state);
    assert_eq!(selected, "f50 (node)");
    assert!(seen.is_some());
    for bytes in [700, 1, 950] {
        feed(&mut state, Input::Report(many(bytes)));
        assert_eq!(line(&state), (selected.clone(), seen), "{bytes}");
    }
    // The function is now the largest one: the cursor follows it to the first row.
    feed(&mut state, Input::Report(many(9000)));
    assert_eq!(line(&state), (selected.clone(), Some(8)));
    press(&mut state, KeyCode::End);
    shows(&state, &["f99 (node)"]);
    press(&mut state, KeyCode::Home);
    shows(&state, &["f50 (node)"]);
    press(&mut state, KeyCode::PageDown);
    assert_eq!(state.in_functions.cursor, state.page());
}

#[test]
fn a_long_name_is_seen_to_its_end() {
    let mut state = State::new(false, (40, 24));
    let long = format!("std::{}::end", "x".repeat(100));
    let names = [(at(0, 1), long.as_str(), Language::Rust)];
    let report = Report {
        profile: Arc::new(profile(&[(&[at(0, 1)], kib(4, 0))], &[])),
        symbols: Arc::new(symbols(&names)),
        sequence: 1,
    };
    feed(&mut state, Input::Report(Arc::new(report)));
    let detail = &text(&state)[22];
    assert!(
        detail.starts_with("…x") && detail.ends_with("::end (node)"),
        "{detail}"
    );
}

fn any_input() -> impl Strategy<Value = Input> {
    let keys = "qftcsnNpmdi?/*[]kjgG x".chars().map(KeyCode::Char);
    let mut keys: Vec<KeyCode> = keys.collect();
    keys.extend([
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
        KeyCode::Backspace,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::F(1),
    ]);
    let key = proptest::sample::select(keys);
    prop_oneof![
        12 => key.prop_map(|k| Input::Key(KeyEvent::new(k, KeyModifiers::NONE))),
        2 => (0u16..160, 0u16..60).prop_map(|(w, h)| Input::Resize(w, h)),
        2 => (0u64..9000).prop_map(|kib| Input::Report(report(kib))),
        1 => "\\PC{0,40}".prop_map(Input::Message),
        1 => "\\PC{0,40}".prop_map(Input::ReportError),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any input on any screen size: the screen is drawn, and the cursor is on a row.
    #[test]
    fn nothing_pressed_breaks_it(inputs in proptest::collection::vec(any_input(), 0..60)) {
        let mut state = State::new(false, (80, 24));
        for input in inputs {
            feed(&mut state, input);
            drawn(&state);
            for (place, rows) in [
                (state.in_functions, state.functions.len()),
                (state.in_tree, state.tree.len()),
            ] {
                prop_assert!(place.cursor < rows.max(1), "{place:?} of {rows}");
                prop_assert!(place.top <= place.cursor, "{place:?}");
                prop_assert!(place.cursor < place.top + state.page(), "{place:?}");
            }
        }
    }
}
