//! Types that only debug information declares, against what workloads say of themselves: each number is exact.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::common::workload::{Workload, compiled_by};
use crate::heap::glibc::snapshot;
use memprof_heap::{Heap, TypeKind, TypeRow};

/// What the workloads print.
#[derive(Debug, Deserialize)]
struct Said {
    /// Name, number, bytes.
    types: Vec<(String, u64, u64)>,
}

fn measure(program: &Path) -> (Said, Heap) {
    let mut workload = Workload::start(program);
    let said = serde_json::from_str(&workload.lines.line()).unwrap();
    let heap = snapshot(workload.pid());
    workload.end();
    (said, heap)
}

fn declared(heap: &Heap) -> Vec<&TypeRow> {
    let rows = &heap.types.as_ref().expect("the heap was read").rows;
    let is_declared = |row: &&TypeRow| row.kind == TypeKind::Declared;
    rows.iter().filter(is_declared).collect()
}

/// Compares all types that the workload names. `others` are further ones that it has.
#[track_caller]
fn compare(said: &Said, heap: &Heap, others: &[&str]) {
    let rows = declared(heap);
    for (name, count, bytes) in &said.types {
        let row = rows.iter().find(|row| row.name == *name);
        let row = row.unwrap_or_else(|| panic!("{name}: {rows:#?}"));
        assert_eq!((row.count, row.bytes), (*count, *bytes), "{row:?}");
    }
    let own = |row: &&&TypeRow| {
        ["shop::", "declared::"]
            .iter()
            .any(|own| row.name.contains(own))
    };
    for row in rows.iter().filter(own) {
        let is_known = said.types.iter().any(|(name, ..)| *name == row.name);
        assert!(is_known || others.contains(&row.name.as_str()), "{row:?}");
    }
    let info = heap.types.as_ref().unwrap().debug_info.as_ref().unwrap();
    assert!(info.files > 0 && info.variables > 0, "{info:?}");
}

/// Memory of the C++ workload's containers whose addresses it cannot say.
const TABLES: [&str; 3] = [
    "buckets of std::unordered_map<long int, std::string> in shop::Book",
    "buffer of std::deque<std::unique_ptr<shop::Detail>> in shop::Book",
    "node of std::map<std::string, std::pair<long int, long int>>",
];

fn containers(flags: &[&str]) -> Option<PathBuf> {
    compiled_by("c++", "declared.cpp", flags)
}

#[test]
fn cpp_containers_and_pointers() {
    for flags in [&["-O2"][..], &["-O0", "-gdwarf-4"], &["-O2", "-static"]] {
        let Some(program) = containers(flags) else {
            return;
        };
        let (said, heap) = measure(&program);
        compare(&said, &heap, &TABLES);
        // Other structures begin with `Link`: a pointer to one does not say what is there.
        let links = declared(&heap)
            .into_iter()
            .any(|row| row.name.contains("Link"));
        assert!(!links, "{flags:?}");
    }
}

/// Debug information of the program in a file of its own, which a link in the program names.
#[test]
fn types_from_a_debug_file() {
    let Some(program) = containers(&["-O1"]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let debug = dir.path().join("declared.debug");
    let stripped = dir.path().join("declared");
    let run = |arguments: &[&Path]| {
        let status = Command::new("objcopy").args(arguments).status();
        assert!(status.unwrap().success(), "{arguments:?}");
    };
    run(&[Path::new("--only-keep-debug"), &program, &debug]);
    let link = PathBuf::from(format!("--add-gnu-debuglink={}", debug.display()));
    run(&[Path::new("--strip-all"), &link, &program, &stripped]);
    let (said, heap) = measure(&stripped);
    compare(&said, &heap, &TABLES);
    std::fs::remove_file(debug).unwrap();
    let (_, heap) = measure(&stripped);
    let own = declared(&heap)
        .into_iter()
        .any(|row| row.name.contains("shop::"));
    assert!(!own, "the debug file is gone");
}

#[test]
fn rust_containers_and_boxes() {
    for level in ["-Copt-level=0", "-Copt-level=2"] {
        let flags = ["--edition=2024", "--crate-name=declared", level];
        let Some(program) = compiled_by("rustc", "declared.rs", &flags) else {
            return;
        };
        let (said, heap) = measure(&program);
        let tables = [
            "buckets of HashMap<u64, String> in declared::Book",
            "buffer of VecDeque<Box<declared::Detail>> in declared::Book",
            "node of BTreeMap<u32, Box<declared::Item>> in declared::Book",
        ];
        compare(&said, &heap, &tables);
    }
}
