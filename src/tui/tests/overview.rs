//! The overview: what its cards say, on screens of every size, and the keys to and from it.

use std::time::Duration;

use super::crowd::{THREE, report_of};
use super::*;
use crate::export::growth::{GrowthRow, GrowthTable};
use crate::tui::past::Past;
use memprof_profile::Peak;
use memprof_sys::ids::Pid;

const MIB: u64 = 1 << 20;

/// The overview of the first report.
fn overview(size: (u16, u16)) -> UiState {
    let mut state = UiState::new(false, size);
    feed(&mut state, Input::Report(report(4000)));
    state
}

fn growth_row(name: &str, share: Option<f64>) -> GrowthRow {
    GrowthRow {
        name: name.to_owned(),
        place: None,
        shape: Some("steady"),
        per_hour: (3 * MIB) as f64,
        error: 0.0,
        share,
        since: 60_000,
        rises: 1.0,
        values: (0..40).collect(),
    }
}

/// `app::read` has most of a steady growth of 3 MiB an hour.
fn growth() -> Past {
    let table = GrowthTable {
        from: Some(0),
        to: Some(3_660_000),
        moments: Some(60),
        interval_s: 60.0,
        kind: "all",
        total: Some(growth_row("total", None)),
        rows: vec![growth_row("app::read (node)", Some(0.64))],
    };
    Past {
        growth: Some(Arc::new(table)),
        ..Past::default()
    }
}

/// The peak: 64 MiB, when `grow` had 8 MiB.
fn at_peak(of: Option<Pid>) -> Past {
    let mut peak = Report::clone(&report(8192));
    Arc::make_mut(&mut peak.profile).peak = Some(Peak {
        rss: 64 * MIB,
        high_water: None,
        processes: 1,
        after_ms: 3000,
        is_shown: true,
    });
    Past {
        of,
        at_peak: Some(Arc::new(peak)),
        growth: None,
    }
}

/// Where a text begins on the screen: its line and its column.
#[track_caller]
fn at(state: &UiState, wanted: &str) -> (usize, usize) {
    let lines = text(state);
    let place = lines.iter().enumerate().find_map(|(line, text)| {
        let (before, _) = text.split_once(wanted)?;
        Some((line, before.chars().count()))
    });
    place.unwrap_or_else(|| panic!("no {wanted:?} in {lines:#?}"))
}

#[test]
fn the_first_screen_has_the_cards_in_two_columns() {
    let mut state = overview((80, 24));
    feed(&mut state, Input::Past(at_peak(None)));
    let titles = ["─ Grows ─", "─ Made of ─", "─ Heap ─", "─ Peak ─"];
    let [grows, made_of, heap, peak] = titles.map(|title| at(&state, title));
    assert_eq!((grows.1, heap.1, made_of.1, peak.1), (0, 0, 41, 41));
    assert!(grows.0 == made_of.0 && heap.0 > grows.0 && peak.0 > made_of.0);
    shows(
        &state,
        &[
            "memprof has seen 4.4 MiB of 5.4 MiB",
            "  3.9 MiB  grow\u{fffd}[31m (node)",
            "  512 KiB  app::read (node)",
            "RSS 5.4 MiB = 4.9 MiB anonymous + 512",
            "  4.9 MiB  90.8 %  anonymous memory",
            "Not in RSS: 2.0 MiB page cache that",
            "No snapshot of the heap yet.",
            "64.0 MiB at the peak, 3.0 s after",
            "  8.0 MiB  grow\u{fffd}[31m (node)",
            "resident over 1 reports",
            "Tab functions",
        ],
    );
    // A high screen has more space for rows, not for other cards.
    state.update(Input::Resize(160, 50));
    let [grows, made_of, heap, peak] = titles.map(|title| at(&state, title));
    assert_eq!((grows.1, heap.1, made_of.1, peak.1), (0, 0, 81, 81));
}

/// A narrow screen has one column, which scrolls.
#[test]
fn a_narrow_screen_scrolls_through_one_column() {
    let mut state = overview((40, 20));
    feed(&mut state, Input::Past(at_peak(None)));
    let mut seen = String::new();
    for _ in 0..30 {
        let lines = text(&state);
        assert!(lines.iter().all(|line| line.chars().count() <= 40));
        seen += &lines.concat();
        press(&mut state, KeyCode::Down);
    }
    for title in ["─ Grows", "─ Made of", "─ Heap", "─ Peak"] {
        assert!(seen.contains(title), "{title} {:#?}", text(&state));
    }
    // The end is at the bottom, above the keys.
    let lines = text(&state);
    assert!(lines[18].contains("app::read (node)"), "{lines:#?}");
    press(&mut state, KeyCode::Home);
    at(&state, "─ Grows");
}

