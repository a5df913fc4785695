//! A single process or control group, and the keys to enter and leave it.

use super::crowd::{Process, THREE, listed, report_of, shown};
use super::*;
use memprof_sys::ids::Pid;

/// The second process of the list is nginx.
fn in_nginx(keys: &str) -> UiState {
    let mut state = shown((80, 24), &THREE, keys);
    types(&mut state, "Pj");
    press(&mut state, KeyCode::Enter);
    state
}

#[test]
fn one_process_and_back_step_by_step() {
    let mut state = in_nginx("");
    let wanted = [
        "memprof  nginx (pid 7), 1 of 3 processes  00:00:00 UTC",
        "resident 4,000 KiB = kernel   anon 4,000  shmem 0",
        "page cache 0 KiB   file maps 0  swapped 0  hugetlb 0  page tables 0",
        "stacks: complete 100.0 %   losses: none",
        "memprof has seen 3.9 MiB of 3.9 MiB arrive in 0.0 s: grow (node) 3.9 MiB.",
        "resident over 1 reports: 4,000 to 4,000 KiB",
    ];
    assert_eq!(text(&state)[..6], wanted);
    assert_eq!(
        rows(&state),
        [
            "      4,000 100.0        4,000 100.0  grow (node)",
            "          0   0.0        4,000 100.0  main (node)",
        ]
    );
    // The tree and the filter now belong to the process.
    press(&mut state, KeyCode::Tab);
    types(&mut state, "*");
    assert_eq!(rows(&state)[0], "      4,000 100.0  - all");
    types(&mut state, "/grow");
    press(&mut state, KeyCode::Enter);
    assert_eq!(names(&state)[2], "↳ grow (node)");
    // Esc removes first the filter, then the process, then the list.
    press(&mut state, KeyCode::Esc);
    shows(&state, &["nginx (pid 7), 1 of 3 processes"]);
    press(&mut state, KeyCode::Esc);
    shows(
        &state,
        &["nginx (pid 7) and 2 more processes", "processes by size"],
    );
    assert!(text(&state)[22].starts_with("nginx (pid 7)  /web"));
    press(&mut state, KeyCode::Esc);
    shows(&state, &["tree of callees", "     10,564 100.0  - all"]);
    // The key P does the same.
    types(&mut state, "P");
    press(&mut state, KeyCode::Enter);
    shows(&state, &["nginx (pid 7), 1 of 3 processes"]);
    types(&mut state, "PP");
    shows(&state, &["     10,564 100.0  - all"]);
}

#[test]
fn a_control_group_has_those_below_it() {
    let mut state = shown((80, 24), &THREE, "P");
    press(&mut state, KeyCode::Tab);
    types(&mut state, "j");
    press(&mut state, KeyCode::Enter);
    shows(
        &state,
        &[
            "control group /web and below, 2 of 3 processes",
            "resident 5,000 KiB = kernel   anon 5,000  shmem 0",
            "      5,000  90.9        5,000  90.9  grow (node)",
        ],
    );
    press(&mut state, KeyCode::Esc);
    shows(&state, &["groups by size"]);
    assert_eq!(text(&state)[22], "control group /web and below");
}

/// As on the page, an ended process stays until the user leaves it.
#[test]
fn the_last_figures_of_one_that_has_ended_stay() {
    let mut state = in_nginx("");
    let held = rows(&state);
    for _ in 0..2 {
        feed(&mut state, Input::Report(report_of(&THREE[1..], 64)));
        shows(
            &state,
            &["nginx (pid 7), 1 of 3 processes  ENDED, last figures"],
        );
        assert_eq!(rows(&state), held);
    }
    // Settings also apply to the last figures.
    types(&mut state, "t");
    shows(&state, &["      4,000 100.0  - all"]);
    types(&mut state, "nnnn");
    shows(
        &state,
        &["tree of callees, cache only", "          0   0.0    all"],
    );
    press(&mut state, KeyCode::Esc);
    assert_eq!(listed(&state).len(), 4);
    assert!(!text(&state).iter().any(|line| line.contains("ENDED")));
}

