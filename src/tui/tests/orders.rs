//! The lists of processes: sorting, filters, changes since a mark, the cursor.

use super::crowd::{ID, POD, THREE, crowd, listed, report_of, shown, who};
use super::*;

#[test]
fn sorting_by_each_column_and_in_reverse() {
    let mut state = shown((80, 24), &THREE, "P");
    let ended = "[of ended processes]";
    for (by, first) in [
        ("size", "redis-server"),
        ("anon", "nginx"),
        ("file", "nginx"),
        ("pid", "nginx"),
        ("name", "nginx"),
        ("group", "nginx"),
    ] {
        let names = who(&state);
        shows(&state, &[&format!("processes by {by}")]);
        assert!(names[0].starts_with(first), "{by}: {names:?}");
        // The row that belongs to no process stays last.
        assert_eq!(names[3], ended, "{by}");
        types(&mut state, "s");
    }
    shows(&state, &["processes by size"]);
    types(&mut state, "S");
    shows(&state, &["processes by size, reversed"]);
    let names = who(&state);
    assert!(names[0].starts_with("worker"), "{names:?}");
    assert_eq!(names[3], ended);
    // Control groups have no process names to sort by.
    types(&mut state, "Sssss");
    shows(&state, &["processes by name"]);
    press(&mut state, KeyCode::Tab);
    shows(&state, &["groups by group"]);
    types(&mut state, "s");
    shows(&state, &["groups by size"]);
}

#[test]
fn a_filter_looks_at_names_ids_and_places() {
    for (filter, names) in [
        ("NGI", &["nginx"][..]),
        ("30", &["worker"]),
        ("/web", &["nginx", "worker"]),
        (&ID[40..], &["redis-server"]),
        (POD, &["redis-server"]),
        ("no such", &[]),
    ] {
        let mut state = shown((80, 24), &THREE, "P/");
        types(&mut state, filter);
        press(&mut state, KeyCode::Enter);
        let found = names.len();
        let word = if found == 1 { "process" } else { "processes" };
        shows(&state, &[&format!("{found}  {word} of 3")]);
        shows(&state, &["processes by size, \""]);
        let who = if found == 0 { Vec::new() } else { who(&state) };
        let who: Vec<_> = who
            .iter()
            .map(|name| name.split(' ').next().unwrap())
            .collect();
        assert_eq!(who, names, "{filter}");
        // The functions have a separate filter.
        types(&mut state, "P");
        assert_eq!(state.functions.len(), 3);
        types(&mut state, "P");
        assert_eq!(listed(&state).len(), 1 + found.max(1));
        press(&mut state, KeyCode::Esc);
        assert_eq!(listed(&state).len(), 5);
    }
}

/// Processes that ended since the mark are listed, so that the changes also add up.
#[test]
fn changes_since_a_mark() {
    let mut state = shown((80, 24), &THREE, "mdP");
    let later = [
        (7, "nginx", "/web", 4500, 0),
        (8, "redis-server", "/pods/redis", 500, 3000),
        (9, "new", "/web", 100, 0),
    ];
    feed(&mut state, Input::Report(report_of(&later, 64)));
    let wanted = [
        "     -2,400       8,164       5,100       3  processes",
        "     -1,500       3,500         500       8  redis-server     0123456789ab  pod",
        "     -1,500           0           0      30  (ended) worker   /web/below",
        "       +500       4,500       4,500       7  nginx            /web",
        "       +100         100         100       9  new              /web",
        "          0          64           0          [of ended processes]",
    ];
    assert_eq!(listed(&state), wanted);
    shows(
        &state,
        &["     change         KiB        anon     pid  processes by change"],
    );
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    shows(
        &state,
        &["it is not there any more: only its figures at the mark are"],
    );
    press(&mut state, KeyCode::Tab);
    shows(
        &state,
        &["     -1,500           0           0       1  (ended) /web/below"],
    );
    // For a process that started after the mark, all memory is new.
    types(&mut state, "PP/new");
    press(&mut state, KeyCode::Enter);
    press(&mut state, KeyCode::Enter);
    shows(
        &state,
        &[
            "new (pid 9), 1 of 3 processes",
            "       +100        +100         100  grow",
        ],
    );
}

#[test]
fn thousands_scroll_and_the_cursor_stays_on_its_process() {
    let mut state = of_functions(false, (80, 24));
    feed(&mut state, Input::Report(crowd(3000, 1)));
    types(&mut state, "P");
    press(&mut state, KeyCode::End);
    shows(
        &state,
        &[
            "          1   0.0           1           0       1  one",
            "one (pid 1)  /group0",
        ],
    );
    press(&mut state, KeyCode::PageUp);
    press(&mut state, KeyCode::PageUp);
    let selected = text(&state)[22].clone();
    let line = |state: &UiState| {
        text(state)
            .iter()
            .position(|l| l.contains(&format!("{:>8}  one", 27)))
    };
    let seen = line(&state);
    assert!(
        selected.starts_with("one (pid 27)") && seen.is_some(),
        "{:#?}",
        text(&state)
    );
    // This process has the same memory, and all others have more.
    feed(&mut state, Input::Report(crowd(3000, 1)));
    assert_eq!((text(&state)[22].clone(), line(&state)), (selected, seen));
    press(&mut state, KeyCode::Home);
    shows(&state, &["one (pid 3000)  /group9"]);
}

#[test]
fn a_pause_holds_the_list() {
    let mut state = shown((80, 24), &THREE, "pP");
    let before = listed(&state);
    feed(&mut state, Input::Report(report_of(&THREE[..2], 0)));
    assert_eq!(listed(&state), before);
    types(&mut state, "p");
    feed(&mut state, Input::Report(report_of(&THREE[..2], 0)));
    assert_eq!(listed(&state).len(), 3);
}
