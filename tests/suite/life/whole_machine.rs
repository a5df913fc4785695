//! Every process of the machine (`--all`).

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop, wait_until};
use crate::common::workload::{Workload, program};
use crate::life::{KIB, MIB};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

fn row(m: &Memprof, list: &str, pid: Pid) -> Option<Value> {
    let reply = m.get("/v2/processes").json();
    let mut rows = reply[list].as_array().unwrap().iter();
    rows.find(|row| row["pid"] == pid.0).cloned()
}

/// Waits until the row of this stopped process is the kernel's figure.
#[track_caller]
fn equals(m: &Memprof, pid: Pid) {
    stop(pid);
    let kernel = figures::read(pid).unwrap();
    let kernel = kernel.anonymous.unwrap() + kernel.rss_shmem;
    wait_until(|| row(m, "rows", pid).is_some_and(|row| row["total"]["resident"] == kernel));
    cont(pid);
}

#[test]
fn all_processes_are_followed_and_the_last_figures_of_ended_ones_kept() {
    let mut before = Workload::start(&program("scenarios"));
    before.lines.tell("leave");
    let m = Memprof::start(&["--all"]);
    m.said("following ");
    // One that was there, without its first thread, one that is started later, and its child.
    before.lines.tell("mmap 4194304");
    equals(&m, before.pid());
    let mut later = Workload::start(&program("scenarios"));
    later.lines.tell("mmap 8388608");
    equals(&m, later.pid());
    later.lines.tell("fork_cow");
    let children = format!("/proc/{0}/task/{0}/children", later.pid());
    let child = std::fs::read_to_string(children).unwrap();
    let child = Pid(child.trim().parse().unwrap());
    equals(&m, child);
    let tree = m.get(&format!("/v2/tree?pid={}", later.pid())).json();
    assert!(tree.to_string().contains("cmd_mmap"), "{tree}");

    // Neither memprof nor what it started, nor kernel threads.
    assert!(row(&m, "rows", m.pid()).is_none());
    let reply = m.get("/v2/processes").json();
    let rows = reply["rows"].as_array().unwrap();
    let comms: Vec<&str> = rows.iter().filter_map(|row| row["comm"].as_str()).collect();
    assert!(
        comms.len() >= 3 && !comms.contains(&"kthreadd"),
        "{comms:?}"
    );
    let figure = |row: &Value| row["total"]["anon"].as_u64().unwrap();
    let sum: u64 = rows.iter().map(figure).sum();
    assert_eq!(reply["total"]["anon"], sum);

    assert!(row(&m, "ended", before.pid()).is_none());
    let pid = before.pid();
    let held = figure(&row(&m, "rows", pid).unwrap());
    before.end();
    wait_until(|| row(&m, "ended", pid).is_some());
    let ended = row(&m, "ended", pid).unwrap();
    assert!(
        figure(&ended) >= 4 * MIB && figure(&ended) <= held + 64 * KIB,
        "{ended} {held}"
    );
    assert!(
        ended["scanned"].as_u64() <= ended["ended"].as_u64(),
        "{ended}"
    );
    assert!(row(&m, "rows", pid).is_none());
    m.interrupt();
    later.end();
}

#[test]
fn a_control_group_has_a_tree_of_its_own() {
    let (group, other) = (Group::new(), Group::new());
    let mut inside = [(); 2].map(|()| Workload::start(&program("scenarios")));
    let mut outside = Workload::start(&program("scenarios"));
    inside.iter().for_each(|w| group.put(w.pid()));
    other.put(outside.pid());
    // Beside many faults of other processes functions would be estimated.
    let m = Memprof::start(&["--all", "--stacks", "all"]);
    m.said("following ");
    inside[0].lines.tell("mmap 2097152");
    inside[1].lines.tell("mmap 3145728");
    outside.lines.tell("mmap 5242880");
    let name = format!("/{}", group.name().display());
    let pids = inside.each_ref().map(|w| w.pid());
    pids.into_iter().for_each(stop);
    let kernel = pids.map(|pid| figures::read(pid).unwrap());
    let kernel: u64 = kernel
        .iter()
        .map(|f| f.anonymous.unwrap() + f.rss_shmem)
        .sum();
    let summary = format!("/v2/summary?cgroup={name}");
    wait_until(|| m.get(&summary).json()["report"]["total"]["resident"] == kernel);

    let reply = m.get(&format!("/v2/processes?cgroup={name}")).json();
    assert_eq!(reply["rows"].as_array().unwrap().len(), 2, "{reply}");
    let reply = m.get("/v2/processes").json();
    let groups = reply["groups"].as_array().unwrap();
    let of_group = groups.iter().find(|row| row["cgroup"] == *name).unwrap();
    assert_eq!(of_group["processes"], 2, "{of_group}");
    assert_eq!(of_group["total"]["resident"], kernel, "{of_group}");
    // One row for each stack: both processes ran the same code.
    let functions = m
        .get(&format!("/v2/functions?cgroup={name}&search=cmd_mmap"))
        .json();
    let rows = functions["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{functions}");
    assert_eq!(rows[0]["total"], 5 * MIB, "{functions}");
    let folded = m.get(&format!("/v2/export/folded?cgroup={name}"));
    let folded = folded.text();
    assert!(folded.contains("cmd_mmap"), "{folded}");

    for (query, status, said) in [
        (
            "cgroup=/no-such-group",
            404,
            "/v2/processes lists the groups",
        ),
        (&format!("cgroup={name}&pid=1"), 400, "exclude each other"),
    ] {
        let reply = m.get(&format!("/v2/tree?{query}"));
        assert_eq!(reply.status, status, "{query}: {}", reply.text());
        assert!(reply.text().contains(said), "{query}: {}", reply.text());
    }
    pids.into_iter().for_each(cont);
    m.interrupt();
    inside.into_iter().for_each(Workload::end);
    outside.end();
}

/// Also of one that was scanned when it was alone.
#[test]
fn the_last_figures_of_the_only_process_are_kept() {
    let group = Group::new();
    let [mut first, second] = [(); 2].map(|()| Workload::start(&program("scenarios")));
    group.put(first.pid());
    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    first.lines.tell("mmap 4194304");
    equals(&m, first.pid());
    let pid = first.pid();
    first.end();
    group.put(second.pid());
    equals(&m, second.pid());
    let reply = m.get("/v2/processes").json();
    assert_eq!(reply["ended_unscanned"], 0, "{reply}");
    let ended = row(&m, "ended", pid).unwrap();
    assert!(
        ended["total"]["anon"].as_u64().unwrap() >= 4 * MIB,
        "{ended}"
    );
    m.interrupt();
    second.end();
}
