//! Steps to recorded moments.

use std::sync::Arc;

use super::{feed, press, report, shows, started, text, types};
use crate::tui::moments::StepTo;
use crate::tui::state::{Input, UiState};
use memprof_profile::{Peak, Report};
use ratatui::crossterm::event::KeyCode;

fn shows_none(state: &UiState, word: &str) {
    assert!(!text(state).concat().contains(word), "{:#?}", text(state));
}

#[test]
fn a_step_shows_a_moment_until_the_user_resumes() {
    let mut state = started((100, 30));
    types(&mut state, "[");
    let step = state.moments.wanted.take().unwrap();
    assert_eq!((step.shown.sequence, step.to), (4000, StepTo::Before));
    // One step at a time.
    types(&mut state, "[");
    assert!(state.moments.wanted.is_none());
    feed(&mut state, Input::Stepped(Ok(Some(report(1234)))));
    shows(&state, &["RECORDED", "1,234"]);
    // New reports wait.
    feed(&mut state, Input::Report(report(5000)));
    shows(&state, &["RECORDED", "1,234"]);
    types(&mut state, "]");
    let step = state.moments.wanted.take().unwrap();
    assert_eq!((step.shown.sequence, step.to), (1234, StepTo::After));
    feed(&mut state, Input::Stepped(Ok(None)));
    feed(&mut state, Input::Report(report(5000)));
    shows(&state, &["5,000"]);
    shows_none(&state, "RECORDED");
    types(&mut state, "[");
    feed(&mut state, Input::Stepped(Ok(Some(report(1234)))));
    press(&mut state, KeyCode::Char('p'));
    feed(&mut state, Input::Report(report(6000)));
    shows(&state, &["6,000"]);
}

#[test]
fn the_peak_is_shown_until_the_user_resumes() {
    let mut state = started((100, 30));
    types(&mut state, "M");
    let step = state.moments.wanted.take().unwrap();
    assert_eq!(step.to, StepTo::Peak(None));
    let mut peak = Report::clone(&report(9876));
    Arc::make_mut(&mut peak.profile).peak = Some(Peak {
        rss: 1,
        high_water: None,
        processes: 1,
        after_ms: 0,
        is_shown: true,
    });
    feed(&mut state, Input::Stepped(Ok(Some(Arc::new(peak)))));
    shows(&state, &["PEAK", "9,876"]);
    types(&mut state, "pM");
    feed(&mut state, Input::Report(report(5000)));
    shows(&state, &["5,000"]);
    shows_none(&state, "PEAK");
    feed(&mut state, Input::Stepped(Ok(None)));
    shows(&state, &["does not keep the peak"]);
}

#[test]
fn ends_and_errors_are_told() {
    let mut state = started((100, 30));
    types(&mut state, "[");
    feed(&mut state, Input::Stepped(Ok(None)));
    shows(&state, &["this is the first recorded moment"]);
    types(&mut state, "[");
    feed(&mut state, Input::Stepped(Err("no disk".to_owned())));
    shows(&state, &["no disk", "4,000"]);
}

#[test]
fn while_marks_are_compared_the_keys_step_through_them() {
    let mut state = started((100, 30));
    types(&mut state, "md[");
    assert!(state.moments.wanted.is_none());
    assert!(Arc::ptr_eq(
        &state.marks.compared().unwrap().report,
        state.report.as_ref().unwrap()
    ));
}
