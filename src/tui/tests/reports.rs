//! Effects of new reports: marks and differences, pauses, losses.

use super::*;
use crate::tui::marks::MAX_MARKS;

#[test]
fn changes_since_a_mark() {
    let mut state = started((80, 24));
    types(&mut state, "d");
    shows(&state, &["there is no mark yet; m sets one"]);
    types(&mut state, "m");
    shows(&state, &["mark 1 set at 00:00:00 UTC"]);
    // The confirmation stays for some reports, whenever the mark was set.
    for _ in 0..9 {
        feed(&mut state, Input::Report(report(1000)));
    }
    types(&mut state, "[m");
    feed(&mut state, Input::Report(report(1000)));
    shows(&state, &["mark 2 set at 00:00:00 UTC"]);
    let mut state = started((80, 24));
    types(&mut state, "m");
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
        "     -3,000       1,000        ↳ malloc (libc-2.31.so)",
        "          0       2,560        app::read (node)",
        "          0       1,024      [before attach: [heap]]",
    ];
    assert_eq!(rows(&state), wanted);
    types(&mut state, "]]d");
    assert_eq!(rows(&state)[0], "      4,584 100.0  - all");
}

/// Functions that have disappeared since the mark are listed beside current ones.
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
    let gone = "     -4,000           0        ↳ malloc (libc-2.31.so)";
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
    assert_eq!(state.marks.len(), MAX_MARKS);
    // The compared mark is dropped; the oldest remaining mark replaces it.
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
    let mut state = of_functions(true, (80, 24));
    shows(&state, &["waiting for the first report"]);
    state.update(Input::ReportError("the target has not started yet".into()));
    shows(&state, &["the target has not started yet"]);
    let mut lossy = report(4000).as_ref().clone();
    let mut changed = lossy.profile.as_ref().clone();
    changed.losses.add("events", 3);
    changed.kernel_before.rss_anon += 8192;
    changed.kernel_after.rss_anon += 4096;
    changed.target.alive = false;
    changed.target.pids.push(memprof_sys::ids::Pid(43));
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
