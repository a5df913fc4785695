//! The privileges that memprof needs and drops: runs without root, with exactly the capabilities that
//! docs/privileges.md names, and with one less.
//!
//! Needs root, `cc`, `setpriv` and `unshare`.

mod deployed;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{signal, stop, threads, wait_until};
use crate::common::programs::copy_program;
use crate::common::workload::{Workload, program, unique_name};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// The user that runs memprof, and another user.
const NOBODY: u32 = 65534;
const ANOTHER: u32 = 65533;

/// The capabilities that docs/privileges.md names for one's own processes, and for those of others.
const OWN: &[&str] = &["bpf", "perfmon"];
const OTHERS: &[&str] = &[
    "bpf",
    "perfmon",
    "dac_read_search",
    "sys_ptrace",
    "checkpoint_restore",
];

const MIB: u64 = 1 << 20;

/// Copies of memprof and of a workload that every user can run.
struct Installation {
    dir: PathBuf,
    memprof: PathBuf,
    workload: PathBuf,
}

static PLACE: OnceLock<Installation> = OnceLock::new();

fn make_place() -> Installation {
    let dir = Path::new("/var/tmp").join(unique_name("memprof-priv"));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.join(name);
        copy_program(from, &to);
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    Installation {
        memprof: copy(Path::new(BINARY), "memprof"),
        workload: copy(&program("scenarios"), "scenarios"),
        dir,
    }
}

extern "C" fn remove_place() {
    if let Some(place) = PLACE.get() {
        let _ = fs::remove_dir_all(&place.dir);
    }
}

/// The directory, removed after the last test.
fn place() -> &'static Installation {
    PLACE.get_or_init(|| {
        // SAFETY: the function lives as long as the program, and uses nothing that is freed before.
        unsafe { libc::atexit(remove_place) };
        make_place()
    })
}

/// A command that runs as `user` with these capabilities and cannot gain others; the caller adds arguments.
fn with(caps: &[&str], user: u32, program: &Path) -> Command {
    let set = caps
        .iter()
        .fold("-all".to_owned(), |set, cap| set + ",+" + cap);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--regid", &user.to_string()]);
    command.args(["--clear-groups", "--inh-caps", &set, "--ambient-caps", &set]);
    command.args(["--bounding-set", &set]).arg(program);
    command
}

