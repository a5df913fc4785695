//! All processes of a control group: those already in it, and those that enter it, are forked in it, or leave it.

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{cont, stop, wait_until};
use crate::common::workload::{Workload, program};
use crate::life::{KIB, MIB};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// Stops these processes and waits until memprof's figure equals the kernel's.
#[track_caller]
fn equals(m: &Memprof, pids: &[Pid]) {
    pids.iter().for_each(|pid| stop(*pid));
    let kernel = pids.iter().map(|pid| figures::read(*pid).unwrap());
    let kernel: u64 = kernel.map(|f| f.anonymous.unwrap() + f.rss_shmem).sum();
    wait_until(|| m.tree().resident() * KIB == kernel);
    pids.iter().for_each(|pid| cont(*pid));
}

#[test]
fn processes_enter_and_leave_a_control_group() {
    let group = Group::new();
    let mut first = Workload::start(&program("scenarios"));
    first.lines.tell("mmap 2097152");
    group.put(first.pid());
    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    assert_eq!(m.followed(), first.pid());
    equals(&m, &[first.pid()]);
    first.lines.tell("mmap 4194304");
    m.tree().must_hold(&["cmd_mmap"], 4 * MIB);

    let mut second = Workload::start(&program("scenarios"));
    second.lines.tell("mmap 1048576");
    equals(&m, &[first.pid()]);
    group.put(second.pid());
    equals(&m, &[first.pid(), second.pid()]);
    // A child is in its parent's group.
    second.lines.tell("mmap 8388608");
    second.lines.tell("fork_cow");
    let children = format!("/proc/{0}/task/{0}/children", second.pid());
    let child = Pid(std::fs::read_to_string(children)
        .unwrap()
        .trim()
        .parse()
        .unwrap());
    equals(&m, &[first.pid(), second.pid(), child]);
    let tree = m.tree();
    assert_eq!(tree.at(&["cow_child_writes"]).value * KIB, 4 * MIB);

    group.take_out(first.pid());
    equals(&m, &[second.pid(), child]);
    second.lines.tell("fork_end");
    equals(&m, &[second.pid()]);
    second.end();
    m.said("is empty; its last profile stays");
    group.put(first.pid());
    m.said_times("following ", 2);
    assert_eq!(m.followed(), first.pid());
    equals(&m, &[first.pid()]);
    m.interrupt();
    first.end();
}

#[test]
fn what_is_no_control_group_is_refused() {
    let out = std::process::Command::new(BINARY)
        .args(["--cgroup", "/no/such/group"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("is not a control group"), "{said}");
}

/// Neither the guard, nor the child that it makes, nor memprof.
#[test]
fn what_memprof_starts_is_not_followed() {
    let group = Group::new();
    let mut workload = Workload::start_with(&program("rewriter"), &["32"]);
    assert_eq!(workload.lines.line(), "ok");
    group.put(workload.pid());
    let name = format!("/{}", group.name().display());
    let procs = group.dir.join("cgroup.procs");
    let script = format!(
        "echo $$ > {} && exec {BINARY} --listen 127.0.0.1:0 --cgroup {name}",
        procs.display()
    );
    let m = Memprof::spawn_as(std::process::Command::new("sh").args(["-c", &script]));
    m.said("following ");
    for _ in 0..3 {
        let reply = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#);
        assert_eq!(reply.status, 201, "{}", reply.text());
        let rows = m.get("/v2/processes").json()["rows"].clone();
        assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
        assert_eq!(rows[0]["pid"], workload.pid().0, "{rows}");
    }
    m.interrupt();
    workload.end();
}
