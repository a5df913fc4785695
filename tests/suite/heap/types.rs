//! Objects by type, and what leads to them, against what workloads say of themselves: each number is exact.

use serde::Deserialize;

pub use crate::common::workload::compiled_by as compiled;
use crate::common::workload::{Workload, program};
use crate::heap::glibc::snapshot;
use memprof_heap::{Heap, HeapRegion, RootKind, TypeKind, TypeRow};

/// What the C++ workload prints.
#[derive(Debug, Deserialize)]
struct Classes {
    /// Name, number, number of forgotten ones.
    classes: Vec<(String, u64, u64)>,
    /// Name of the variable, name of the class, number.
    variables: Vec<(String, String, u64)>,
    texts: u64,
}

/// What the Rust workload prints.
#[derive(Debug, Deserialize)]
struct Boxes {
    types: Vec<(String, u64, u64)>,
    texts: u64,
    forgotten: u64,
}

fn types(heap: &Heap) -> &[TypeRow] {
    let types = heap.types.as_ref().expect("the heap was read");
    let bytes = |types: &[TypeRow]| types.iter().map(|row| row.bytes).sum::<u64>();
    assert_eq!(bytes(&types.rows), types.bytes);
    let live = heap.rows.iter().filter(|row| row.what.is_live());
    assert_eq!(live.map(|row| row.bytes).sum::<u64>(), types.bytes);
    let chunks = heap.rows.iter().filter(|row| row.what.is_live());
    let count = types.rows.iter().map(|row| row.count).sum::<u64>();
    assert_eq!(chunks.map(|row| row.chunks).sum::<u64>(), count);
    let lost = heap.unreachable.as_ref().unwrap();
    let unreachable = types.rows.iter().map(|row| row.unreachable);
    assert_eq!(unreachable.sum::<u64>(), lost.chunks);
    let roots = heap.retained.as_ref().unwrap();
    let reached: u64 = roots.roots.iter().map(|root| root.count).sum();
    assert_eq!(reached + lost.chunks, count, "{:?}", HeapRegion::ALL);
    &types.rows
}

fn row<'h>(rows: &'h [TypeRow], kind: TypeKind, name: &str) -> &'h TypeRow {
    let found = rows.iter().find(|row| row.kind == kind && row.name == name);
    found.unwrap_or_else(|| panic!("{name}: {rows:#?}"))
}

/// In a static program, the loader's own path is a text, too.
fn is_text(count: u64, said: u64) -> bool {
    (said..=said + 1).contains(&count)
}

/// Compares each class, and each variable if there are symbols.
fn compare_classes(flags: &[&str], variables: bool) {
    let all = [&["-O1", "-pthread"], flags].concat();
    let Some(program) = compiled("c++", "classes.cpp", &all) else {
        return;
    };
    let mut workload = Workload::start(&program);
    let said: Classes = serde_json::from_str(&workload.lines.line()).unwrap();
    let heap = snapshot(workload.pid());
    workload.end();
    let rows = types(&heap);
    for (name, count, forgotten) in &said.classes {
        let row = row(rows, TypeKind::Class, name);
        assert_eq!(
            (row.count, row.unreachable),
            (*count, *forgotten),
            "{flags:?} {row:?}"
        );
    }
    let classes = rows.iter().filter(|row| row.kind == TypeKind::Class);
    assert_eq!(classes.count(), said.classes.len(), "{flags:?} {rows:#?}");
    let texts = row(rows, TypeKind::Text, "");
    assert!(is_text(texts.count, said.texts), "{flags:?} {texts:?}");
    for (variable, class, count) in said.variables.iter().filter(|_| variables) {
        let by = &row(rows, TypeKind::Class, class).retained_by[0];
        assert_eq!(
            (by.kind, &by.root, by.count),
            (RootKind::Variable, variable, *count)
        );
    }
}

#[test]
fn classes_and_the_variables_that_lead_to_them() {
    compare_classes(&[], true);
    compare_classes(&["-no-pie"], true);
    compare_classes(&["-static"], true);
}

#[test]
fn classes_of_stripped_programs() {
    compare_classes(&["-s"], false);
    compare_classes(&["-s", "-static"], false);
    compare_classes(&["-s", "-static-pie"], false);
}

/// Without descriptions of classes, the symbols of their tables say what they are.
#[test]
fn classes_without_type_information() {
    compare_classes(&["-fno-rtti"], true);
}

