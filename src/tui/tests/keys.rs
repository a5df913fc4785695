//! Help, quitting, colours, and arbitrary input.

use super::crowd::crowd;
use super::*;
use crate::tui::past::Past;

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
    shows(&state, &["1,024 bytes."]);
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
    let coloured = |state: &UiState| {
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
    let mut state = of_functions(true, (80, 24));
    feed(&mut state, Input::Report(report(4000)));
    assert!(coloured(&state));
}

fn any_input() -> impl Strategy<Value = Input> {
    let keys = "qvftcsSnNpPPmdi?/*[]kjgG x".chars().map(KeyCode::Char);
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
        4 => (1usize..40, 0u64..9000).prop_map(|(n, kib)| Input::Report(crowd(n, kib))),
        1 => (0u64..9000).prop_map(|kib| Input::Past(Past {
            at_peak: Some(report(kib)),
            ..Past::default()
        })),
        1 => "\\PC{0,40}".prop_map(Input::Message),
        1 => "\\PC{0,40}".prop_map(Input::ReportError),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any input on any screen size, the screen is drawn and the cursor is on a row.
    #[test]
    fn nothing_pressed_breaks_it(inputs in proptest::collection::vec(any_input(), 0..60)) {
        let mut state = UiState::new(false, (80, 24));
        for input in inputs {
            feed(&mut state, input);
            drawn(&state);
            let (place, rows) = state.place();
            prop_assert!(place.cursor < rows.max(1), "{place:?} of {rows}");
            prop_assert!(place.top <= place.cursor, "{place:?}");
            prop_assert!(place.cursor < place.top + state.page(), "{place:?}");
        }
    }
}
