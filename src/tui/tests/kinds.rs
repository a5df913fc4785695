//! Kinds of memory that are estimates, or that count objects.

use super::*;
use crate::testing::with_heap;
use memprof_profile::measure::{INUSE_OBJECTS, INUSE_SPACE};

/// `malloc` holds 40 MiB in 5,000 allocations; the 64 KiB of `read` have an error of 1 MiB.
#[test]
fn kinds_of_the_heap_have_their_unit_and_errors() {
    let mut state = of_functions(false, (80, 24));
    let mut counted = Report::clone(&report(4000));
    let profile = Arc::make_mut(&mut counted.profile);
    let (mib, samples) = (1 << 20, [(INUSE_SPACE, 40 << 20), (INUSE_OBJECTS, 5000)]);
    let [space, objects] = samples;
    with_heap(
        profile,
        &[
            &[(space.0, space.1, mib), (objects.0, objects.1, 100)],
            &[(INUSE_SPACE, 64 << 10, mib)],
        ],
    );
    feed(&mut state, Input::Report(Arc::new(counted)));
    // The totals have a separate line.
    let heap = "heap, estimated: live 41,024 ±2,839 KiB in 5,000 ±196 objects   allocated 0 KiB";
    assert_eq!(text(&state)[3], heap);
    assert_eq!(text(&state).len(), 24);
    types(&mut state, "N");
    shows(&state, &["functions by self, temporary allocations"]);
    types(&mut state, "NNNN");
    shows(
        &state,
        &[
            "self objects     % total objects     %  functions by self, live allocations",
            "     ~5,000 100.0       ~5,000 100.0  malloc (libc-2.31.so)",
        ],
    );
    types(&mut state, "N");
    shows(
        &state,
        &[
            "    ~40,960  99.8      ~40,960  99.8  malloc (libc-2.31.so)",
            "     <2,072   0.2       <2,072   0.2  app::read (node)",
        ],
    );
    types(&mut state, "t*");
    shows(&state, &["     <2,072   0.2", "    ~41,024 100.0  - all"]);
    // Without the heap, the line is absent.
    feed(&mut state, Input::Report(report(4000)));
    assert!(
        !text(&state)
            .iter()
            .any(|line| line.contains("heap, estimated"))
    );
}
