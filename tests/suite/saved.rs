//! Profiles that are saved, opened again without root, and compared: by the real `memprof`, of a real program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{cont, stop, wait_until};
use crate::common::terminal::Top;
use crate::common::workload::{Workload, program};
use ::memprof::http::exporters::EXPORTERS;

/// A user without privileges.
const NOBODY: u32 = 65534;

/// A directory that every user can read and write, and a copy of memprof in it that every user can run.
struct InstalledBinary {
    dir: tempfile::TempDir,
}

impl InstalledBinary {
    fn new() -> InstalledBinary {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // By a process of its own: a child forked by another test would have this copy open for writing.
        let copied = Command::new("cp")
            .arg(BINARY)
            .arg(dir.path().join("memprof"))
            .status();
        assert!(copied.unwrap().success());
        InstalledBinary { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// memprof as a user without privileges.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("memprof"));
        command.args(args).uid(NOBODY).gid(NOBODY);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs it to an end with this status; returns its messages.
    #[track_caller]
    fn ends(&self, args: &[&str], status: i32) -> String {
        let out = self.run(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

/// A stopped program with memory of several kinds, in two processes, under memprof.
fn followed(data: &Path) -> (Workload, Memprof) {
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &["--follow-forks"]);
    for command in [
        "mmap 8388608",
        "shared_anon 2097152",
        &format!("write {} 4194304", data.display()),
        // The child waits.
        "fork_cow",
    ] {
        workload.lines.tell(command);
    }
    stop(workload.pid());
    (workload, m)
}

/// Every format of an opened profile is the live one, byte for byte, and so are the replies of the API.
#[test]
fn an_opened_profile_is_the_live_one() {
    let place = InstalledBinary::new();
    let (workload, m) = followed(&place.path("data"));
    m.send("POST", "/v2/marks", "");
    let live = |format: &str| m.get(&format!("/v2/export/{format}?to=1")).body;
    fs::write(place.path("p.memprof.json"), live("profile")).unwrap();
    let all: Vec<_> = EXPORTERS.iter().map(|e| (e, live(e.name))).collect();
    let replies = [
        "/v1/tree?threshold=0&reverse=true",
        "/v2/summary?mark=1",
        "/v2/tree?mark=1&inlined=true",
        "/v2/functions?mark=1&kind=anon",
        "/v2/files?mark=1",
        "/v2/maps?mark=1",
        "/v2/processes?mark=1",
    ]
    .map(|path| (path.replace("mark=1", "").replace("?&", "?"), m.get(path)));
    cont(workload.pid());
    drop((m, workload));

    for (format, bytes) in &all {
        let name = format!("again.{}", format.extension);
        place.ends(&["open", "p.memprof.json", "-o", &name], 0);
        let again = fs::read(place.path(&name)).unwrap();
        assert!(again == *bytes, "{} differs", format.name);
    }
    let mut command = place.command(&["open", "p.memprof.json", "--listen", "127.0.0.1:0"]);
    command.stdout(Stdio::null());
    let opened = Memprof::spawn_as(&mut command);
    opened.said("opened p.memprof.json: scenarios");
    for (path, live) in &replies {
        let reply = opened.get(path.trim_end_matches(['?', '&']));
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        // `/v1` is always of the newest report, which this one is.
        if !path.starts_with("/v1") {
            assert_eq!(reply.json(), live.json(), "{path}");
        }
        assert!(reply.body.len() > 100, "{path}");
    }
    for (format, bytes) in &all {
        let reply = opened.get(&format!("/v2/export/{}", format.name));
        assert!(reply.body == *bytes, "{} differs over HTTP", format.name);
    }
    let health = opened.get("/v2/health").json();
    assert_eq!(health["opened"], "p.memprof.json");
    // A process that has the same id now is not looked at.
    assert_eq!(opened.get("/debug/memory").status, 400);
    assert_eq!(opened.get("/").status, 200);
    opened.interrupt();

    let mut top = Top::run(&["open", "--top", &place.text("p.memprof.json")]);
    top.shows("─ Grows ─");
    top.shows("cmd_mmap (scenarios.c:");
    // No process is there to take a snapshot of.
    assert!(!top.seen().0.contains("─ Heap ─"), "{}", top.seen().0);
    top.press("f");
    top.shows("functions by self");
    top.press("q");
    let (status, _) = top.ends("");
    assert!(status.success(), "{status}");
}

/// Two profiles of a program that grew by 8 MiB in between.
/// What is charged to the group, and who has ended in it, is there when the profile is opened.
#[test]
fn a_control_groups_balance_and_its_ended_processes_are_kept() {
    let (place, group) = (InstalledBinary::new(), Group::new());
    let [first, second] = [(); 2].map(|()| {
        let mut workload = Workload::start(&program("scenarios"));
        group.put(workload.pid());
        workload.lines.tell("mmap 4194304");
        workload
    });
    let m = Memprof::start(&["--cgroup", &format!("/{}", group.name().display())]);
    let processes = |m: &Memprof| m.get("/v2/processes").json();
    wait_until(|| {
        processes(&m)["rows"]
            .as_array()
            .is_some_and(|r| r.len() == 2)
    });
    second.end();
    wait_until(|| {
        processes(&m)["ended"]
            .as_array()
            .is_some_and(|e| e.len() == 1)
    });
    m.send("POST", "/v2/marks", "");
    let saved = m.get("/v2/export/profile?to=1").body;
    fs::write(place.path("p.memprof.json"), saved).unwrap();
    let live = ["cgroup", "processes"].map(|view| m.get(&format!("/v2/{view}?mark=1")).json());
    m.interrupt();
    first.end();

    let mut command = place.command(&["open", "p.memprof.json", "--listen", "127.0.0.1:0"]);
    let opened = Memprof::spawn_as(command.stdout(Stdio::null()));
    let again = ["cgroup", "processes"].map(|view| opened.get(&format!("/v2/{view}")).json());
    let of =
        |[cgroup, processes]: &[Value; 2]| [cgroup["cgroup"].clone(), processes["ended"].clone()];
    assert_eq!(of(&again), of(&live));
    // What it is charged with, or why that is not known here.
    let group = &again[0]["cgroup"];
    let rows = group["rows"].as_array().unwrap();
    assert!(
        !rows.is_empty() || group["without_total"].is_string(),
        "{group}"
    );
    opened.interrupt();
}

fn before_and_after(place: &InstalledBinary) {
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &[]);
    workload.lines.tell("mmap 1048576");
    let save = |name: &str| {
        let saved = m.get("/v2/export/profile").body;
        fs::write(place.path(name), saved).unwrap();
    };
    save("a.memprof.json");
    workload.lines.tell("mmap 8388608");
    save("b.memprof.json");
}

#[test]
fn differences_and_gates() {
    let place = InstalledBinary::new();
    before_and_after(&place);
    let (a, b) = ("a.memprof.json", "b.memprof.json");

    for format in EXPORTERS {
        let args = ["diff", a, b, "--format", format.name, "-o", "difference"];
        match format.supports.difference {
            true => drop(place.ends(&args, 0)),
            false => {
                let said = place.ends(&args, 2);
                assert!(said.contains("does not support a difference"), "{said}");
            }
        }
    }
    let out = place.run(&["diff", a, b]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("\nGrew:\n"), "{text}");
    assert!(text.contains("cmd_mmap"), "{text}");

    for (gate, fires) in [
        ("growth > 1%", true),
        ("growth > 100000%", false),
        ("anon growth > 7MiB", true),
        ("anon growth > 9MiB", false),
        ("function:cmd_mmap growth >= 8MiB", true),
        ("function:cmd_mmap growth > 8MiB", false),
        ("function:cmd_mmap > 8MiB", true),
        ("shmem growth > 0", false),
    ] {
        let said = place.ends(
            &["diff", a, b, "--fail-if", gate],
            if fires { 3 } else { 0 },
        );
        assert_eq!(said.contains("gate fired: "), fires, "{gate}: {said}");
        assert_eq!(said.contains(gate), fires, "{gate}: {said}");
    }
    let two = [
        "diff",
        a,
        b,
        "--fail-if",
        "growth > 1%",
        "--fail-if",
        "function:cmd_mmap growth > 1%",
    ];
    let said = place.ends(&two, 3);
    assert_eq!(said.matches("gate fired: ").count(), 2, "{said}");
    assert!(
        said.contains(
            "function cmd_mmap grew by 8388608 bytes (800.00 %), from 1048576 to 9437184"
        ),
        "{said}"
    );
    let said = place.ends(
        &["diff", a, b, "--fail-if", "function:cmd_mmmap growth > 1%"],
        0,
    );
    assert!(said.contains("neither profile has"), "{said}");
    let said = place.ends(&["diff", b, a, "--fail-if", "growth > 0"], 0);
    assert!(!said.contains("gate"), "{said}");

    for wrong in ["growth", "growth > 5 apples", "heap > 5MiB", "total > 5%"] {
        let said = place.ends(&["diff", a, b, "--fail-if", wrong], 2);
        assert!(said.contains("--fail-if"), "{said}");
    }
    let said = place.ends(&["diff", a, b, "--fail-if", "kernel growth > 5%"], 1);
    assert!(said.contains("save it with --kernel"), "{said}");
}

/// Errors name the file, the reason and what to do.
#[test]
fn what_cannot_be_opened_is_named() {
    let place = InstalledBinary::new();
    before_and_after(&place);
    let whole = fs::read(place.path("a.memprof.json")).unwrap();
    let mut newer: Value = serde_json::from_slice(&whole).unwrap();
    newer["version"] = 1000.into();
    for (name, bytes, wanted) in [
        (
            "cut",
            whole[..whole.len() / 2].to_vec(),
            "save the profile again",
        ),
        ("newer", newer.to_string().into_bytes(), "of version 1000"),
        ("foreign", b"\x7fELF".to_vec(), "which is JSON"),
        ("empty", Vec::new(), "incomplete"),
        ("deep", b"[".repeat(1 << 20), "not a"),
    ] {
        fs::write(place.path(name), bytes).unwrap();
        for args in [&["open", name][..], &["diff", "a.memprof.json", name]] {
            let said = place.ends(args, 1);
            assert!(
                said.contains(&format!("cannot open the saved profile {name}: ")),
                "{said}"
            );
            assert!(said.contains(wanted), "{name}: {said}");
        }
    }
    // A gigabyte, of which the disk holds nothing.
    let huge = fs::File::create(place.path("huge")).unwrap();
    huge.set_len(1 << 30).unwrap();
    let said = place.ends(&["open", "huge"], 1);
    assert!(said.contains("larger than 256 MiB"), "{said}");
    let said = place.ends(&["open", "nothing-here"], 1);
    assert!(said.contains("check its path"), "{said}");
    let said = place.ends(
        &["open", "a.memprof.json", "--kind", "kernel", "-o", "x.svg"],
        1,
    );
    assert!(said.contains("save it with --kernel"), "{said}");
}