#[test]
fn growth_is_the_recorded_trend() {
    let mut state = overview((80, 24));
    feed(&mut state, Input::Past(growth()));
    shows(
        &state,
        &[
            "+3.0 MiB an hour, steady for 60 min:",
            // What grows comes first, though it holds less.
            "  +3.0 MiB/h  app::read (node)",
            "     3.9 MiB  grow\u{fffd}[31m (node)",
        ],
    );
    let grows = at(&state, "MiB/h  app::read").0;
    assert!(grows < at(&state, "3.9 MiB  grow").0);
    // Wider cards have both figures and the picture of the growth.
    state.update(Input::Resize(140, 24));
    shows(
        &state,
        &["   512 KiB  +3.0 MiB/h  ▁▂▂▃▄▅▅▆▇█  app::read (node)"],
    );
    // The sentence above a table is the same one.
    types(&mut state, "f");
    shows(
        &state,
        &["+3.0 MiB an hour, steady for 60 min: app::read (node) has 64 % of it."],
    );
}

#[test]
fn a_moment_has_its_own_overview() {
    let mut state = overview((80, 24));
    feed(&mut state, Input::Past(growth()));
    types(&mut state, "md");
    types(&mut state, "v[");
    // Whatever is compared, there are no marks to step through.
    assert!(state.moments.wanted.take().is_some());
    feed(&mut state, Input::Stepped(Ok(Some(report(1234)))));
    // The trend is that of now.
    shows(
        &state,
        &[
            "RECORDED",
            "  1.2 MiB  grow\u{fffd}[31m (node)",
            "memprof has seen",
        ],
    );
    feed(&mut state, Input::Past(growth()));
    shows(&state, &["memprof has seen"]);
    types(&mut state, "p");
    feed(&mut state, Input::Report(report(4000)));
    shows(
        &state,
        &["+3.0 MiB an hour", "  3.9 MiB  grow\u{fffd}[31m (node)"],
    );
}

#[test]
fn a_process_has_its_own_overview() {
    let mut state = UiState::new(false, (80, 24));
    feed(&mut state, Input::Report(report_of(&THREE, 64)));
    feed(&mut state, Input::Past(growth()));
    feed(&mut state, Input::Past(at_peak(None)));
    types(&mut state, "Pj");
    press(&mut state, KeyCode::Enter);
    shows(&state, &["nginx (pid 7), 1 of 3 processes", "RSS 3.9 MiB"]);
    let absent = |state: &UiState, word: &str| {
        assert!(!text(state).concat().contains(word), "{:#?}", text(state));
    };
    // Neither the peak nor the growth of all of them.
    absent(&state, "─ Peak");
    absent(&state, "an hour");
    assert_eq!(state.process_alone(), Some(Pid(7)));
    feed(&mut state, Input::Past(at_peak(Some(Pid(7)))));
    shows(&state, &["─ Peak", "64.0 MiB at the peak"]);
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Esc);
    shows(&state, &["─ Grows", "nginx (pid 7) and 2 more"]);
}

#[test]
fn keys_lead_to_and_from_it() {
    let mut state = overview((80, 24));
    for (key, wanted) in [
        (KeyCode::Tab, "functions by self"),
        (KeyCode::Tab, "tree of callees"),
        (KeyCode::Tab, "─ Grows"),
        (KeyCode::BackTab, "tree of callees"),
        (KeyCode::Char('v'), "─ Grows"),
    ] {
        press(&mut state, key);
        shows(&state, &[wanted]);
    }
    // Settings of a table show it.
    for (key, wanted) in [
        ("n", "functions by self, resident only"),
        ("c", "tree of callers"),
        ("/", "filter: _"),
    ] {
        types(&mut state, key);
        shows(&state, &[wanted]);
        press(&mut state, KeyCode::Esc);
        types(&mut state, "v");
        shows(&state, &["─ Grows"]);
    }
}

/// What makes figures weaker is above the cards, in few lines.
#[test]
fn notes_are_above_the_cards() {
    let mut lossy = Report::clone(&report(4000));
    let profile = Arc::make_mut(&mut lossy.profile);
    profile.losses.add("events", 3);
    profile.observed = Duration::from_secs(5);
    let mut state = UiState::new(false, (80, 24));
    feed(&mut state, Input::Report(Arc::new(lossy)));
    assert_eq!(at(&state, "Lost: 3 events."), (5, 0));
    assert_eq!(at(&state, "─ Grows"), (6, 0));
    types(&mut state, "f");
    assert!(!text(&state).concat().contains("Lost: 3 events."));
}
