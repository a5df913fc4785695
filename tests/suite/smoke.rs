//! All of memprof, with a program that prints how many bytes each of its functions holds.
//!
//! Needs root and `cc`.

use crate::common::memprof::{Memprof, run_to_error};
use crate::common::process::{comm, wait_until};
use crate::common::tree::Node;
use crate::common::workload::{Expected, Family, Member, Workload, named, program, unique_name};

const KIB: u64 = 1024;

/// The bytes of one function in several processes.
struct TreeRow<'a> {
    function: &'a Expected,
    bytes: u64,
}

fn rows<'a>(members: &[&'a Member]) -> Vec<TreeRow<'a>> {
    let mut rows: Vec<TreeRow<'a>> = Vec::new();
    for function in members.iter().flat_map(|m| &m.functions) {
        match rows.iter_mut().find(|r| r.function.name == function.name) {
            Some(row) => row.bytes += function.bytes,
            None => rows.push(TreeRow {
                function,
                bytes: function.bytes,
            }),
        }
    }
    rows
}

/// Every function has the bytes that the workload printed, in both directions; no other function of the workload has
/// any.
#[track_caller]
fn check(m: &Memprof, members: &[&Member]) {
    let (direct, reversed) = (m.tree(), m.reversed());
    for TreeRow { function, bytes } in rows(members) {
        let name = function.name.as_str();
        let outward: Vec<&str> = function.chain.iter().rev().map(String::as_str).collect();
        let inward: Vec<&str> = function.chain.iter().map(String::as_str).collect();
        let found = [
            direct.at(&[name]).value,
            direct.at(&outward).value,
            reversed.own_after(&inward),
        ];
        println!("{name}: {} KiB expected, {found:?} found", bytes / KIB);
        assert_eq!(
            found.map(|kib| kib * KIB),
            [bytes; 3],
            "{name}\n{}",
            reversed.text()
        );
    }
    check_sums(&direct, &reversed);
    let not_of_these = |n: &Node| {
        let name = n.function().unwrap_or_default();
        name.starts_with("child_") && !members.iter().any(|m| m.role == "child")
    };
    assert!(!direct.frames.iter().any(not_of_these), "{}", direct.text());
}

fn check_sums(direct: &Node, reversed: &Node) {
    assert_eq!(direct.value, reversed.value);
    assert_eq!(direct.cache_value, reversed.cache_value);
}

fn start(named: &crate::common::workload::Named) -> (Workload, Family) {
    let mut workload = Workload::start(&named.path);
    let family = Family::read(&mut workload.lines);
    (workload, family)
}

#[test]
fn memprof_waits_for_a_family() {
    let named = named("forked_allocator", &unique_name("f"));
    let m = Memprof::start(&["--comm", &named.name, "--follow-forks"]);
    m.said("waiting for a process named");
    let (workload, family) = start(&named);
    m.said("following ");
    assert_eq!(m.followed(), workload.pid());
    check(&m, &[family.parent(), family.child()]);
    workload.end();
}

#[test]
fn memprof_waits_for_the_parent_alone() {
    let named = named("forked_allocator", &unique_name("f"));
    let m = Memprof::start(&["--comm", &named.name]);
    m.said("waiting for a process named");
    let (workload, family) = start(&named);
    m.said("following ");
    assert_eq!(m.followed(), workload.pid());
    check(&m, &[family.parent()]);
    workload.end();
}

#[test]
fn a_family_that_runs_already() {
    let named = named("forked_allocator", &unique_name("f"));
    let (workload, family) = start(&named);
    let said = run_to_error(&["--comm", &named.name, "--listen", "127.0.0.1:0"]);
    for pid in [family.parent().pid, family.child().pid] {
        assert!(said.contains(&format!(" {pid} ")), "{said}");
    }
    assert!(
        said.contains(&format!("2 processes are named {}", named.name)),
        "{said}"
    );
    assert!(
        said.contains("--pid") && said.contains("--follow-forks"),
        "{said}"
    );

    let m = Memprof::start(&["--comm", &named.name, "--follow-forks"]);
    assert_eq!(m.followed(), workload.pid());
    // All of it was allocated before the attach.
    let tree = m.tree();
    let held: u64 = family
        .processes
        .iter()
        .flat_map(|p| &p.functions)
        .map(|f| f.bytes)
        .sum();
    assert!(tree.unknown() * KIB >= held, "{}", tree.text());
    workload.end();
}

#[test]
fn a_command() {
    let program = program("forked_allocator");
    let command = [program.to_str().unwrap()];
    for follow in [true, false] {
        let args: &[&str] = if follow { &["--follow-forks"] } else { &[] };
        let (mut m, mut lines) = Memprof::start_command(args, &command);
        let family = Family::read(&mut lines);
        assert_eq!(m.followed().0, family.parent().pid);
        let members = [family.parent(), family.child()];
        check(&m, &members[..if follow { 2 } else { 1 }]);
        lines.close();
        assert!(m.wait().success());
    }
}

/// The kernel keeps 15 bytes of a name. A program with the same 15 bytes must not be mistaken for the target.
#[test]
fn a_long_name() {
    let wanted = named("forked_allocator", &unique_name("forked_allocator_long_"));
    let other = named("forked_allocator", &unique_name("forked_allocator_other_"));
    let (before, _) = start(&other);
    wait_until(|| comm(before.pid()) == "forked_allocato");

    // While memprof waits, another program starts first.
    let m = Memprof::start(&["--comm", &wanted.name, "--follow-forks"]);
    let (after, _) = start(&other);
    let (workload, family) = start(&wanted);
    m.said("following ");
    assert_eq!(m.followed(), workload.pid());
    check(&m, &[family.parent(), family.child()]);
    drop(m);

    // The target runs already.
    let m = Memprof::start(&["--comm", &wanted.name, "--follow-forks"]);
    assert_eq!(m.followed(), workload.pid());
    for workload in [before, after, workload] {
        workload.end();
    }
}
