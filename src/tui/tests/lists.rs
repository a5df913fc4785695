//! The lists of functions and the trees: rows, folding, sorting, filters, the cursor.

use super::*;

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
        "memprof has seen 6.4 MiB of 7.4 MiB arrive in 0.0 s: grow\u{fffd}[31m (node) 5.9 MiB, …",
        "resident over 3 reports: 5,536 to 9,536 KiB",
        "                                                                              █",
        "                                                                             ▁██",
        "   self KiB     %    total KiB     %  functions by self",
        "      6,000  62.6        6,000  62.6  malloc (libc-2.31.so)",
        "      2,560  26.7        2,560  26.7  app::read (node)",
        "          0   0.0        8,560  89.3  main (node)",
        "          0   0.0        6,000  62.6  grow\u{fffd}[31m (node)",
        "      1,024  10.7        1,024  10.7  [no function]",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "malloc (libc-2.31.so)",
        "q end  Tab tree  v overview  / filter  n kind  s sort  p pause  m mark  ? help",
    ];
    assert_eq!(text(&state), wanted);
}

/// On a narrow screen, key hints that do not fit are left out, except the help.
#[test]
fn the_help_is_in_the_line_of_keys() {
    for (width, wanted) in [
        (30, "q end  Tab tree  ? help"),
        (48, "q end  Tab tree  v overview  / filter  ? help"),
        (8, "? help"),
    ] {
        let state = started((width, 24));
        assert_eq!(text(&state)[23], wanted, "{width} columns");
    }
}

/// On a narrow screen each row shows one figure, which is the sort key, and the name.
#[test]
fn narrow_screens_show_names() {
    let mut state = started((30, 24));
    assert_eq!(text(&state)[7], "   self KiB  functions by self");
    shows(
        &state,
        &["      4,000  malloc (libc-2.31", "          0  main (node)"],
    );
    types(&mut state, "s");
    shows(
        &state,
        &["  total KiB  functions by to", "      6,560  main (node)"],
    );
    types(&mut state, "m");
    feed(&mut state, Input::Report(report(5000)));
    types(&mut state, "d");
    shows(
        &state,
        &[" total chg.  functions by to", "     +1,000  main (node)"],
    );
    types(&mut state, "t");
    shows(
        &state,
        &[
            "     change  tree of callees",
            "     +1,000    + main (node)",
        ],
    );
}

/// The help can be read to its end at any width.
#[test]
fn the_help_fits() {
    for width in [30, 60, 80, 120] {
        let mut state = started((width, 80));
        types(&mut state, "?");
        let shown = text(&state).join(" ").replace('│', " ");
        let words: Vec<&str> = shown.split_whitespace().collect();
        let shown = words.join(" ");
        for (key, what) in super::super::keys::HELP {
            assert!(shown.contains(key), "{width}: {key}: {shown}");
            let what: Vec<&str> = what.split_whitespace().collect();
            let found = shown.contains(&what.join(" "));
            assert!(found, "{width}: {what:?}: {shown}");
        }
        assert!(shown.contains("1 KiB is 1,024 bytes."), "{width}: {shown}");
    }
}

/// When most memory is older than memprof, the screen gives advice.
#[test]
fn a_target_from_before() {
    let old = |grown| {
        let stacks: [(&[Frame], Usage); 1] = [(&[at(0, 2)], kib(grown, 0))];
        Arc::new(Report {
            profile: Arc::new(profile(&stacks, &[kib(100_000, 0)])),
            symbols: Arc::new(symbols(&[(at(0, 2), "grow", Language::Other)])),
            sequence: grown,
        })
    };
    let mut state = of_functions(false, (80, 24));
    feed(&mut state, Input::Report(old(4)));
    shows(
        &state,
        &[
            "100.0 % was there before memprof attached",
            "m now, d later for the change by stack; all of it: `memprof top -- COMMAND`",
        ],
    );
    assert_eq!(names(&state), ["grow (node)", "[no function]"]);
    types(&mut state, "m");
    shows(&state, &["d: what has changed since mark 1"]);
    types(&mut state, "d");
    feed(&mut state, Input::Report(old(40)));
    let advised = |state: &UiState| text(state).iter().any(|l| l.contains("before memprof"));
    assert!(!advised(&state) && names(&state)[0] == "grow (node)");
    let mut narrow = of_functions(false, (30, 24));
    feed(&mut narrow, Input::Report(old(4)));
    shows(&narrow, &["100.0 % is old: m, then d"]);
    // If most memory has stacks, there is no advice.
    assert!(!advised(&started((80, 24))));
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
        "      4,000  52.7        ↳ malloc (libc-2.31.so)"
    );
    press(&mut state, KeyCode::Down);
    assert_eq!(text(&state)[22], "malloc (libc-2.31.so)");
    press(&mut state, KeyCode::Left);
    press(&mut state, KeyCode::Left);
    assert_eq!(rows(&state), open);
    press(&mut state, KeyCode::Left);
    press(&mut state, KeyCode::Left);
    assert_eq!(rows(&state), closed);
    // The root cannot be folded.
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
        .map(|n| n.trim_start_matches(['+', '-', '↳', ' ']).to_owned())
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
        "- ↳ grow\u{fffd}[31m (node)",
        "↳ malloc (libc-2.31.so)",
    ];
    assert_eq!(names(&state), way);
    types(&mut state, "o");
    assert_eq!(names(&state)[3], "↳ malloc (libc-2.31.so+0x4)");
    shows(&state, &["tree of callees, by call site, \"MALL\""]);
    types(&mut state, "ol");
    shows(&state, &["tree of callees, without inlined, \"MALL\""]);
    press(&mut state, KeyCode::Esc);
    assert_eq!(rows(&state).len(), 3);
}

/// With many functions, the list scrolls as little as necessary, and the cursor stays on its function.
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
    let mut state = of_functions(false, (80, 24));
    feed(&mut state, Input::Report(many(950)));
    for _ in 0..50 {
        press(&mut state, KeyCode::Down);
    }
    let line = |state: &UiState| {
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
    assert_eq!(line(&state), (selected.clone(), Some(9)));
    press(&mut state, KeyCode::End);
    shows(&state, &["f99 (node)"]);
    press(&mut state, KeyCode::Home);
    shows(&state, &["f50 (node)"]);
    press(&mut state, KeyCode::PageDown);
    assert_eq!(state.in_functions.cursor, state.page());
}

#[test]
fn a_long_name_is_seen_to_its_end() {
    let mut state = of_functions(false, (40, 24));
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