/// Without symbols, too, they are told apart, by where their tables are.
#[test]
fn classes_without_any_name() {
    let Some(program) = compiled("c++", "classes.cpp", &["-O1", "-fno-rtti", "-s"]) else {
        return;
    };
    let mut workload = Workload::start(&program);
    let said: Classes = serde_json::from_str(&workload.lines.line()).unwrap();
    let heap = snapshot(workload.pid());
    workload.end();
    let rows = types(&heap);
    for (name, count, forgotten) in &said.classes {
        let same = |row: &&TypeRow| {
            row.kind == TypeKind::Class && (row.count, row.unreachable) == (*count, *forgotten)
        };
        let row = rows.iter().find(same);
        let row = row.unwrap_or_else(|| panic!("{name}: {rows:#?}"));
        let nameless = row.name.starts_with("[virtual functions at classes-cpp");
        assert_eq!(nameless, name.as_str() != "std::runtime_error", "{row:?}");
    }
}

fn boxes(flags: &[&str]) -> Option<(Boxes, Heap)> {
    let flags = [&["--edition=2021", "--crate-name=boxes"], flags].concat();
    let program = compiled("rustc", "boxes.rs", &flags)?;
    let mut workload = Workload::start(&program);
    let said: Boxes = serde_json::from_str(&workload.lines.line()).unwrap();
    let heap = snapshot(workload.pid());
    workload.end();
    Some((said, heap))
}

#[test]
fn rust_types_behind_trait_objects() {
    for flags in [
        &["-Copt-level=0"][..],
        &["-Copt-level=2"],
        &["-Copt-level=1", "-Csymbol-mangling-version=v0"],
        &["-Copt-level=1", "-Ctarget-feature=+crt-static"],
    ] {
        let Some((said, heap)) = boxes(flags) else {
            return;
        };
        let rows = types(&heap);
        for (name, count, forgotten) in &said.types {
            let row = row(rows, TypeKind::TraitObject, name);
            assert_eq!(
                (row.count, row.unreachable),
                (*count, *forgotten),
                "{flags:?} {row:?}"
            );
        }
        assert_eq!(heap.unreachable.as_ref().unwrap().chunks, said.forgotten);
        // Debug information says whose texts they are.
        let texts = row(rows, TypeKind::Declared, "text of String");
        assert_eq!(texts.count, said.texts, "{flags:?} {texts:?}");
        for (name, variable) in [("Cat", "BOXES"), ("Spider", "SHARED")] {
            let by = &row(rows, TypeKind::TraitObject, &format!("boxes::{name}")).retained_by[0];
            assert_eq!(
                (by.kind, by.root.as_str()),
                (RootKind::Variable, &*format!("boxes::{variable}"))
            );
        }
    }
}

/// Without symbols, the number of objects of each type is known, and no name.
#[test]
fn rust_types_of_stripped_programs() {
    let Some((said, heap)) = boxes(&["-Copt-level=2", "-Cstrip=symbols"]) else {
        return;
    };
    let rows = types(&heap);
    let traits = rows.iter().filter(|row| row.kind == TypeKind::TraitObject);
    let mut traits: Vec<_> = traits
        .inspect(|row| {
            assert!(
                row.name.starts_with("[table of a trait at boxes-rs"),
                "{row:?}"
            )
        })
        .map(|row| (row.count, row.unreachable))
        .collect();
    traits.sort_by(|a, b| b.cmp(a));
    let said = said
        .types
        .into_iter()
        .map(|(_, count, forgotten)| (count, forgotten));
    assert_eq!(traits, said.collect::<Vec<_>>());
}

/// Threads and mappings lead to objects, too.
#[test]
fn threads_and_mappings_are_roots() {
    let mut workload = Workload::start(&program("leaks"));
    workload.lines.line();
    let heap = snapshot(workload.pid());
    workload.end();
    types(&heap);
    let roots = &heap.retained.as_ref().unwrap().roots;
    let named = |name: &str| -> u64 {
        let roots = roots.iter().filter(|root| root.name == name);
        roots.map(|root| root.count).sum()
    };
    // 500 blocks in one variable; a list of 1000 that begins in another.
    assert_eq!(named("kept"), 500, "{roots:#?}");
    assert_eq!(named("list"), 1000, "{roots:#?}");
    let mapped = roots
        .iter()
        .find(|root| root.kind == RootKind::Mapping && root.count >= 100);
    assert!(mapped.is_some(), "{roots:#?}");
    // Each of four threads has a block on its stack, and one in a thread-local variable.
    let threads = roots
        .iter()
        .filter(|root| root.kind == RootKind::Thread && root.bytes >= 700);
    assert_eq!(threads.count(), 4, "{roots:#?}");
}