/// Starts memprof as `user` with a server and these arguments.
fn serving(caps: &[&str], user: u32, args: &[&str]) -> Memprof {
    let mut command = with(caps, user, &place().memprof);
    command.args(["--listen", "127.0.0.1:0"]).args(args);
    Memprof::spawn_as(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

fn output(command: &mut Command) -> (Output, String) {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    (out, String::from_utf8_lossy(&text).into_owned())
}

/// Starts `scenarios` as this user.
fn workload_of(user: u32) -> Workload {
    let mut command = Command::new(&place().workload);
    Workload::start_as(command.uid(user).gid(user))
}

fn without(caps: &[&'static str], one: &str) -> Vec<&'static str> {
    caps.iter().copied().filter(|cap| *cap != one).collect()
}

fn cap_name(cap: &str) -> String {
    format!("CAP_{}", cap.to_uppercase())
}

/// Stops the target: memprof's figure must equal the kernel's, and the stack must be present.
#[track_caller]
fn assert_exact(m: &Memprof, pid: Pid) {
    stop(pid);
    let kernel = figures::rollup(pid).unwrap().anonymous;
    let short = m.get("/v1/tree?short=true");
    assert_eq!(short.status, 200, "{}", short.text());
    assert_eq!(short.json()["anon"].as_u64().unwrap() * 1024, kernel);
    let tree = m.tree();
    assert_eq!(tree.at(&["cmd_mmap"]).value * 1024, 8 * MIB);
}

/// The command, in a mount namespace whose `/proc` shows a process only to who may trace it.
fn with_hidden_processes(command: &Command) -> Command {
    let hide = "mount -t proc -o hidepid=2 proc /proc; exec \"$@\"";
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "/bin/sh", "-ec", hide, "sh"]);
    hidden.arg(command.get_program()).args(command.get_args());
    hidden
}

#[test]
fn processes_that_proc_hides_are_not_left_out_silently() {
    let target = workload_of(NOBODY);
    let pid = target.pid().to_string();
    let run = |caps: &[&str], args: &[&str]| {
        let mut command = with(caps, ANOTHER, &place().memprof);
        output(&mut with_hidden_processes(command.args(args))).1
    };
    let said = run(OWN, &["--no-server", "--pid", &pid]);
    assert!(
        said.contains("exists, but /proc does not show it"),
        "{said}"
    );
    let said = run(OWN, &["--no-server", "--comm", "scenarios", "--wait", "1"]);
    assert!(
        said.contains("(hidepid), so that others are not found"),
        "{said}"
    );
    let said = run(OWN, &["maps", "--comm", "scenarios"]);
    assert!(
        said.contains("no process is named scenarios; /proc shows"),
        "{said}"
    );
    let said_with = |caps: &[&str], args: &[&str], wanted: &str| {
        let mut command = with(caps, ANOTHER, &place().memprof);
        let mut command = with_hidden_processes(command.arg("--no-server").args(args));
        let mut m = Memprof::spawn_unserved(command.stdin(Stdio::null()).stdout(Stdio::null()));
        m.said(wanted);
        m.signal(libc::SIGTERM);
        m.wait();
        m.all_said()
    };
    said_with(OWN, &["--all"], "(hidepid), so that others are not found");
    // With CAP_SYS_PTRACE all are seen.
    let said = said_with(OTHERS, &["--pid", &pid], "following ");
    assert!(!said.contains("hidepid"), "{said}");
    target.end();
}

#[test]
fn the_sets_of_the_readme_suffice() {
    // The last one: root, as in a container with only these capabilities.
    for (caps, user, own) in [
        (OWN, NOBODY, NOBODY),
        (OTHERS, ANOTHER, NOBODY),
        (OTHERS, 0, NOBODY),
        (OTHERS, ANOTHER, 0),
    ] {
        let mut workload = workload_of(user);
        let pid = workload.pid();
        let m = serving(caps, own, &["--pid", &pid.to_string()]);
        m.said("following ");
        workload.lines.tell("mmap 8388608");
        // Frozen by ptrace.
        let mark = m.send("POST", "/v2/marks", "{\"freeze\": true}");
        assert_eq!(mark.status, 201, "{}", mark.text());
        assert_eq!(mark.json()["exact"], true, "{}", mark.text());
        assert_exact(&m, pid);
        let memory = m.get("/debug/memory");
        assert_eq!(memory.status, 200, "{}", memory.text());
        let said = m.interrupt();
        assert!(!said.contains("without "), "user {user}: {said}");
    }
}

/// How snapshots of a process were taken, by the command and over HTTP.
#[track_caller]
fn approaches(memprof: impl Fn() -> Command, pid: Pid) -> [Value; 2] {
    let pid = pid.to_string();
    let (out, said) = output(memprof().args(["heap", "--format", "json", "--pid", &pid]));
    assert!(out.status.success(), "{said}");
    let heap: Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut session = memprof();
    session.args(["--listen", "127.0.0.1:0", "--pid", &pid]);
    let m = Memprof::spawn_as(session.stdin(Stdio::null()).stdout(Stdio::piped()));
    let taken = m.send("POST", "/v2/heap", r#"{"max_stop": 10000}"#).json();
    let taken = m.get(&format!("/v2/heap/{}", taken["id"].as_str().unwrap()));
    let taken = taken.json()["heap"]["taken"].clone();
    [heap["taken"].clone(), taken]
}

/// The file of its memory may then be read, not written.
#[test]
fn processes_of_other_users_are_forked_for_heap_snapshots() {
    for (user, others) in [(ANOTHER, NOBODY), (0, NOBODY), (ANOTHER, 0)] {
        let mut workload = workload_of(others);
        workload.lines.tell("mmap 67108864");
        for taken in approaches(|| with(OTHERS, user, &place().memprof), workload.pid()) {
            assert_eq!(taken["approach"], "fork", "{user} {others}: {taken}");
        }
        workload.lines.tell("munmap");
    }
    let mut workload = workload_of(NOBODY);
    workload.lines.tell("mmap 67108864");
    for taken in approaches(|| Command::new(&place().memprof), workload.pid()) {
        assert_eq!(taken["approach"], "fork", "{taken}");
    }
    workload.lines.tell("munmap");
}

/// As above; the set is the guide's without what profiling needs.
#[test]
fn processes_of_other_users_are_attached_to() {
    let memprof = |user| with(&OTHERS[OWN.len()..], user, &place().memprof);
    for (user, others) in [(ANOTHER, NOBODY), (0, NOBODY), (ANOTHER, 0)] {
        let mut workload = workload_of(others);
        let pid = workload.pid().to_string();
        let (out, said) = output(memprof(user).args(["attach-heap", "--yes", "--pid", &pid]));
        assert!(out.status.success(), "{user} {others}: {said}");
        assert!(said.contains("lead to the library"), "{said}");
        workload.lines.tell("mmap 8388608");
    }
}

#[test]
fn the_guide_names_these_sets() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/privileges.md");
    let guide = fs::read_to_string(guide).unwrap();
    let section = guide.split("\n## ").next().unwrap();
    let row = |start: &str| {
        let row = section.lines().find(|l| l.starts_with(start));
        row.unwrap_or_else(|| panic!("no row {start:?}"))
    };
    for (start, caps) in [
        ("| processes of one's own", OWN),
        ("| processes of other users", &OTHERS[OWN.len()..]),
    ] {
        let named: Vec<_> = row(start)
            .split('`')
            .filter(|word| word.starts_with("CAP_"))
            .map(str::to_owned)
            .collect();
        let wanted: Vec<_> = caps.iter().map(|cap| cap_name(cap)).collect();
        assert_eq!(named, wanted, "{start}");
    }
}

#[test]
fn with_one_capability_less_doctor_names_it_and_the_run_says_what_to_do() {
    let workload = workload_of(ANOTHER);
    let pid = workload.pid().to_string();
    for less in OTHERS {
        let caps = without(OTHERS, less);
        let (_, doctor) = output(with(&caps, NOBODY, &place().memprof).arg("doctor"));
        let name = cap_name(less);
        let mut advice = doctor
            .lines()
            .filter(|l| l.trim_start().starts_with("to do:"));
        assert!(advice.any(|l| l.contains(&name)), "{less}: {doctor}");
        let args = ["--pid", &pid, "--no-server", "--duration", "0.2"];
        let (out, said) = output(with(&caps, NOBODY, &place().memprof).args(args));
        match *less {
            // Only the names of deleted files.
            "checkpoint_restore" => assert!(out.status.success(), "{said}"),
            // From Linux 6.14 on CAP_PERFMON shows page tables as well.
            "sys_ptrace" => assert!(said.contains(&name), "{said}"),
            "dac_read_search" => {
                assert_eq!(out.status.code(), Some(1), "{said}");
                let wanted = format!("cannot profile process {pid} of user id {ANOTHER}");
                assert!(said.contains(&wanted) && said.contains(&name), "{said}");
                let wanted = format!("only for processes of user id {NOBODY}");
                assert!(doctor.contains(&wanted), "{doctor}");
            }
            _ => {
                assert_eq!(out.status.code(), Some(1), "{said}");
                assert!(
                    said.contains("privileges:") && said.contains(&name),
                    "{said}"
                );
            }
        }
    }
}

/// memprof can refuse another user's process only once it exists.
#[test]
fn a_target_that_comes_later_and_may_not_be_read() {
    let name = unique_name("later");
    let path = place().dir.join(&name);
    fs::hard_link(&place().workload, &path).unwrap();
    let caps = ["bpf", "perfmon", "sys_ptrace"];
    let m = serving(&caps, NOBODY, &["--comm", &name]);
    m.said("waiting for ");
    let workload = Workload::start_as(Command::new(&path).uid(ANOTHER).gid(ANOTHER));
    m.said("following ");
    let reply = m.get("/v1/tree?short=true");
    assert_eq!(reply.status, 503, "{}", reply.text());
    for part in [
        "pagemap: permission denied",
        "CAP_DAC_READ_SEARCH",
        "memprof doctor",
    ] {
        assert!(reply.text().contains(part), "{}", reply.text());
    }
    drop(workload);
}

/// One thread's `Cap…`, `NoNewPrivs` and `Seccomp`.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    effective: u64,
    permitted: u64,
    bounding: u64,
    no_new_privs: bool,
    filtered: bool,
}

fn rights(status: &str) -> Rights {
    let field = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in {status}"))
            .trim()
            .to_owned()
    };
    let bits = |key| u64::from_str_radix(&field(key), 16).unwrap();
    Rights {
        effective: bits("CapEff:"),
        permitted: bits("CapPrm:"),
        bounding: bits("CapBnd:"),
        no_new_privs: field("NoNewPrivs:") == "1",
        filtered: field("Seccomp:") == "2",
    }
}

