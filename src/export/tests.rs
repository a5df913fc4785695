//! Heap estimates, in bytes and in objects, in the formats that show one kind.

use std::sync::Arc;

use super::ExportOptions;
use super::testing::{written, written_with};
use crate::testing::report;
use crate::testing::{at, kib, profile, with_heap};
use memprof_profile::measure::{ALLOC_OBJECTS, ALLOC_SPACE, HEAP, INUSE_OBJECTS, INUSE_SPACE};
use memprof_profile::{Kind, Report};

const MIB: u64 = 1 << 20;

/// `large` holds 40 MiB in 5,000 objects, `small` holds 64 KiB in 9. The standard error of both is 1 MiB and 100 objects.
fn heap() -> Report {
    let stacks = [[at(0, 4), at(0, 1)], [at(0, 5), at(0, 1)]];
    let [large, small] = [&stacks[0], &stacks[1]];
    let mut profile = profile(&[(large, kib(8000, 0)), (small, kib(4, 0))], &[]);
    with_heap(
        &mut profile,
        &[
            &[
                (INUSE_SPACE, 40 * MIB, MIB),
                (INUSE_OBJECTS, 5000, 100),
                (ALLOC_SPACE, 80 * MIB, MIB),
                (ALLOC_OBJECTS, 9000, 100),
            ],
            &[(INUSE_SPACE, MIB / 16, MIB), (INUSE_OBJECTS, 9, 100)],
        ],
    );
    let names = [(at(0, 1), "main"), (at(0, 4), "large"), (at(0, 5), "small")];
    report(profile, &names)
}

fn exported(format: &str, name: &str) -> String {
    let options = ExportOptions {
        kind: Kind::by_name(name).unwrap(),
        ..ExportOptions::default()
    };
    written_with(format, &heap(), &options)
}

#[track_caller]
fn must_contain(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn the_summary_has_totals_with_their_errors() {
    let text = written("text", &heap());
    must_contain(
        &text,
        &[
            "\nlive heap          41024 KiB  ±2839, estimated: allocated and not freed",
            "\nlive allocs         5009      ±277, estimated: allocations not freed",
            "\nallocated          81920 KiB  ±2008, estimated: ",
            "\nallocations         9000      ±196, estimated: ",
            // Nothing was temporary.
            "\ntemporary              0 KiB  estimated: ",
        ],
    );
    // Resident bytes have no errors here, so there is no column of errors.
    must_contain(&text, &["        8004 KiB 100.0%  all\n"]);
    let mut summary = Vec::new();
    super::write_summary(&heap(), None, &mut summary).unwrap();
    let summary = String::from_utf8(summary).unwrap();
    must_contain(
        &summary,
        &[
            "The program's own functions, by live heap (estimated):",
            "      ~40960 KiB       ~40960 KiB  large (node)",
            "       <2072 KiB        <2072 KiB  small (node)",
        ],
    );
}

#[test]
fn trees_count_objects_and_have_margins() {
    must_contain(
        &exported("text", "inuse_objects"),
        &[
            "Call tree of live allocations (estimated), outermost",
            "        5009 objects 100.0%         ±277  all\n",
            "        5000 objects  99.8%         ±196",
            "           9 objects   0.2%         <205",
        ],
    );
    must_contain(
        &exported("text", "inuse_space"),
        &[
            "       40960 KiB  99.8%        ±2008",
            " KiB   0.2%        <2072",
        ],
    );
    // Neither objects nor bytes that are not estimates have a column with the errors of other kinds.
    assert!(!exported("text", "anon").contains("100.0%         "));
}

#[test]
fn functions_have_columns_named_after_the_unit() {
    let table = exported("functions", "inuse_objects");
    must_contain(
        &table,
        &[
            "self_objects,total_objects,self_error_objects,total_error_objects,function,file,category\r\n",
            "5000,5000,100,100,large,",
            "0,5009,0,141,main,",
        ],
    );
    must_contain(
        &exported("functions", "anon"),
        &["self_bytes,total_bytes,function,"],
    );
}

/// The resident memory of the allocations that a filter selects is unknown, so no figure of it may be shown, not even 0.
#[test]
fn selected_allocations_have_no_resident_memory() {
    let mut report = heap();
    let profile = Arc::make_mut(&mut report.profile);
    profile.measures.retain(|measure| measure.name == HEAP.name);
    let options = ExportOptions {
        kind: Kind::by_name("inuse_space").unwrap(),
        ..ExportOptions::default()
    };
    let text = written_with("text", &report, &options);
    for part in ["resident  ", "RSS", "page cache", "page tables", "equal"] {
        assert!(!text.contains(part), "{part:?} in:\n{text}");
    }
    must_contain(&text, &["Selected allocations alone", "live", "large"]);
}

#[test]
fn flame_graphs_count_objects() {
    let svg = exported("svg", "inuse_objects");
    must_contain(
        &svg,
        &[
            "5009 objects, ±277 objects with 95 % confidence",
            "<title>large: 5000 objects, 99.82 %</title>",
            "data-unit=\"objects\"",
        ],
    );
    must_contain(
        &exported("svg", "inuse_space"),
        &[
            "(42008576 bytes), ±2839 KiB with 95 % confidence",
            "large: 40 MiB (41943040 bytes), 99.84 %",
        ],
    );
    let folded = exported("folded", "inuse_objects");
    assert_eq!(folded, "main;large 5000\nmain;small 9\n");
    must_contain(
        &exported("speedscope", "inuse_objects"),
        &[
            "\"name\":\"live allocations (estimated)\",\"unit\":\"none\"",
            "\"endValue\":5009",
        ],
    );
}
