//! Who holds Python's objects, against a program that knows it.

use std::path::Path;
use std::process::Command;

use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::Workload;
use crate::heap::python::{python, snapshot};
use memprof_heap::BlockRole;

/// Objects in lists that are attributes, or in slots, or in a list in a dict.
const HOLDERS: &str = "\
import os
class Thing: __slots__ = ()
class Order:
    def __init__(self, n): self.name, self.items, self.blob = 'x', [Thing() for _ in range(n)], bytes(300)
class Slotted:
    __slots__ = ('rows',)
    def __init__(self, n): self.rows = {'all': [Thing() for _ in range(n)]}
orders = [Order(40) for _ in range(500)]
slotted = tuple(Slotted(30) for _ in range(300))
print('ready', flush=True)
os.read(0, 1)
";

fn compare(version: &str, program: &Path) {
    let mut workload = Workload::start_as(Command::new(program).args(["-c", HOLDERS]));
    workload.lines.line();
    let read = python(snapshot(workload.pid()));
    workload.lines.close();
    let held = |name: &str, role: BlockRole, holder: &str| -> u64 {
        let is = |of: &str, name: &str| of.rsplit('.').next() == Some(name);
        let mut rows = read.types.iter();
        let row = rows.find(|row| row.role == role && is(&row.name, name));
        let row = row.unwrap_or_else(|| panic!("{version}: {name} {:#?}", read.types));
        let by = row.held_by.iter().find(|by| is(&by.name, holder));
        by.map_or(0, |by| by.count)
    };
    // Any word of an object counts as a reference, also in the remains of earlier objects behind it.
    let about = |count: u64, true_count: u64| count.abs_diff(true_count) <= true_count / 50;
    for (name, role, holder, count) in [
        ("Thing", BlockRole::Object, "Order", 20_000),
        ("Thing", BlockRole::Object, "Slotted", 9_000),
        ("list", BlockRole::Memory, "Order", 500),
        ("list", BlockRole::Memory, "Slotted", 300),
        ("bytes", BlockRole::Object, "Order", 500),
        ("Order", BlockRole::Object, "module", 500),
        ("Slotted", BlockRole::Object, "module", 300),
    ] {
        let found = held(name, role, holder);
        assert!(about(found, count), "{version}: {name} {holder} {found}");
    }
}

#[test]
fn objects_are_held_by_the_nearest_that_is_no_collection() {
    let pythons = pythons();
    if pythons.is_empty() {
        return skip("there is no CPython");
    }
    pythons
        .iter()
        .for_each(|(version, path)| compare(version, path));
}
