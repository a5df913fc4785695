//! Files that memprof does not open itself. Those that it cannot open, or that no path leads to any more: what a process has of
//! them in memory gives tables and exported names. Those of a server: others read them.
//!
//! Needs root, FUSE, `cc`, `setpriv` and `unshare`.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tempfile::TempDir;

use super::chains::{compile, source};
use super::results::{Found, attached, attached_by, profile_under};
use crate::common::memprof::{BINARY, Memprof};
use crate::common::programs::copy_program;
use crate::common::skip::skip;
use crate::common::workload::{self, Workload};
use memprof_sys::ids::Pid;

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

/// The directory of a program and its library, in which they may be deleted.
struct Pair {
    directory: TempDir,
}

impl Pair {
    #[track_caller]
    fn new() -> Option<Pair> {
        static COMPILED: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
        let [library, program] = COMPILED.get_or_init(compiled).as_ref()?;
        let directory = tempfile::tempdir().unwrap();
        let to = |name: &str| directory.path().join(name);
        copy_program(program, to("program"));
        copy_program(library, to("libcontainer.so"));
        Some(Pair { directory })
    }

    /// Starts the program by a shell script that runs in the directory, with a mount namespace of its own.
    fn start(&self, script: &str) -> Workload {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "/bin/sh", "-ec", script]);
        unshare.env("LD_LIBRARY_PATH", self.directory.path());
        let mut workload = Workload::start_as(unshare.current_dir(self.directory.path()));
        // It has loaded its library then.
        workload.lines.tell("go");
        workload
    }
}

fn compiled() -> Option<[PathBuf; 2]> {
    let flags = ["-shared", "-fPIC", "-DLIBRARY"];
    let library = compile("gcc", "libcontainer.so", &source("container.c"), &flags)?;
    let flags = ["-rdynamic", "-DPROGRAM", library.to_str().unwrap()];
    let program = compile("gcc", "container", &source("container.c"), &flags)?;
    Some([library, program])
}

/// A file system whose upper layer has both files.
const OVERLAY: &str = "mkdir -p lower upper all; mount -t tmpfs none upper; mkdir upper/upper upper/work; \
    mount -t overlay none -o lowerdir=lower,upperdir=upper/upper,workdir=upper/work all; \
    cp program libcontainer.so all; cd all; export LD_LIBRARY_PATH=.; ";

/// All stacks are whole, with the exported functions of both files.
#[track_caller]
fn check(found: &Found) {
    assert_eq!(found.complete(), (100.0, 100.0), "{}", found.text());
    assert!(!found.summary.contains("assisted"), "{}", found.text());
    let bytes = found.bytes("_start * main everything by_hand");
    assert!(bytes >= MIB * 9 / 10, "{}", found.text());
}

/// `map_files` leads to such files.
#[test]
fn deleted_and_detached_files_are_read() {
    let Some(pair) = Pair::new() else {
        return;
    };
    let detached = format!("{OVERLAY} umount -l . ; exec ./program");
    let overlay = format!("{OVERLAY} exec ./program");
    for script in [&*overlay, &*detached, "exec ./program"] {
        let mut workload = pair.start(script);
        if script == "exec ./program" {
            for name in ["program", "libcontainer.so"] {
                fs::remove_file(pair.directory.path().join(name)).unwrap();
            }
        }
        let found = attached(workload.pid(), || workload.lines.tell("go"));
        workload.end();
        check(&found);
        assert!(found.summary.contains("Losses: none"), "{}", found.summary);
    }
}

#[test]
fn a_program_in_memory_is_read() {
    let Some(pair) = Pair::new() else {
        return;
    };
    let mut file = File::from(memfd_create(c"program", MFdFlags::empty()).unwrap());
    let program = fs::read(pair.directory.path().join("program")).unwrap();
    file.write_all(&program).unwrap();
    let path = format!("exec /proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut workload = pair.start(&path);
    let found = attached(workload.pid(), || workload.lines.tell("go"));
    workload.end();
    check(&found);
}

/// Without the privilege for `map_files`, there is no way to a file whose mount was detached but the memory of its process.
#[test]
fn files_that_no_path_leads_to_are_read_from_memory() {
    let Some(pair) = Pair::new() else {
        return;
    };
    let mut workload = pair.start(&format!("{OVERLAY} umount -l . ; exec ./program"));
    let mut memprof = Command::new("setpriv");
    let less = "-sys_admin,-checkpoint_restore";
    memprof.args(["--bounding-set", less, "--inh-caps", less, BINARY]);
    let found = attached_by(&mut memprof, workload.pid(), |_| workload.lines.tell("go"));
    workload.end();
    check(&found);
    let lost = "file could not be opened: only exported functions have names";
    assert!(found.summary.contains(lost), "{}", found.summary);
}