fn rights_of_threads(m: &Memprof) -> BTreeMap<String, Rights> {
    let read = |thread: Pid| {
        let dir = format!("/proc/{}/task/{thread}", m.pid());
        let name = fs::read_to_string(format!("{dir}/comm")).ok()?;
        let status = fs::read_to_string(format!("{dir}/status")).ok()?;
        Some((name.trim().to_owned(), rights(&status)))
    };
    threads(m.pid()).into_iter().filter_map(read).collect()
}

fn bits(caps: &[u32]) -> u64 {
    caps.iter().map(|cap| 1 << cap).sum()
}

const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const KILL: u32 = 5;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

#[test]
fn a_running_memprofs_threads_have_given_up_what_they_do_not_need() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let looking = bits(&[SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE, KILL]);
    let serving = bits(&[SYS_PTRACE, KILL]);
    let files = bits(&[DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER]);
    let program = program("scenarios");
    let args = [
        "--output",
        file.to_str().unwrap(),
        "--push",
        "otlp+http://127.0.0.1:9",
    ];
    let (m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
    lines.tell("mmap 8388608");
    m.tree().must_hold(&["cmd_mmap"], 8 * MIB);
    let threads = rights_of_threads(&m);
    for (name, rights) in &threads {
        let (effective, permitted) = match name.as_str() {
            "memprof" => (serving, serving | files),
            "memprof-collect" => {
                let all = looking | bits(&[BPF, PERFMON, SYS_ADMIN]);
                (all, all)
            }
            "memprof-symbols" | "memprof-lines" => {
                (bits(&[DAC_READ_SEARCH]), bits(&[DAC_READ_SEARCH]))
            }
            "memprof-look" => {
                let reading = bits(&[SYS_PTRACE, DAC_READ_SEARCH]);
                (reading, reading)
            }
            "memprof-tables" | "memprof-keep" | "memprof-push" | "memprof-record" => (0, 0),
            "memprof-command" | "memprof-tracer" => (looking, looking),
            _ => (serving, serving),
        };
        assert_eq!(rights.effective & !effective, 0, "{name}: {rights:x?}");
        assert_eq!(rights.permitted & !permitted, 0, "{name}: {rights:x?}");
        assert!(rights.no_new_privs && rights.filtered, "{name}: {rights:?}");
        assert_eq!(rights.bounding, 0, "{name}: {rights:x?}");
    }
    for name in [
        "memprof",
        "memprof-collect",
        "memprof-look",
        "memprof-symbols",
        "memprof-tables",
        "memprof-keep",
        "memprof-push",
    ] {
        assert!(threads.contains_key(name), "{threads:?}");
    }
    lines.close();
    m.all_said();
    assert!(file.exists());
}

