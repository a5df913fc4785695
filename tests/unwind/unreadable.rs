//! Files that memprof does not open itself. Those that it cannot open: what a process has of them in memory gives tables and exported
//! names. Those of a server: others read them.
//!
//! Needs root, FUSE and `cc`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use memprof::event::Pid;
use tempfile::TempDir;

use super::chains::{compile, source};
use super::common::memprof::Memprof;
use super::common::skip::skip;
use super::common::workload::{self, Workload};
use super::found::{attached, profile_under};

const MIB: u64 = 1 << 20;
/// `nobody`.
const USER: &str = "65534";

/// A program on another user's FUSE mount, as an AppImage's is.
struct Mounted {
    workload: Workload,
    pid: Pid,
    _directory: TempDir,
}

impl Mounted {
    #[track_caller]
    fn start() -> Option<Mounted> {
        if !Path::new("/dev/fuse").exists() {
            skip("there is no /dev/fuse");
            return None;
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workloads/mute.c");
        let program: PathBuf = compile("gcc", "mounted", source, &["-rdynamic"])?;
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let at = directory.path().to_str().unwrap();
        let mut workload = Workload::start_with(&program, &[at, "1", USER]);
        let line = workload.lines.line();
        let pid = line.strip_prefix("ready ").expect(&line).parse().unwrap();
        Some(Mounted {
            workload,
            pid: Pid(pid),
            _directory: directory,
        })
    }
}

#[test]
fn stacks_are_complete_and_exported_functions_have_names() {
    let Some(mut mounted) = Mounted::start() else {
        return;
    };
    let program = format!("/proc/{}/exe", mounted.pid);
    assert!(fs::read(program).is_err(), "memprof can read the program");
    let found = attached(mounted.pid, || mounted.workload.lines.tell("grow"));
    found.chain("_start * main take *", "take", MIB);
    let (stacks, _) = found.complete();
    assert!(stacks == 100.0, "{}", found.text());
    assert!(!found.summary.contains("assisted"), "{}", found.text());
    let lost = "file could not be opened: only exported functions have names";
    assert!(found.summary.contains(lost), "{}", found.summary);
    mounted.workload.end();
}

#[test]
fn the_message_says_why_and_what_helps() {
    let Some(mounted) = Mounted::start() else {
        return;
    };
    let m = Memprof::attach(mounted.pid, &[]);
    let said = m.said("cannot open its program");
    for part in ["EACCES", "fuse", "allow_other", "exported"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("--freeze"), "{said}");
    m.interrupt();
    mounted.workload.end();
}

/// The library's function runs first of all: its table is there before the program begins.
#[test]
fn a_command_waits_for_the_tables_of_a_servers_files() {
    if !Path::new("/dev/fuse").exists() {
        skip("there is no /dev/fuse");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libserved.so");
    let (at, library) = (
        directory.path().to_str().unwrap(),
        library.to_str().unwrap(),
    );
    let source = source("served.c");
    let shared = ["-shared", "-fPIC", "-DLIBRARY"];
    let Some(built) = compile("gcc", "libserved.so", &source, &shared) else {
        return;
    };
    // The file system hides it, and serves it.
    fs::copy(built, library).unwrap();
    let program = compile("gcc", "served", &source, &[library]).unwrap();
    let server = workload::program("mute");
    let server = [server.to_str().unwrap(), at, "serve", library];
    let found = profile_under(&server, &[], &[program.to_str().unwrap()]);
    found.chain("_start * main served_leaf", "served_leaf", 64 << 10);
}
