//! What is charged to a control group, beside memprof's sums.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::wait_until;
use crate::common::skip::skip;
use crate::common::workload::{Workload, program, unique_name};
use crate::life::MIB;

/// The script of a workload that is in the group from its first page on.
pub fn script_in(group: &Group) -> String {
    let procs = group.dir.join("cgroup.procs");
    format!(
        "echo $$ > {} && exec {}",
        procs.display(),
        program("scenarios").display()
    )
}

/// Such a workload.
pub fn start_in(group: &Group) -> Workload {
    Workload::start_with(Path::new("/bin/sh"), &["-c", &script_in(group)])
}

fn row<'a>(cgroup: &'a Value, name: &str) -> &'a Value {
    let mut rows = cgroup["rows"].as_array().unwrap().iter();
    rows.find(|row| row["name"] == name).unwrap()
}

/// A file, removed when dropped.
struct Scratch(String);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_control_groups_memory_balances() {
    let Some((group, version)) = Group::new_where_memory_is_limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    let mut first = start_in(&group);
    first.lines.tell("mmap 4096");
    let mut m = Memprof::start(&["--cgroup", &group.dir.display().to_string()]);
    assert_eq!(m.followed(), first.pid());
    let mut second = start_in(&group);
    second.lines.tell("mmap 4096");
    let followed = || {
        m.get("/v2/processes").json()["rows"]
            .as_array()
            .map(Vec::len)
    };
    wait_until(|| followed() == Some(2));

    let on_tmpfs = Scratch(format!("/dev/shm/{}", unique_name("memprof-test-")));
    let on_disk = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique_name("cgroup-"));
    let on_disk = Scratch(on_disk.display().to_string());
    first.lines.tell(&format!("mmap {}", 16 * MIB));
    first.lines.tell(&format!("memfd {}", 4 * MIB));
    first
        .lines
        .tell(&format!("write {} {}", on_tmpfs.0, 8 * MIB));
    second
        .lines
        .tell(&format!("write {} {}", on_disk.0, 6 * MIB));
    second.end();
    wait_until(|| followed() == Some(1));

    let reply = m.get("/v2/cgroup").json();
    let cgroup = &reply["cgroup"];
    let bytes = |value: &Value| {
        value
            .as_i64()
            .unwrap_or_else(|| panic!("{value} in {cgroup}"))
    };
    assert_eq!(cgroup["version"], version, "{cgroup}");
    let rows = cgroup["rows"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|row| bytes(&row["charged"])).sum();
    assert_eq!(sum, bytes(&cgroup["usage"]), "{cgroup}");
    let tolerance = bytes(&cgroup["tolerance"]);
    let close = |found: &Value, wanted: u64| {
        let off = (bytes(found) - wanted as i64).abs();
        assert!(
            off <= tolerance,
            "{found}, not {wanted} ± {tolerance}: {cgroup}"
        );
    };
    close(&row(cgroup, "unexplained")["charged"], 0);
    let anon = row(cgroup, "anon");
    assert!(bytes(&anon["memprof"]) >= 16 * MIB as i64, "{cgroup}");
    close(&anon["difference"], 0);
    let shmem = row(cgroup, "shmem");
    assert_eq!(bytes(&shmem["memprof"]), 4 * MIB as i64, "{cgroup}");
    close(&shmem["difference"], 8 * MIB);
    let file = row(cgroup, "file");
    assert_eq!(bytes(&file["memprof"]), 6 * MIB as i64, "{cgroup}");
    close(&file["charged"], 6 * MIB);
    let metrics = m.get("/metrics").text().to_owned();
    assert!(
        metrics.contains("memprof_cgroup_charged_bytes{row=\"shmem\"}"),
        "{metrics}"
    );

    let mut out = m.child.stdout.take().unwrap();
    m.interrupt();
    let mut summary = String::new();
    out.read_to_string(&mut summary).unwrap();
    assert!(
        summary.contains(&format!("Control group {}", group.dir.display())),
        "{summary}"
    );
    assert!(
        summary.contains("no followed process maps at least so much"),
        "{summary}"
    );
    first.end();
}

#[test]
fn a_group_of_another_controller_has_no_figures_and_says_why() {
    let Ok(_) = std::fs::metadata("/sys/fs/cgroup/pids/cgroup.procs") else {
        return skip("control groups of version 1 are not mounted");
    };
    let group = Group::new_in("/sys/fs/cgroup/pids");
    let first = start_in(&group);
    let m = Memprof::start(&["--cgroup", &group.dir.display().to_string()]);
    assert_eq!(m.followed(), first.pid());
    let cgroup = m.get("/v2/cgroup").json()["cgroup"].clone();
    assert!(
        cgroup["usage"].is_null() && cgroup["rows"].as_array().unwrap().is_empty(),
        "{cgroup}"
    );
    let why = cgroup["without_total"].as_str().unwrap();
    assert!(why.contains("no memory controller"), "{why}");
    m.interrupt();
    first.end();
}

/// If the kernel kills memprof, or has no memory for its maps, its user knows why.
#[test]
fn a_limit_that_is_too_low_for_memprof_is_named() {
    let Some((group, _)) = Group::new_where_memory_is_limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    let target = Workload::start(&program("scenarios"));
    group.limit_memory(40 * MIB);
    let directory = group.dir.display();
    let script = format!("echo $$ > {directory}/cgroup.procs; exec \"$0\" \"$@\"");
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--no-server", "--duration", "0.1"];
    let mut command = std::process::Command::new("sh");
    let command = command.args(["-c", &script, BINARY]).args(args);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "40 MiB are enough: {said}");
    assert!(said.contains(&format!("{directory} has")), "{said}");
    assert!(
        said.contains("memory.max") && said.contains("64 MiB"),
        "{said}"
    );
    target.end();
}
