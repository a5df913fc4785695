//! A snapshot of a process that memprof profiles: the pages that the process writes to while its copy-on-write child lives
//! keep their owners.

use crate::common::binary::memprof;
use crate::common::memprof::Memprof;
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;

const MIB: u64 = 32;
const KIB: u64 = MIB * 1024;

/// Page faults of a process that needed no file.
fn faults(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

fn check(options: &[&str]) {
    let mut workload = Workload::start_with(&program("rewriter"), &[&MIB.to_string()]);
    assert_eq!(workload.lines.line(), "ok");
    let pid = workload.pid();
    let m = Memprof::attach(pid, options);
    m.said("following ");
    workload.lines.tell("fill");
    workload.lines.tell("rewrite");
    let before = faults(pid);
    let target = pid.to_string();
    for _ in 0..3 {
        let taken = memprof(&["heap", "--pid", &target, "--snapshot", "fork"]);
        assert!(taken.status.success(), "{taken:?}");
    }
    let copied = faults(pid) - before;
    workload.lines.tell("rest");
    assert!(copied > KIB / 4, "{copied} pages were written to meanwhile");

    let tree = m.tree();
    assert_eq!(tree.through("fill").value, KIB, "{}", tree.text());
    // The pages of its thread's stack.
    assert!(tree.through("rewrite").value < 64, "{}", tree.text());
    let resident: u64 = tree.value - tree.cache_value;
    assert!(
        resident >= 2 * KIB,
        "the pages from before are there, without a stack"
    );
    assert_eq!(m.lost(), Vec::<String>::new());
    let processes = m.get("/v2/processes").json();
    assert_eq!(
        processes["rows"].as_array().map(Vec::len),
        Some(1),
        "{processes}"
    );
    workload.end();
}

#[test]
fn pages_keep_their_owners() {
    check(&["--stacks", "all"]);
}

#[test]
fn pages_keep_their_owners_and_the_child_is_not_followed() {
    check(&["--stacks", "all", "--follow-forks"]);
}
