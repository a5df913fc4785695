//! Processes that the kernel kills because memory has run out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof, run, run_to_error};
use crate::common::process::{signal, wait_until};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::life::MIB;
use crate::life::cgroup_memory::{script_in, start_in};
use memprof_profile::OomKill;
use memprof_profile::saved::{self, Saved};

/// What a group may have, what a workload holds before, and what it asks for in vain.
const LIMIT: u64 = 64 * MIB;
const HELD: u64 = 16 * MIB;
const TOO_MUCH: u64 = 256 * MIB;

const KILLED: &str = "was killed because memory had run out (OOM)";

/// A new group with little memory; `None` if no hierarchy limits memory, which is then said.
fn small_group() -> Option<Group> {
    let Some((group, _)) = Group::new_where_memory_is_limited() else {
        skip("no hierarchy of control groups limits memory");
        return None;
    };
    group.limit_memory(LIMIT);
    Some(group)
}

/// Has it ask for more memory than there is, and waits for its end.
fn run_out(workload: &mut Workload) {
    workload.lines.send(&format!("mmap {TOO_MUCH}"));
    assert_eq!(workload.lines.line(), "", "it was not killed");
    let status = workload.child.0.wait().unwrap();
    assert!(!status.success(), "{status}");
}

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn files(dir: &TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The only kill in a saved profile.
#[track_caller]
fn only_kill(saved: &Saved) -> &OomKill {
    let kills = &saved.profile.oom_kills;
    assert_eq!((kills.count, kills.newest.len()), (1, 1), "{kills:?}");
    &kills.newest[0]
}

/// Bytes under the function that asks for memory, in a saved profile that memprof converts.
#[track_caller]
fn bytes_of_owner(file: &Path) -> u64 {
    let folded = file.with_extension("folded");
    let [from, to] = [file, &folded].map(|path| path.to_str().unwrap());
    let out = run(&["open", from, "--output", to]);
    assert!(out.status.success(), "{out:?}");
    let text = std::fs::read_to_string(&folded).unwrap();
    std::fs::remove_file(&folded).unwrap();
    let of_owner = text.lines().filter(|line| line.contains("cmd_mmap"));
    let bytes = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    of_owner.filter_map(bytes).sum()
}

#[test]
fn the_last_profile_of_a_process_in_a_group_is_kept_and_written_once() {
    let (Some(group), Some(elsewhere)) = (small_group(), small_group()) else {
        return;
    };
    let dir = scratch();
    let file = dir.path().join("oom.memprof.json");
    let (path, cgroup) = (file.to_str().unwrap(), group.dir.to_str().unwrap());
    let mut idle = start_in(&group);
    idle.lines.tell("mmap 4096");
    let m = Memprof::start(&["--cgroup", cgroup, "--on-oom", path]);
    assert_eq!(m.followed(), idle.pid());

    run_out(&mut start_in(&elsewhere));
    let mut victim = start_in(&group);
    wait_until(|| m.get("/v2/processes").json()["rows"][1]["pid"] == victim.pid().0);
    victim.lines.tell(&format!("mmap {HELD}"));
    let before = m.get("/v2/summary").json();
    assert_eq!(before["oom_kills"]["count"], 0, "{before}");
    let pid = victim.pid();
    run_out(&mut victim);

    let said = m.said(KILLED);
    assert!(
        said.contains(&format!("process {pid} (scenarios)")),
        "{said}"
    );
    assert!(said.contains("mark 1"), "{said}");
    m.said(&format!("wrote {path} (profile)"));
    let first = saved::open(&file).unwrap();
    let kill = only_kill(&first);
    assert_eq!((kill.pid, kill.comm.as_str()), (pid, "scenarios"));
    let container = kill.container.as_ref().unwrap();
    assert!(container.group.ends_with(group.name().to_str().unwrap()));
    let resident = kill.last.unwrap().resident;
    assert!((HELD..LIMIT).contains(&resident), "{kill}");
    // The processes together are within the limit, too.
    let total = first.profile.total.usage.resident();
    assert!((resident..=LIMIT).contains(&total), "{total} bytes");
    let owned = bytes_of_owner(&file);
    assert!((HELD..=LIMIT).contains(&owned), "{owned} bytes");

    let marks = m.get("/v2/marks").json();
    let mark = &marks["marks"][0];
    assert_eq!(mark["oom_kill"]["pid"], pid.0, "{marks}");
    assert_eq!(mark["oom_kill"]["last"]["resident"], resident, "{marks}");
    assert_eq!(mark["name"], format!("OOM: scenarios ({pid})"), "{marks}");
    let of_mark = m.get("/v2/summary?mark=1").json();
    assert_eq!(of_mark["oom_kills"]["rows"][0]["pid"], pid.0, "{of_mark}");
    let metrics = m.get("/metrics").text().to_owned();
    assert!(metrics.contains("memprof_oom_kills_total 1\n"), "{metrics}");

    let written = std::fs::read(&file).unwrap();
    let mut second = start_in(&group);
    wait_until(|| m.get("/v2/processes").json()["rows"][1]["pid"] == second.pid().0);
    run_out(&mut second);
    m.said("keeps the profile of the first kill");
    assert!(std::fs::read(&file).unwrap() == written);
    assert_eq!(files(&dir), [file]);
    let after = m.get("/v2/summary").json();
    assert_eq!(after["oom_kills"]["count"], 2, "{after}");
    let said = m.interrupt();
    assert_eq!(said.matches(KILLED).count(), 2, "{said}");
    idle.end();
}

#[test]
fn the_profile_of_a_command_is_of_after_the_kill() {
    let Some(group) = small_group() else { return };
    let dir = scratch();
    let pattern = dir.path().join("oom-%p.memprof.json");
    let script = script_in(&group);
    let (mut m, mut lines) = Memprof::start_command(
        &["--on-oom", pattern.to_str().unwrap()],
        &["sh", "-c", &script],
    );
    lines.tell(&format!("mmap {HELD}"));
    let pid = m.followed();
    lines.send(&format!("mmap {TOO_MUCH}"));
    assert_eq!(m.wait().code(), Some(128 + libc::SIGKILL));
    let said = m.all_said();
    assert!(said.contains("in a profile made after the kill"), "{said}");
    let file = dir.path().join(format!("oom-{pid}.memprof.json"));
    assert_eq!(files(&dir), std::slice::from_ref(&file));
    let saved = saved::open(&file).unwrap();
    let kill = only_kill(&saved);
    assert!(kill.last.unwrap().after_kill, "{kill:?}");
    // The rest is page tables, and what processors charge in advance.
    let resident = kill.last.unwrap().resident;
    assert!((LIMIT / 8 * 7..=LIMIT).contains(&resident), "{kill}");
    let owned = bytes_of_owner(&file);
    assert!((LIMIT / 8 * 7..=resident).contains(&owned), "{owned} bytes");
}

#[test]
fn the_file_is_there_before_memprof_ends_with_its_target() {
    let Some(group) = small_group() else { return };
    let dir = scratch();
    let file = dir.path().join("oom.folded");
    let mut victim = start_in(&group);
    victim.lines.tell(&format!("mmap {HELD}"));
    let pid = victim.pid().to_string();
    let args = ["--no-server", "--pid", &pid, "--on-oom"];
    let args = [&args[..], &[file.to_str().unwrap()]].concat();
    let mut m = Memprof::spawn(&args, Stdio::null(), Stdio::piped());
    m.said("following ");
    run_out(&mut victim);
    assert!(m.wait().success());
    let said = m.all_said();
    assert!(said.contains(KILLED) && said.contains("(folded)"), "{said}");
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .contains("[before attach")
    );
}