/// A profile of a single process does not tell its control group.
#[test]
fn a_control_group_that_has_one_process_left_has_not_ended() {
    let two = [THREE[0], (9, "other", "/web", 500, 0)];
    let mut state = shown((80, 24), &two, "P");
    press(&mut state, KeyCode::Tab);
    press(&mut state, KeyCode::Enter);
    shows(&state, &["control group /web and below, 2 of 2 processes"]);
    feed(&mut state, Input::Report(report_of(&two[1..], 0)));
    shows(
        &state,
        &[
            "control group /web and below  00:00:00 UTC",
            "        500 100.0          500 100.0  grow",
        ],
    );
    feed(&mut state, Input::Report(report_of(&two, 0)));
    shows(
        &state,
        &[
            "control group /web and below, 2 of 2 processes",
            "      4,500 100.0        4,500 100.0  grow",
        ],
    );
    let elsewhere: [Process<'_>; 1] = [(10, "other", "/else", 500, 0)];
    feed(&mut state, Input::Report(report_of(&elsewhere, 0)));
    shows(&state, &["ENDED, last figures", "      4,500 100.0"]);
}

#[test]
fn reports_and_marks_of_the_process_alone() {
    let mut state = in_nginx("m");
    let mut later = THREE;
    later[0].3 = 4800;
    later[2].3 = 9000;
    feed(&mut state, Input::Report(report_of(&later, 64)));
    shows(
        &state,
        &[
            "      4,800 100.0        4,800 100.0  grow (node)",
            "resident over 2 reports: 4,000 to 4,800 KiB",
        ],
    );
    types(&mut state, "d");
    shows(
        &state,
        &["       +800        +800       4,800  grow (node)"],
    );
    // While the view is paused, the curve continues.
    types(&mut state, "dp");
    feed(&mut state, Input::Report(report_of(&THREE[1..], 64)));
    feed(&mut state, Input::Report(report_of(&THREE, 64)));
    shows(
        &state,
        &[
            "PAUSED",
            "      4,800 100.0",
            "resident over 3 reports: 4,000 to 4,800 KiB",
        ],
    );
}

/// A model that was requested before the user moved on arrives late.
#[test]
fn models_of_something_else_are_not_shown() {
    let mut state = shown((80, 24), &THREE, "");
    state.update(Input::Report(report_of(&THREE, 64)));
    let whole = Model::new(state.job.take().unwrap());
    types(&mut state, "Pj");
    state.update(Input::Key(KeyEvent::new(
        KeyCode::Enter,
        KeyModifiers::NONE,
    )));
    let part = Model::new(state.job.take().unwrap());
    state.update(Input::Model(Arc::new(whole)));
    assert!(state.model.is_none());
    shows(&state, &["nginx (pid 7), 1 of 3 processes"]);
    state.update(Input::Model(Arc::new(part)));
    shows(&state, &["      4,000 100.0        4,000 100.0  grow"]);
}

/// A snapshot is of the process at the cursor, or else of the visible process.
#[test]
fn heap_snapshots_are_of_the_process_in_view() {
    let mut state = shown((80, 24), &THREE, "Ph");
    assert_eq!(state.heap.wanted.take(), Some(Pid(8)));
    shows(&state, &["heap: taking a snapshot of process 8"]);
    feed(
        &mut state,
        Input::Heap(Err("process 8 has ended".to_owned())),
    );
    types(&mut state, "jjh");
    assert_eq!(state.heap.wanted.take(), Some(Pid(30)));
    feed(
        &mut state,
        Input::Heap(Err("process 30 has ended".to_owned())),
    );
    press(&mut state, KeyCode::Enter);
    types(&mut state, "h");
    assert_eq!(state.heap.wanted.take(), Some(Pid(30)));
    // A control group is not a process.
    types(&mut state, "P");
    feed(
        &mut state,
        Input::Heap(Err("process 30 has ended".to_owned())),
    );
    press(&mut state, KeyCode::Tab);
    types(&mut state, "h");
    assert_eq!(state.heap.wanted, None);
    shows(
        &state,
        &["heap snapshots are of one process: Tab lists them"],
    );
}
