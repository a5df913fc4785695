//! Processes that cannot be read, because their mmap lock is held for as long as a file server does not answer: all who look at
//! them wait, as `ps` does. memprof does not.

use serde_json::Value;
use tempfile::TempDir;

use crate::common::cgroup::Group;
use crate::common::memprof::{Memprof, run_to_error};
use crate::common::process::wait_until;
use crate::common::workload::{Workload, named, program, unique_name};
use crate::life::{KIB, MIB};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// The workload `locked`, and the process whose lock it can have held. Nothing here may read that one's memory meanwhile.
struct LockedProcess {
    workload: Workload,
    pid: Pid,
    _directory: TempDir,
}

impl LockedProcess {
    fn start(path: &std::path::Path) -> LockedProcess {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        let mut workload = Workload::start_with(path, &[at, "8"]);
        let line = workload.lines.line();
        let pid = line.strip_prefix("ready ").expect(&line).parse().unwrap();
        LockedProcess {
            workload,
            pid: Pid(pid),
            _directory: directory,
        }
    }

    fn tell(&mut self, what: &str) {
        self.workload.lines.tell(what);
    }
}

fn row(m: &Memprof, pid: Pid) -> Option<Value> {
    let reply = m.get("/v2/processes").json();
    let mut rows = reply["rows"].as_array().unwrap().iter();
    rows.find(|row| row["pid"] == pid.0).cloned()
}

/// Equal to the kernel's counters of a process that does nothing.
#[track_caller]
fn equals(row: &Value, pid: Pid) {
    let kernel = figures::read(pid).unwrap();
    let resident = kernel.anonymous.unwrap() + kernel.rss_shmem;
    assert_eq!(row["total"]["resident"], resident, "{row}");
}

fn says_held(m: &Memprof) -> bool {
    m.lost().iter().any(|row| row.contains("mmap lock is held"))
}

#[test]
fn one_of_several_keeps_its_figures() {
    one_of_several(&[]);
}

#[test]
fn one_of_several_that_are_frozen_keeps_its_figures() {
    one_of_several(&["--freeze"]);
}

fn one_of_several(options: &[&str]) {
    // It goes last, once all of its processes have ended.
    let group = Group::new();
    let mut held = LockedProcess::start(&program("locked"));
    let mut other = Workload::start(&program("scenarios"));
    group.put(held.pid);
    group.put(other.pid());
    let name = format!("/{}", group.name().display());
    let m = Memprof::start(&[&["--cgroup", &*name], options].concat());
    m.followed();
    wait_until(|| row(&m, held.pid).is_some() && row(&m, other.pid()).is_some());
    held.tell("grow");
    let before = row(&m, held.pid).unwrap();
    equals(&before, held.pid);
    assert!(!says_held(&m));

    held.tell("lock");
    other.lines.tell("mmap 4194304");
    for _ in 0..3 {
        let now = row(&m, held.pid).unwrap();
        assert_eq!(now["total"]["resident"], before["total"]["resident"]);
        assert!(says_held(&m));
    }
    equals(&row(&m, other.pid()).unwrap(), other.pid());

    held.tell("unlock");
    held.tell("grow");
    let after = row(&m, held.pid).unwrap();
    equals(&after, held.pid);
    assert!(!says_held(&m));
    let total = |row: &Value| row["total"]["resident"].as_u64().unwrap();
    assert!(total(&after) >= total(&before) + 8 * MIB);
    other.end();
    held.workload.end();
    m.interrupt();
}

#[test]
fn one_alone_keeps_its_figures_and_memprof_ends() {
    let mut held = LockedProcess::start(&program("locked"));
    let m = Memprof::attach(held.pid, &[]);
    held.tell("grow");
    let total = |m: &Memprof| m.get("/v2/summary").json()["total"].clone();
    let before = total(&m);
    assert!(before["resident"].as_u64().unwrap() >= 16 * MIB - KIB);
    held.tell("lock");
    assert_eq!(total(&m), before);
    assert!(says_held(&m));
    let refused = m.get("/debug/memory");
    assert!(refused.status != 200 && refused.text().contains("mmap lock"));
    let pid = held.pid.to_string();
    for command in ["maps", "heap", "attach-heap"] {
        let said = run_to_error(&[command, "--pid", &pid]);
        assert!(said.contains("mmap lock"), "{said}");
    }
    m.interrupt();
    held.tell("unlock");
    held.workload.end();
}

#[test]
fn one_that_cannot_be_read_when_memprof_starts() {
    let name = unique_name("a-name-of-more-than-15-");
    let group = Group::new();
    let mut held = LockedProcess::start(&named("locked", &name).path);
    let mut other = Workload::start(&program("scenarios"));
    group.put(held.pid);
    group.put(other.pid());
    held.tell("lock");
    // Both have the name, and the arguments of one cannot be read.
    let said = run_to_error(&["--comm", &name]);
    assert!(said.contains(&format!("{}  (parent", held.pid)), "{said}");

    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    m.followed();
    wait_until(|| row(&m, other.pid()).is_some());
    other.lines.tell("mmap 4194304");
    equals(&row(&m, other.pid()).unwrap(), other.pid());
    assert!(row(&m, held.pid).is_none());
    let lost = m.lost();
    let left_out = lost.iter().any(|row| row.contains("not scanned"));
    assert!(left_out, "{lost:?}");
    let report = m.get("/v2/processes").json()["report"].clone();
    assert_eq!(report["agreement"]["verdict"], "incomplete", "{report}");

    held.tell("unlock");
    held.tell("grow");
    wait_until(|| row(&m, held.pid).is_some());
    equals(&row(&m, held.pid).unwrap(), held.pid);
    // Its code is known by now.
    let grown = m.tree().through("hold");
    assert!(grown.value >= 8 * KIB, "{}", m.tree().text());
    other.end();
    held.workload.end();
    m.interrupt();
}
