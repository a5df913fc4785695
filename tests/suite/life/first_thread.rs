//! Processes that go on after their first thread has ended: `/proc/PID` shows nothing of their memory then.

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
#[cfg(target_arch = "x86_64")]
use crate::common::memprof::run;
use memprof_sys::ids::Pid;

use crate::common::process::{cont, figure, state, stop, threads, wait_until};
use crate::common::workload::{Workload, named, program, unique_name};
use crate::life::{KIB, MIB};

/// The kernel's figure, from the directory of the thread that is left.
fn anonymous(pid: Pid) -> u64 {
    let left = threads(pid).into_iter().find(|tid| *tid != pid).unwrap();
    figure(&format!("/proc/{left}/smaps_rollup"), "Anonymous:")
}

/// Stops a process and waits until memprof's figure equals the kernel's.
#[track_caller]
fn equals(m: &Memprof, pid: Pid) {
    stop(pid);
    let kernel = anonymous(pid);
    wait_until(|| m.tree().resident() * KIB == kernel);
    cont(pid);
}

/// Has the first thread end.
fn leave(workload: &mut Workload) {
    workload.lines.tell("leave");
    wait_until(|| state(workload.pid()) == 'Z');
}

#[test]
fn they_are_found_in_every_way_and_followed() {
    let named = named("scenarios", &unique_name("s"));
    let mut workload = Workload::start(&named.path);
    let pid = workload.pid();
    let group = Group::new();
    group.put(pid);
    leave(&mut workload);
    let (number, group_name) = (pid.to_string(), format!("/{}", group.name().display()));
    for selector in [
        &["--pid", &number, "--freeze", "--max-freeze", "60000"][..],
        &["--comm", &named.name],
        &["--cgroup", &group_name],
    ] {
        let m = Memprof::start(selector);
        m.said(&format!("following {} (pid {pid})", named.name));
        equals(&m, pid);
        workload.lines.tell("mmap 4194304");
        // Its program is known, with the names of its functions and its unwind tables.
        m.tree()
            .must_hold(&["cmd_mmap", "run_command", "serve", "go_on"], 4 * MIB);
        equals(&m, pid);
        assert!(!m.interrupt().contains("panicked"));
    }
    workload.end();
}

/// It ends under memprof's eyes, and a thread that executes a program takes its place.
#[test]
fn it_may_end_and_come_back_while_memprof_follows() {
    let scenarios = program("scenarios");
    let (mut m, mut lines) = Memprof::start_command(&[], &[scenarios.to_str().unwrap()]);
    let pid = m.followed();
    lines.tell("mmap 2097152");
    lines.tell("leave");
    lines.tell("mmap 4194304");
    m.tree().must_hold(&["cmd_mmap"], 6 * MIB);
    equals(&m, pid);
    lines.tell("exec");
    assert_ne!(state(pid), 'Z');
    lines.tell("mmap 1048576");
    m.tree().must_hold(&["cmd_mmap"], MIB);
    lines.close();
    assert!(m.wait().success());
}

/// The bytes that a function has allocated, as far as samples say.
#[cfg(target_arch = "x86_64")]
fn allocated(m: &Memprof) -> u64 {
    let path = "/v2/functions?kind=alloc_space&search=cmd_malloc_large";
    let rows = m.get(path).json()["rows"].clone();
    rows[0]["total"].as_u64().unwrap_or(0)
}

/// Allocates blocks that are sampled in any case until memprof has seen one.
#[cfg(target_arch = "x86_64")]
fn allocate_until_seen(workload: &mut Workload, m: &Memprof) {
    let before = allocated(m);
    wait_until(|| {
        workload.lines.tell("malloc_large 33554432");
        workload.lines.tell("free_large");
        allocated(m) > before
    });
}

/// The kernel ties probes to a thread.
#[cfg(target_arch = "x86_64")]
#[test]
fn allocations_are_seen_without_it_or_missed_with_a_word() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let attached = run(&["attach-heap", "--yes", "--pid", &pid]);
    assert!(attached.status.success(), "{attached:?}");
    let m = Memprof::attach(workload.pid(), &["--heap"]);
    allocate_until_seen(&mut workload, &m);
    leave(&mut workload);
    m.said("listens to again through another thread");
    allocate_until_seen(&mut workload, &m);
    let summary = m.get("/v2/summary");
    let summary = summary.text();
    assert!(summary.contains("gaps of about a second"), "{summary}");
    m.interrupt();
    let args = [
        "--heap=exact",
        "--no-server",
        "--duration",
        "1",
        "--pid",
        &pid,
    ];
    let said = String::from_utf8_lossy(&run(&args).stderr).into_owned();
    assert!(
        said.contains(&format!("the first thread of process {pid} has ended")),
        "{said}"
    );
    workload.end();
}
