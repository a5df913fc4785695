//! Tests of rendered frames and keys: from a report and a state to the screen.

mod crowd;
mod heap;
mod keys;
mod kinds;
mod lists;
mod moments;
mod orders;
mod overview;
mod parts;
mod processes;
mod reports;

use std::sync::Arc;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::model::Model;
use super::render::render;
use super::state::{Input, UiState};
use crate::testing::{at, kib, profile, symbols};
use memprof_profile::symbol::Language;
use memprof_profile::{Frame, Report};
use memprof_sys::usage::Usage;

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
fn feed(state: &mut UiState, input: Input) -> bool {
    let quit = state.update(input);
    while let Some(job) = state.job.take() {
        state.update(Input::Model(Arc::new(Model::new(job))));
    }
    quit
}

fn press(state: &mut UiState, code: KeyCode) -> bool {
    feed(state, Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn types(state: &mut UiState, keys: &str) {
    for key in keys.chars() {
        assert!(!press(state, KeyCode::Char(key)), "{key} quits");
    }
}

/// The functions of the first report.
fn started(size: (u16, u16)) -> UiState {
    let mut state = of_functions(false, size);
    feed(&mut state, Input::Report(report(4000)));
    state
}

/// A view of functions that waits for reports.
fn of_functions(colour: bool, size: (u16, u16)) -> UiState {
    let mut state = UiState::new(colour, size);
    types(&mut state, "f");
    state
}

fn drawn(state: &UiState) -> Buffer {
    let backend = TestBackend::new(state.size.0, state.size.1);
    let mut terminal = Terminal::new(backend).unwrap();
    terminal.draw(|frame| render(state, frame)).unwrap();
    terminal.backend().buffer().clone()
}

/// The frame's lines without trailing blanks.
fn text(state: &UiState) -> Vec<String> {
    let buffer = drawn(state);
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(|c| c.symbol()).collect();
        line.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}

#[track_caller]
fn shows(state: &UiState, wanted: &[&str]) {
    let text = text(state);
    for part in wanted {
        assert!(
            text.iter().any(|l| l.contains(part)),
            "no {part:?} in {text:#?}"
        );
    }
}

/// The rows of the list, up to the last one with text.
fn rows(state: &UiState) -> Vec<String> {
    let text = text(state);
    let heading = text
        .iter()
        .position(|l| l.contains('%') && l.contains(" KiB  "));
    let heading = heading.or_else(|| text.iter().position(|l| l.contains("change  ")));
    let rows = &text[heading.unwrap() + 1..text.len() - 2];
    rows.iter().take_while(|l| !l.is_empty()).cloned().collect()
}

fn names(state: &UiState) -> Vec<String> {
    let name = |row: &String| row.rsplit("  ").next().unwrap().trim().to_owned();
    rows(state).iter().map(name).collect()
}

/// Both of two simultaneous messages are shown.
#[test]
fn messages_wait_for_those_before_them() {
    let mut state = UiState::new(false, (80, 24));
    for text in ["the first", "the second"] {
        feed(&mut state, Input::Message(text.to_owned()));
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        seen.extend(state.messages.shown().map(str::to_owned));
        feed(&mut state, Input::Report(report(4000)));
    }
    seen.dedup();
    assert_eq!(seen, ["the first", "the second"]);
    assert_eq!(state.messages.shown(), None);
}
