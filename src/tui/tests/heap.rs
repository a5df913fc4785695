//! The lines about a heap snapshot.

use std::time::{Duration, UNIX_EPOCH};

use super::*;
use memprof_heap::{
    Allocator, Heap, HeapRegion, HeapSnapshot, Mallinfo, RegionRow, Taken, Unreachable,
};

fn snapshot(allocator: Allocator) -> Arc<HeapSnapshot> {
    let row = |what, resident| RegionRow {
        what,
        chunks: 1,
        bytes: resident,
        resident,
    };
    let heap = Heap {
        allocator,
        rows: vec![
            row(HeapRegion::Live, 301 << 20),
            row(HeapRegion::Top, 45 << 20),
            row(HeapRegion::Overhead, 1 << 20),
        ],
        anonymous: 347 << 20,
        trimmable: 12 << 20,
        unreachable: Some(Unreachable {
            bytes: 3 << 10,
            ..Unreachable::default()
        }),
        taken: Taken {
            stop_ms: 9.14,
            ..Taken::default()
        },
        ..Heap::default()
    };
    Arc::new(HeapSnapshot {
        heap,
        taken: UNIX_EPOCH + Duration::from_secs(12 * 3600 + 67),
        grown_by: None,
        zero_by: None,
        by_stack: None,
    })
}

fn glibc() -> Allocator {
    Allocator::Glibc {
        arenas: 1,
        thread_caches: 1,
        mallinfo2: Mallinfo::default(),
    }
}

/// The text of the screen as a single line.
fn words(state: &UiState) -> String {
    let text = text(state).join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn h_asks_once_and_the_line_has_the_figures() {
    let mut state = of_functions(false, (80, 24));
    types(&mut state, "h");
    shows(&state, &["heap: there is no report yet"]);
    assert!(state.heap.wanted.is_none());
    feed(&mut state, Input::Report(report(4000)));
    let before = state.page();
    types(&mut state, "h");
    let pid = state.report.as_ref().unwrap().profile.target.pid;
    assert_eq!(state.heap.wanted.take(), Some(pid));
    types(&mut state, "h");
    assert!(state.heap.wanted.is_none(), "one at a time");
    feed(&mut state, Input::Heap(Ok(snapshot(glibc()))));
    let wanted = "heap of process 0, 12:01:07 UTC: 301.0 MiB of 347.0 MiB of anonymous memory is heap in use, 45.0 MiB is free \
                  heap. 45.0 MiB of it is free at the ends of arenas. malloc_trim(0) would return 12.0 MiB to the system now. \
                  Stop 9.1 ms";
    assert!(words(&state).contains(wanted), "{:#?}", text(&state));
    // The three lines reduce the height of the list.
    assert_eq!(state.page() + 2, before);
    // The lines stay, and another snapshot can be requested.
    for _ in 0..20 {
        feed(&mut state, Input::Report(report(4000)));
    }
    assert!(words(&state).contains(wanted));
    types(&mut state, "h");
    assert!(state.heap.wanted.is_some());
}

#[test]
fn what_failed_is_said_in_the_line() {
    let mut state = started((80, 24));
    let long = "cannot take a heap snapshot: \x1b[31m".to_owned() + &"reason ".repeat(80);
    for (heard, said) in [
        (
            Err("process 7 has ended".to_owned()),
            "heap: process 7 has ended",
        ),
        (
            Err(long),
            "heap: cannot take a heap snapshot: \u{fffd}[31mreason reason",
        ),
        (
            Ok({
                let mut refused = HeapSnapshot::clone(&snapshot(Allocator::Refused {
                    reason: "a list of free chunks is broken at 0x10".to_owned(),
                }));
                refused.heap.rows.clear();
                Arc::new(refused)
            }),
            "The heap was found and not read: a list of free chunks is broken at 0x10. Stop 9.1 ms",
        ),
    ] {
        types(&mut state, "h");
        feed(&mut state, Input::Heap(heard));
        assert!(words(&state).contains(said), "{:#?}", text(&state));
    }
    let mut none = HeapSnapshot::clone(&snapshot(Allocator::Unknown));
    none.heap.rows.clear();
    none.heap.anonymous = 5 << 20;
    feed(&mut state, Input::Heap(Ok(Arc::new(none))));
    assert!(
        words(&state)
            .contains("5.0 MiB of anonymous memory, none of it in a heap that memprof reads.")
    );
}

#[test]
fn it_fits_every_screen() {
    for size in [(20, 5), (50, 12), (200, 40)] {
        let mut state = started(size);
        feed(&mut state, Input::Heap(Ok(snapshot(glibc()))));
        let lines = text(&state);
        assert!(lines.iter().any(|line| line.contains("heap")), "{lines:#?}");
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= size.0.into())
        );
    }
}
