//! A parent and its child, each with its own figures.

use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::workload::{Family, Lines, Member, program};
use crate::life::MIB;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// `forked_allocator` under memprof, its processes stopped.
struct Run {
    m: Memprof,
    lines: Lines,
    family: Family,
}

impl Run {
    fn start() -> Run {
        let allocator = program("forked_allocator");
        let args = [allocator.to_str().unwrap()];
        let (m, mut lines) = Memprof::start_command(&["--follow-forks"], &args);
        let family = Family::read(&mut lines);
        family.processes.iter().for_each(|p| stop(Pid(p.pid)));
        Run { m, lines, family }
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let reply = self.m.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    fn end(mut self) {
        self.family.processes.iter().for_each(|p| cont(Pid(p.pid)));
        self.lines.close();
        self.m.wait();
    }
}

/// A function's self memory.
fn own(functions: &Value, name: &str) -> u64 {
    let rows = functions["rows"].as_array().unwrap().iter();
    let named = rows.filter(|row| row["function"] == name);
    named.map(|row| row["self"].as_u64().unwrap()).sum()
}

#[test]
fn each_has_its_own_totals() {
    let run = Run::start();
    let processes = run.get("/v2/processes");
    let rows = processes["rows"].as_array().unwrap();
    let pids: Vec<_> = rows
        .iter()
        .map(|row| row["pid"].as_u64().unwrap())
        .collect();
    let family = run.family.processes.iter().map(|p| u64::from(p.pid));
    assert_eq!(pids, family.collect::<Vec<_>>());
    for kind in ["resident", "anon", "shmem", "file", "swap", "hugetlb"] {
        let sum: u64 = rows
            .iter()
            .map(|r| r["total"][kind].as_u64().unwrap())
            .sum();
        assert_eq!(processes["total"][kind], sum, "{kind}");
    }
    let mut sum = 0;
    for row in rows {
        let pid = row["pid"].as_u64().unwrap();
        let rollup = figures::rollup(Pid(pid as u32)).unwrap();
        assert_eq!(row["total"]["anon"], rollup.anonymous, "{row}");
        sum += rollup.anonymous;
        let summary = run.get(&format!("/v2/summary?pid={pid}"));
        for part in ["total", "attributed", "kernel", "agreement"] {
            assert_eq!(summary[part], row[part], "{part}");
        }
        assert_eq!(summary["target"]["pid"], pid);
        assert_eq!(summary["target"]["pids"].as_array().unwrap().len(), 1);
    }
    assert_eq!(run.get("/v2/summary")["total"]["anon"], sum);
    run.end();
}

#[test]
fn each_has_its_own_tree_functions_and_mappings() {
    let run = Run::start();
    for member in &run.family.processes {
        let pid = member.pid;
        functions_hold_what_they_say(&run, member);
        let total = run.get(&format!("/v2/summary?pid={pid}"))["total"].clone();
        let tree = run.get(&format!("/v2/tree?pid={pid}&kind=anon"));
        assert_eq!(tree["total"], total["anon"]);
        assert_eq!(tree["report"]["pid"], pid);
        let maps = run.get(&format!("/v2/maps?pid={pid}&limit=10000"));
        assert_eq!(maps["bytes"]["anon"], total["anon"]);
        let foreign = |row: &&Value| row["pid"] != pid;
        assert_eq!(maps["rows"].as_array().unwrap().iter().find(foreign), None);
    }
    // All processes together, without the parameter.
    let all = run.get("/v2/functions?kind=anon&limit=10000");
    for name in ["parent_large_block", "child_table"] {
        let members = run.family.processes.iter();
        let wanted: u64 = members
            .flat_map(|m| &m.functions)
            .filter(|f| f.name == name)
            .map(|f| f.bytes)
            .sum();
        assert!(wanted > 0, "{name}");
        assert_eq!(own(&all, name), wanted, "{name}");
    }
    run.end();
}

#[track_caller]
fn functions_hold_what_they_say(run: &Run, member: &Member) {
    let table = run.get(&format!(
        "/v2/functions?pid={}&kind=anon&limit=10000",
        member.pid
    ));
    let names: std::collections::BTreeSet<_> = member.functions.iter().map(|f| &f.name).collect();
    for name in names {
        let same = member.functions.iter().filter(|f| f.name == *name);
        let wanted: u64 = same.map(|f| f.bytes).sum();
        assert_eq!(own(&table, name), wanted, "{} {name}", member.role);
    }
}

/// Page cache belongs to the process whose IO brought it in.
#[test]
fn files_are_of_the_process_that_wrote_them() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("data");
    let scenarios = program("scenarios");
    let args = [scenarios.to_str().unwrap()];
    let (mut m, mut lines) = Memprof::start_command(&["--follow-forks"], &args);
    lines.tell(&format!("write {} {MIB}", file.display()));
    let inode = std::fs::metadata(&file).unwrap().ino();
    lines.tell(&format!("mmap {MIB}"));
    lines.tell("fork_cow");
    let get = |path: &str| m.get(path).json();
    let processes = get("/v2/processes");
    let pids: Vec<_> = processes["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["pid"].as_u64().unwrap())
        .collect();
    assert_eq!(pids.len(), 2);
    for (pid, written) in [(pids[0], MIB), (pids[1], 0)] {
        let total = get(&format!("/v2/summary?pid={pid}"))["total"]["cache"].clone();
        let files = get(&format!("/v2/files?pid={pid}"));
        assert_eq!(files["total"], total);
        assert_eq!(files["matched"], total, "{files}");
        let same = |row: &&Value| row["inode"] == inode;
        let row = files["rows"].as_array().unwrap().iter().find(same);
        let cached = row.map_or(0, |row| row["cached"].as_u64().unwrap());
        assert_eq!(cached, written, "{files}");
        if let Some(row) = row {
            let id = row["id"].as_str().unwrap();
            let tree = get(&format!("/v2/files/stacks?pid={pid}&file={id}"));
            assert_eq!(tree["total"], written);
        }
    }
    lines.tell("fork_end");
    lines.close();
    m.wait();
}

/// A mark of one process, in an export format.
#[test]
fn exports_of_one_process() {
    let run = Run::start();
    let mark = run.m.send("POST", "/v2/marks", "").json();
    let id = mark["id"].as_str().unwrap();
    let sum = |text: &str| -> u64 {
        let bytes = text.lines().map(|l| l.rsplit_once(' ').unwrap().1);
        bytes.map(|b| b.parse::<u64>().unwrap()).sum()
    };
    let mut all = 0;
    for member in &run.family.processes {
        let pid = member.pid;
        let path = format!("/v2/export/folded?to={id}&pid={pid}&kind=anon");
        let reply = run.m.get(&path);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let name = reply.header("content-disposition").unwrap();
        assert!(name.contains(&format!("-{pid}-")), "{name}");
        let held = figures::rollup(Pid(pid)).unwrap().anonymous;
        assert_eq!(sum(reply.text()), held);
        all += held;
    }
    let whole = run.m.get(&format!("/v2/export/folded?to={id}&kind=anon"));
    assert_eq!(sum(whole.text()), all);
    run.end();
}