/// Prints its own privileges.
const TELL: &str = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";

#[test]
fn a_command_has_all_that_memprofs_user_has() {
    let (plain, wanted) = output(Command::new("sh").args(["-c", TELL]));
    assert!(plain.status.success() && wanted.contains("NoNewPrivs:\t0"));
    // Also the processes that it starts later, after memprof has dropped its privileges.
    let script = format!("{TELL}; sleep 0.3; {TELL}");
    let args = ["--no-server", "--", "sh", "-c", &script];
    let out = Command::new(BINARY).args(args).output().unwrap();
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(told, wanted.repeat(2));

    let shell = Path::new("/bin/sh");
    let (_, wanted) = output(with(OTHERS, NOBODY, shell).args(["-c", TELL]));
    let mut command = with(OTHERS, NOBODY, &place().memprof);
    let out = command.args(args).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), wanted.repeat(2));
}

/// The set-user-ID bit works for a command; it would not if the command were traced or restricted.
#[test]
fn a_command_can_become_another_user() {
    let source = place().dir.join("whoami.c");
    let setuid = place().dir.join("whoami");
    let code = "#include <stdio.h>\n#include <unistd.h>\n\
                int main(void) { printf(\"%d\\n\", geteuid()); return 0; }\n";
    fs::write(&source, code).unwrap();
    let done = Command::new("cc")
        .arg("-o")
        .args([&setuid, &source])
        .status();
    assert!(done.unwrap().success());
    chown(&setuid, Some(ANOTHER), Some(ANOTHER)).unwrap();
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    let tell = setuid.to_str().unwrap();
    for args in [vec![tell], vec!["sh", "-c", tell]] {
        let mut command = with(OTHERS, NOBODY, &place().memprof);
        let out = command
            .args(["--no-server", "--"])
            .args(&args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let told = String::from_utf8_lossy(&out.stdout);
        assert_eq!(told, format!("{ANOTHER}\n"), "{args:?}: {said}");
    }
}

/// Without CAP_SYS_PTRACE, the kernel shows a process only to processes that have all of its capabilities.
#[test]
fn a_command_with_more_capabilities_than_memprof_needs_is_still_seen() {
    let workload = place().workload.to_str().unwrap();
    let mut caps = OWN.to_vec();
    caps.push("net_bind_service");
    let mut command = with(&caps, NOBODY, &place().memprof);
    command.args(["--listen", "127.0.0.1:0", "--", workload]);
    let mut m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = crate::common::workload::Lines::new(&mut m.child);
    m.said("following ");
    lines.tell("mmap 8388608");
    let memory = m.get("/debug/memory");
    assert_eq!(memory.status, 200, "{}", memory.text());
    assert_exact(&m, m.followed());
    signal(m.followed(), libc::SIGCONT);
    lines.close();
}

/// Root can write files that only the owner may write, as before memprof dropped privileges.
#[test]
fn files_of_other_users_are_written_at_the_end() {
    let dir = place().dir.join("owned");
    fs::create_dir(&dir).unwrap();
    let (old, new) = (dir.join("old.txt"), dir.join("new.json"));
    fs::write(&old, "before").unwrap();
    for (path, mode) in [(&old, 0o600), (&dir, 0o700)] {
        chown(path, Some(ANOTHER), Some(ANOTHER)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut workload = workload_of(ANOTHER);
    let pid = workload.pid().to_string();
    let (old_text, new_text) = (old.to_str().unwrap(), new.to_str().unwrap());
    let m = Memprof::start(&["--pid", &pid, "-o", old_text, "-o", new_text]);
    workload.lines.tell("mmap 8388608");
    let said = m.interrupt();
    assert!(said.contains("wrote "), "{said}");
    assert!(fs::read_to_string(&old).unwrap().contains("cmd_mmap"));
    assert!(fs::metadata(&new).unwrap().len() > 0);
    assert_eq!(fs::metadata(&old).unwrap().mode() & 0o777, 0o600);
}

/// A process in its own mount and pid namespaces, whose program no longer has a path on the host or in the
/// namespace.
#[test]
fn a_process_in_a_container_with_a_deleted_program() {
    let name = unique_name("contained");
    let outside = place().dir.join("box");
    fs::create_dir(&outside).unwrap();
    let script = format!(
        "mount --bind {} /mnt; cp {} /mnt/{name}; exec /mnt/{name}",
        outside.display(),
        place().workload.display()
    );
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-ec",
        &script,
    ]);
    let mut workload = Workload::start_as(&mut command);
    workload.lines.tell("mmap 4096");
    workload.lines.tell(&format!("unlink /mnt/{name}"));
    let pid = {
        let children = format!("/proc/{0}/task/{0}/children", workload.pid());
        let text = fs::read_to_string(children).unwrap();
        Pid(text.trim().parse().unwrap())
    };
    wait_until(|| crate::common::process::comm(pid) == name[..name.len().min(15)]);
    let run = |caps: &[&str]| {
        let m = serving(caps, NOBODY, &["--pid", &pid.to_string()]);
        m.said("following ");
        m
    };
    let m = run(OTHERS);
    workload.lines.tell("mmap 8388608");
    assert_exact(&m, pid);
    signal(pid, libc::SIGCONT);
    drop(m);
    workload.lines.tell("munmap");
    // This requires CAP_CHECKPOINT_RESTORE.
    let m = run(&without(OTHERS, "checkpoint_restore"));
    workload.lines.tell("mmap 8388608");
    let tree = m.tree();
    assert!(!format!("{tree:?}").contains("cmd_mmap"), "{tree:?}");
    drop(m);
    workload.lines.close();
}

/// Of all processes, some may not be read: they are counted and left out, and fail no report.
#[test]
fn processes_that_may_not_be_read_are_left_out_of_all() {
    let (mut own, second) = (workload_of(NOBODY), workload_of(NOBODY));
    let other = workload_of(ANOTHER);
    for freeze in [&[][..], &["--freeze"], &["--freeze-group"]] {
        let m = serving(OWN, NOBODY, &[&["--all"], freeze].concat());
        m.said("cannot scan process");
        own.lines.tell("mmap 2097152");
        let reply = m.get("/v2/processes");
        assert_eq!(reply.status, 200, "{freeze:?}: {}", reply.text());
        let reply = reply.json();
        let rows = reply["rows"].as_array().unwrap();
        let has = |pid: Pid| rows.iter().any(|row| row["pid"] == pid.0);
        assert!(has(own.pid()) && has(second.pid()), "{reply}");
        assert!(!has(other.pid()), "{reply}");
        let losses = m.lost();
        let left_out = |loss: &&String| loss.contains("processes not scanned");
        assert_eq!(losses.iter().filter(left_out).count(), 1, "{losses:?}");
        assert_eq!(reply["report"]["agreement"]["verdict"], "incomplete");
        // Those that are left out may be in the group.
        let group = m.get("/v2/summary?cgroup=/").json();
        assert_eq!(group["report"]["agreement"]["verdict"], "incomplete");
        m.interrupt();
    }
    second.end();
    own.end();
    other.end();
}
