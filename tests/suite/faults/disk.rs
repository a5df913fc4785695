//! Disks that are full: what cannot be written is said, what stood there stays, nothing half is left beside it, and the rest is
//! written all the same.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof, run};
use crate::common::process::{LIMIT, eventually};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use crate::faults::equals_the_kernel;
use crate::faults::kernel_objects::files_in;

const FULL: &str = "No space left on device";
const OLD: &str = "of yesterday\n";

/// A directory with a file system of 64 KiB, in a mount namespace of memprof's own.
struct Disk(TempDir);

impl Disk {
    fn new() -> Disk {
        Disk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A shell that mounts it, has `old` written in it, and runs the script as `$MEMPROF ARGUMENTS`.
    fn shell(&self, options: &str, prepare: &str, script: &str) -> Command {
        let dir = self.0.path().display();
        let script =
            format!("mount -t tmpfs -o {options} tmpfs {dir}; cd {dir}; {prepare}; cd /; {script}");
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            &script,
            BINARY,
        ]);
        command.env_remove("DEBUGINFOD_URLS").stdin(Stdio::null());
        command
    }

    /// A command as memprof with these arguments, where nothing more can be written.
    fn full(&self, args: &str) -> Command {
        self.shell(
            "size=64k",
            &format!("{WRITE_OLD} {FILL}"),
            &format!("exec \"$0\" {args}"),
        )
    }
}

const WRITE_OLD: &str =
    "for f in p.json p.folded p.memprof.json oom.memprof.json; do echo of yesterday >$f; done;";
const FILL: &str = "! dd if=/dev/zero of=filling bs=4k 2>/dev/null";
/// Prints what there is afterwards, except for what fills it.
const SHOW: &str = "rm filling; for f in $(ls -A); do echo \"$f: $(cat $f)\"; done";

/// Each file of `--output` in turn, and the summary.
#[test]
fn an_output_that_does_not_fit_costs_no_other() {
    let workload = Workload::start(&program("scenarios"));
    let (disk, elsewhere) = (Disk::new(), Disk::new());
    let files = [
        disk.at("p.json"),
        elsewhere.at("fits.json"),
        disk.at("p.memprof.json"),
        disk.at("new.svg"),
        elsewhere.at("fits.pb.gz"),
    ];
    let outputs = files
        .iter()
        .map(|file| format!(" -o {file}"))
        .collect::<String>();
    let run = format!(
        "status=0; \"$0\" --pid {} --no-server --duration 0.2 {outputs} || status=$?; echo status $status; cd {}; {SHOW}",
        workload.pid(),
        disk.0.path().display(),
    );
    let mut command = disk.shell("size=64k", &format!("{WRITE_OLD} {FILL}"), &run);
    let out = command.output().unwrap();
    let [stdout, stderr] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(stdout.contains("Losses: none"), "{stdout} {stderr}");
    let (_, shown) = stdout.split_once("status ").unwrap();
    let old = OLD.trim();
    let wanted = ["oom.memprof.json", "p.folded", "p.json", "p.memprof.json"]
        .map(|file| format!("{file}: {old}\n"));
    assert_eq!(shown, format!("1\n{}", wanted.concat()), "{stderr}");
    for refused in [&files[0], &files[2], &files[3]] {
        let said = format!("cannot write a profile to {refused}; name another file with --output");
        let line = stderr.lines().find(|line| line.contains(&said));
        assert!(line.is_some_and(|line| line.contains(FULL)), "{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(files_in(elsewhere.0.path()), ["fits.json", "fits.pb.gz"]);
    let whole: serde_json::Value = serde_json::from_slice(&fs::read(&files[1]).unwrap()).unwrap();
    assert!(whole["value"].as_u64().unwrap() > 0, "{whole}");
    workload.end();
}

/// Where not even an empty file can be made, memprof says so before it profiles for hours.
#[test]
fn a_disk_without_room_for_a_file_is_found_at_the_start() {
    let workload = Workload::start(&program("scenarios"));
    let disk = Disk::new();
    let file = disk.at("p.json");
    let memprof = format!("exec \"$0\" --pid {} --no-server -o {file}", workload.pid());
    let out = disk
        .shell("size=64k,nr_inodes=1", "true", &memprof)
        .output()
        .unwrap();
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&file) && stderr.contains(FULL), "{stderr}");
    assert!(!stderr.contains("following"), "{stderr}");
    workload.end();
}

