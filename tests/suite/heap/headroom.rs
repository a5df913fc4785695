//! Snapshots where memory is limited: what would take a control group to its limit is not done, and the reason is said.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::binary::{Ended, MEMPROF, memprof, run};
use crate::common::cgroup::Group;
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::heap::fork::children;
use memprof_sys::ids::Pid;

const MIB: u64 = 1 << 20;

/// A group with a limit, and one in it without.
struct Limited {
    // Dropped first.
    inner: PathBuf,
    outer: Group,
    /// The files with the limit and with what is used.
    limit: &'static str,
    used: &'static str,
}

impl Limited {
    /// `None` where control groups do not limit memory.
    fn new() -> Option<Limited> {
        let (outer, limit, used) = match Group::new_where_memory_is_limited()? {
            (group, 2) => (group, "memory.max", "memory.current"),
            (group, _) => (group, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        let inner = outer.dir.join("inner");
        fs::create_dir(&inner).unwrap();
        Some(Limited {
            inner,
            outer,
            limit,
            used,
        })
    }

    fn put(&self, pid: Pid) {
        fs::write(self.inner.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Leaves this much, and a little that changes meanwhile.
    fn leave(&self, bytes: u64) {
        let used = fs::read_to_string(self.outer.dir.join(self.used)).unwrap();
        let used: u64 = used.trim().parse().unwrap();
        fs::write(self.outer.dir.join(self.limit), (used + bytes).to_string()).unwrap();
    }

    fn dir(&self) -> &str {
        self.outer.dir.to_str().unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let procs = fs::read_to_string(self.inner.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            self.outer.take_out(Pid(pid.parse().unwrap()));
        }
        let _ = fs::remove_dir(&self.inner);
    }
}

pub fn taken(pid: &str) -> Value {
    let ended = memprof(&["heap", "--pid", pid, "--format", "json"]);
    ended.must(0, &[]);
    let heap: Value = serde_json::from_str(&ended.stdout).unwrap();
    heap["taken"].clone()
}

/// A process with 60 MiB.
fn sentinel() -> Workload {
    let mut workload = Workload::start_with(&program("sentinel"), &["60"]);
    // It answers when it has them.
    workload.lines.send("");
    workload.lines.line();
    workload
}

#[test]
fn a_process_near_its_limit_is_copied_not_forked() {
    let Some(group) = Limited::new() else {
        return skip("no control group limits memory");
    };
    let workload = sentinel();
    let pid = workload.pid();
    group.put(pid);
    let pid = pid.to_string();
    group.leave(20 * MIB);
    let copied = taken(&pid);
    assert_eq!(copied["approach"], "copy", "{copied}");
    let reason = copied["not_forked"].as_str().unwrap();
    assert!(
        reason.contains(group.dir()) && reason.contains("all of its memory"),
        "{reason}"
    );
    let ended = memprof(&["heap", "--pid", &pid, "--snapshot", "fork"]);
    ended.must(1, &[group.dir(), "all of its memory", "--snapshot copy"]);
    group.leave(300 * MIB);
    let forked = taken(&pid);
    assert_eq!(forked["approach"], "fork", "{forked}");
}

/// Runs memprof in a control group.
fn memprof_in(group: &Path, args: &str) -> Ended {
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {MEMPROF} {args}",
        group.display()
    );
    run(Command::new("sh").args(["-c", &script]))
}

#[test]
fn what_memprof_has_no_memory_for_is_not_copied() {
    let Some(group) = Limited::new() else {
        return skip("no control group limits memory");
    };
    let workload = sentinel();
    for how in ["auto", "fork", "copy"] {
        group.leave(70 * MIB);
        let args = format!("heap --pid {} --snapshot {how}", workload.pid());
        let ended = memprof_in(&group.inner, &args);
        let said = [
            "there is no memory for a snapshot",
            "memprof needs up to",
            group.dir(),
        ];
        ended.must(1, &said);
        assert_eq!(ended.stdout, "");
        group.leave(300 * MIB);
        memprof_in(&group.inner, &args).must(0, &[]);
    }
}

/// One that writes to all of its memory without a pause, and has room for more than half of it.
#[test]
fn no_child_takes_a_process_to_its_limit() {
    let Some(group) = Limited::new() else {
        return skip("no control group limits memory");
    };
    let mut workload = Workload::start_with(&program("rewriter"), &["40"]);
    assert_eq!(workload.lines.line(), "ok");
    group.put(workload.pid());
    workload.lines.tell("fill");
    workload.lines.tell("rewrite");
    let pid = workload.pid().to_string();
    group.leave(50 * MIB);
    for _ in 0..3 {
        let copied = taken(&pid);
        assert_eq!(copied["approach"], "copy", "{copied}");
    }
    for _ in 0..3 {
        // More than it can take. (What it takes is free again some time after the child's end.)
        group.leave(200 * MIB);
        let forked = taken(&pid);
        // A busy machine may not stop it in time.
        let why = forked["not_forked"].as_str().unwrap_or_default();
        assert!(!why.contains(group.dir()), "{forked}");
    }
    assert_eq!(children(workload.pid()), []);
    workload.lines.tell("rest");
    workload.end();
}

/// Its user may have no further process.
#[test]
fn a_process_that_may_have_no_child_is_copied() {
    let mut command = Command::new("prlimit");
    command
        .args(["--nproc=1:1", "--"])
        .arg(program("kept_back"));
    command.args(["none", "8"]).uid(65534).gid(65534);
    let mut workload = Workload::start_as(&mut command);
    assert_eq!(workload.lines.line(), "ok");
    let copied = taken(&workload.pid().to_string());
    assert_eq!(copied["approach"], "copy", "{copied}");
    let reason = copied["not_forked"].as_str().unwrap();
    assert!(reason.starts_with("it could not be forked: "), "{reason}");
    workload.lines.tell("none");
    workload.end();
}