#[test]
fn without_the_option_nothing_is_written() {
    let Some(group) = small_group() else { return };
    let dir = scratch();
    let mut victim = start_in(&group);
    victim.lines.tell(&format!("mmap {HELD}"));
    let mut command = Command::new(BINARY);
    let pid = victim.pid().to_string();
    command.args(["--listen", "127.0.0.1:0", "--pid", &pid]);
    let m = Memprof::spawn_as(command.current_dir(dir.path()).stdout(Stdio::null()));
    assert_eq!(m.followed(), victim.pid());
    run_out(&mut victim);
    m.said("mark 1");
    let kills = m.get("/v2/summary").json()["oom_kills"].clone();
    assert_eq!(kills["rows"][0]["pid"], victim.pid().0, "{kills}");
    assert!(!m.interrupt().contains("wrote"));
    assert_eq!(files(&dir), [] as [PathBuf; 0]);
}

#[test]
fn who_is_killed_by_somebody_else_is_no_victim() {
    let dir = scratch();
    let file = dir.path().join("oom.memprof.json");
    let mut killed = Workload::start(&program("scenarios"));
    killed.lines.tell(&format!("mmap {HELD}"));
    let m = Memprof::attach(killed.pid(), &["--on-oom", file.to_str().unwrap()]);
    signal(killed.pid(), libc::SIGKILL);
    m.said(" ended; its last profile stays");
    let summary = m.get("/v2/summary").json();
    assert_eq!(summary["oom_kills"]["count"], 0, "{summary}");
    let marks = m.get("/v2/marks").json();
    assert_eq!(marks["marks"].as_array().unwrap().len(), 0, "{marks}");
    assert!(!m.interrupt().contains(KILLED));
    assert!(!file.exists());
}

/// Nobody asks for reports: those that are made are the last ones of a target that may be killed at any moment.
#[test]
fn a_target_that_may_be_killed_is_scanned_more_often() {
    let dir = scratch();
    let file = dir.path().join("oom.memprof.json");
    let mut target = Workload::start(&program("scenarios"));
    target.lines.tell("mmap 4096");
    let usual = Memprof::attach(target.pid(), &[]);
    let close = Memprof::attach(target.pid(), &["--on-oom", file.to_str().unwrap()]);
    let reports = |m: &Memprof| m.get("/v2/health").json()["report"].as_u64().unwrap_or(0);
    let before = (reports(&usual), reports(&close));
    wait_until(|| {
        target.lines.tell("mmap 4096");
        target.lines.tell("munmap");
        reports(&close) >= before.1 + 16
    });
    let (usual, close) = (reports(&usual) - before.0, reports(&close) - before.1);
    assert!(
        usual * 2 < close,
        "{usual} reports, with the option {close}"
    );
    target.end();
}

#[test]
fn a_file_that_cannot_be_written_is_refused_at_the_start() {
    let said = run_to_error(&["--on-oom", "/nonexistent/oom-%p.memprof.json", "--", "true"]);
    assert!(said.contains("name another file with --on-oom"), "{said}");
    for wrong in ["-", "oom.unknown"] {
        let out = run(&["--on-oom", wrong, "--", "true"]);
        assert_eq!(out.status.code(), Some(2), "{wrong}: {out:?}");
    }
}