/// `memprof open` and `diff`.
#[test]
fn saved_profiles_are_not_half_converted() {
    let workload = Workload::start(&program("scenarios"));
    let (disk, kept) = (Disk::new(), Disk::new());
    let (saved, pid) = (kept.at("p.memprof.json"), workload.pid().to_string());
    let out = run(&[
        "--pid",
        &pid,
        "--no-server",
        "--duration",
        "0.1",
        "-o",
        &saved,
    ]);
    assert!(out.status.success(), "{out:?}");
    for (args, file) in [
        (format!("open {saved}"), "p.json"),
        (format!("diff {saved} {saved}"), "p.folded"),
    ] {
        let run = format!(
            "status=0; \"$0\" {args} -o {} || status=$?; echo status $status; cd {}; {SHOW}",
            disk.at(file),
            disk.0.path().display(),
        );
        let mut command = disk.shell("size=64k", &format!("{WRITE_OLD} {FILL}"), &run);
        let out = command.output().unwrap();
        let [stdout, stderr] =
            [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(
            stderr.contains(FULL) && stderr.contains(file),
            "{args}: {stderr}"
        );
        let (_, shown) = stdout.split_once("status ").unwrap();
        assert!(
            shown.starts_with("1\n"),
            "{shown:?} {args}: {stdout} {stderr}"
        );
        assert!(
            shown.contains(&format!("\n{file}: {OLD}")),
            "{args}: {stdout}"
        );
        assert!(!shown.contains(".part"), "{args}: {stdout}");
    }
    workload.end();
}

/// A profile of `--on-oom` that cannot be written: memprof says so, keeps the mark, and goes on.
#[test]
fn recording_goes_on_where_a_kill_cannot_be_written() {
    const MIB: u64 = 1 << 20;
    let Some((group, _)) = Group::new_where_memory_is_limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    group.limit_memory(64 * MIB);
    let mut stays = Workload::start(&program("scenarios"));
    group.put(stays.pid());
    stays.lines.tell("mmap 4096");
    let disk = Disk::new();
    let args = format!(
        "--listen 127.0.0.1:0 --stacks all --cgroup {} --on-oom {}",
        group.dir.display(),
        disk.at("oom.memprof.json")
    );
    let m = Memprof::spawn_as(&mut disk.full(&args));
    m.said("following ");
    let mut victim = Workload::start(&program("scenarios"));
    group.put(victim.pid());
    eventually(LIMIT, "it is followed", || {
        let rows = m.get("/v2/processes").json()["rows"].clone();
        rows.as_array().unwrap().len() == 2
    });
    victim.lines.tell(&format!("mmap {}", 8 * MIB));
    m.get("/v2/summary");
    victim.lines.send(&format!("mmap {}", 256 * MIB));
    assert_eq!(victim.lines.line(), "", "it was not killed");
    drop(victim);
    m.said("was killed because memory had run out (OOM)");
    let said = m.said(FULL);
    assert!(said.contains("--on-oom"), "{said}");
    let inside = format!("/proc/{}/root/{}", m.pid(), disk.0.path().display());
    let inside = std::path::Path::new(&inside);
    assert_eq!(
        files_in(inside),
        [
            "filling",
            "oom.memprof.json",
            "p.folded",
            "p.json",
            "p.memprof.json"
        ]
    );
    assert_eq!(
        fs::read_to_string(inside.join("oom.memprof.json")).unwrap(),
        OLD
    );
    assert_eq!(
        m.get("/v2/marks").json()["marks"].as_array().unwrap().len(),
        1
    );
    // It still records.
    stays.lines.tell(&format!("mmap {}", 4 * MIB));
    eventually(LIMIT, "new memory has its stack", || {
        m.tree().through("cmd_mmap").value >= 4 * MIB / 1024
    });
    equals_the_kernel(&m, stays.pid());
    // Once there is room, the next kill is written.
    fs::remove_file(inside.join("filling")).unwrap();
    let said = m.interrupt();
    assert!(!said.contains("panicked"), "{said}");
    stays.end();
}

/// The library of `--heap` is placed where there is room.
#[test]
fn a_library_without_room_goes_elsewhere() {
    let disk = Disk::new();
    let dir = disk.0.path().display();
    let run = format!(
        "ls -A {dir} >&2; TMPDIR={dir} \"$0\" --heap --no-server -- /bin/sh -c 'echo $LD_PRELOAD'; ls -A {dir}"
    );
    let prepare = format!("{WRITE_OLD} {FILL}");
    let out = disk.shell("size=64k", &prepare, &run).output().unwrap();
    let [stdout, stderr] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(out.status.success(), "{stdout} {stderr}");
    let (library, left) = stdout.split_once('\n').unwrap();
    assert!(library.ends_with("libmemprof_heap.so"), "{stdout} {stderr}");
    assert!(!library.starts_with(&disk.at("")), "{stdout}");
    assert!(stderr.starts_with(left), "{stdout} {stderr}");
    assert!(!std::path::Path::new(library).exists());
}
